#include "pool/hosts/host_agent_thread.h"

#include <chrono>

#include "base/log.h"
#include "pool/format/lock_bytes.h"

namespace cachalot::pool {

HostAgentThread::HostAgentThread(const Access& access, const os::SharedFile& first_file,
                                 const HostAgentOptions& options, const HostEvidence& evidence)
    : file_(first_file),
      host_(options.host),
      evidence_(evidence),
      agent_(access, options, {evidence.boot(), os::machine_id(), &evidence_}, clock_) {}

Result<std::unique_ptr<HostAgentThread>> HostAgentThread::start(const Access& access,
                                                                const os::SharedFile& first_file,
                                                                const HostAgentOptions& options) {
  if (options.host >= access.geometry.hosts) {
    return Error::make(Code::kInvalidArgument, "%.120s: host %u: the pool has %u, from 0 on",
                       first_file.path().c_str(), options.host, access.geometry.hosts);
  }
  CACHALOT_TRY_ASSIGN(const HostEvidence evidence, HostEvidence::make());
  std::unique_ptr<HostAgentThread> thread(
      new HostAgentThread(access, first_file, options, evidence));
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool is_done, thread->step());
    if (is_done) break;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kIntervalNs));
  }
  thread->thread_ =
      std::jthread([self = thread.get()](const std::stop_token& stop) { self->run(stop); });
  return thread;
}

HostAgentThread::~HostAgentThread() = default;

Result<bool> HostAgentThread::step() {
  if (!lock_) {
    Result<os::FileLock> locked = lock_byte(file_, kFirstHostLock + host_);
    if (!locked && locked.error().code == Code::kBusy) return true;
    if (!locked) return locked.error();
    lock_ = *std::move(locked);
  }
  if (is_claimed_) {
    agent_.look();
    return true;
  }
  CACHALOT_TRY_ASSIGN(is_claimed_, agent_.claim());
  return is_claimed_;
}

void HostAgentThread::run(const std::stop_token& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, stop, std::chrono::nanoseconds(kIntervalNs), [] { return false; })) {
    if (stop.stop_requested()) return;
    const Result<bool> done = step();
    if (done || is_refused_) continue;
    is_refused_ = true;
    base::log(base::LogLevel::kError, "host", "%s", done.error().message);
  }
}

}  // namespace cachalot::pool
