// The processes of a replay: a keeper and the engines. All end when the Crew goes out of scope.
//
// Invariants
//   1. Engines are started after the keeper serves, and take no request before go().
//   2. A process that ends unexpectedly is named in the Error of the next call.
//
// @threads one, which must outlive the crew (os/child.h)
#pragma once

#include <cachalot/result.h>

#include <optional>
#include <string>
#include <vector>

#include "os/child.h"
#include "replay/pool/harness.h"
#include "replay/pool/workload.h"

namespace cachalot::replay {

class Crew {
 public:
  // Forks them; each opens the pool by `paths` for itself. Returns when all are ready.
  // @errors what a process said of its failure, or how it died, behind its name
  static Result<Crew> start(const ReplayOptions& options, const Workload& workload,
                            const std::vector<std::string>& paths, HarnessState& harness);

  // Lets the engines begin.
  void go();

  // Waits `timeout_ms` for something to happen. @return true once all engines are done
  // @errors as start()
  Result<bool> wait_for(std::uint64_t timeout_ms);

  // Has the keeper end, after the engines. @errors as start()
  Status end_keeper();

 private:
  struct Member {
    std::string name;  // "engine 3"
    ProcessState* state;
    os::Child child;
    bool is_done = false;
  };

  explicit Crew(HarnessState& harness) : harness_(&harness) {}

  Status wait_until_ready(const ProcessState& state);
  Result<bool> look_at(Member& member, std::uint64_t timeout_ms);
  Error failure_of(Member& member, const os::ChildStatus& status);

  HarnessState* harness_;
  std::optional<Member> keeper_;
  std::vector<Member> engines_;
};

}  // namespace cachalot::replay
