// The processes of a replay: each host's keeper and the engines. All end when the Crew goes out of scope.
//
// Invariants
//   1. Engines are started after all keepers serve, and take no request before go().
//   2. A process that ends unexpectedly is named in the Error of the next call.
//
// @threads one, which must outlive the crew (os/child.h)
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "os/child.h"
#include "replay/pool/harness.h"
#include "replay/pool/keeper.h"
#include "replay/pool/workload.h"

namespace cachalot::replay {

class Crew {
 public:
  // Forks them; each opens its host's pool by its paths for itself. Returns when all are ready.
  // @param places  of the hosts
  // @errors what a process said of its failure, or how it died, behind its name
  static Result<Crew> start(const ReplayOptions& options, const Workload& workload,
                            std::span<const HostPlace> places, HarnessState& harness);

  // Lets the engines begin.
  void go();

  // Waits `timeout_ms` for something to happen. @return true once all engines are done
  // @errors as start()
  Result<bool> wait_for(std::uint64_t timeout_ms);

  // Has the keepers end, after the engines. @errors as start()
  Status end_keepers();

 private:
  struct Member {
    std::string name;  // "engine 3"
    std::uint32_t host;
    ProcessState* state;
    os::Child child;
    bool is_done = false;
  };

  explicit Crew(HarnessState& harness) : harness_(&harness) {}

  Status start_keeper(const ReplayOptions& options, std::uint32_t host, const HostPlace& place);
  Status wait_until(const std::atomic<bool>& is_true);
  Result<bool> look_at(Member& member, std::uint64_t timeout_ms);
  Error failure_of(Member& member, const os::ChildStatus& status);

  HarnessState* harness_;
  std::vector<Member> keepers_;  // of each host
  std::vector<Member> engines_;
};

}  // namespace cachalot::replay
