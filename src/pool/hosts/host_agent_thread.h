// A thread that is the agent of this machine's host in a pool, where no other process of the machine is.
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "os/shared_file.h"
#include "pool/hosts/host_agent.h"
#include "pool/hosts/host_evidence.h"

namespace cachalot::pool {

class HostAgentThread {
 public:
  static constexpr std::uint64_t kIntervalNs = 100'000'000;

  // Returns once this machine has the number, or another of its processes is the agent; the thread then waits for that
  // one to end.
  // @param first_file  outlives the thread, as `access` does
  // @errors kInvalidArgument: no such host; kBusy: HostAgent::claim
  static Result<std::unique_ptr<HostAgentThread>> start(const Access& access,
                                                        const os::SharedFile& first_file,
                                                        const HostAgentOptions& options);
  ~HostAgentThread();
  HostAgentThread(const HostAgentThread&) = delete;
  HostAgentThread& operator=(const HostAgentThread&) = delete;

 private:
  HostAgentThread(const Access& access, const os::SharedFile& first_file,
                  const HostAgentOptions& options, const HostEvidence& evidence);
  // One round. @return whether this process is the agent, or need not be it; errors as start()
  Result<bool> step();
  void run(const std::stop_token& stop);

  const os::SharedFile& file_;
  const std::uint32_t host_;
  HostEvidence evidence_;
  base::SteadyClock clock_;
  HostAgent agent_;
  std::optional<os::FileLock> lock_;
  bool is_claimed_ = false;
  bool is_refused_ = false;  // said in the log once
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace cachalot::pool
