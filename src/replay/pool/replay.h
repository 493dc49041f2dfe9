// The main job: engine processes replay a production trace through one pool, with real bytes, and
// check every one of them.
//
//   ReplayOptions options{.trace = "conversation_trace.jsonl.gz", .engines = 4};
//   Result<ReplayReport> report = replay(options, sink);
//
// The caller's process reads the trace and makes the pool; a keeper and the engines are children of
// it, and share nothing but the pool and the counters of harness.h. Whatever happens, none of them
// and none of the pool's files is left when replay() returns.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "replay/pool/options.h"
#include "replay/pool/report.h"

namespace cachalot::replay {

// Where a replay stands.
struct Progress {
  std::uint64_t requests_done = 0;
  std::uint64_t requests = 0;
  double block_hit_rate = 0;  // so far
  double gb_s = 0;            // both directions, since the last call
  std::uint64_t evictions = 0;
  std::uint64_t errors = 0;
  double elapsed_s = 0;
};

// What the caller of replay() hears and says while it runs; called from its own thread, about ten
// times a second.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  virtual void on_progress(const Progress&) {}
  // True: end now. Looked at about a hundred times a second, and once before the work begins.
  virtual bool should_stop() { return false; }
};

// @errors  kInvalidArgument, kBadInput: options, trace; kNoSpace, kBusy, kPermission: the pool
//          cannot be made; kTimeout: `sink` said stop; what befell a process, behind its name
// @threads call it from a process that has no other thread: it forks
Result<ReplayReport> replay(const ReplayOptions& options, ProgressSink& sink);

}  // namespace cachalot::replay
