// Replays an allocation trace on an allocator, and says what it took: memory, stitches, driver calls,
// time.
//
// 1. Events are executed in the order of the trace, each once. A request that is refused counts, and
//    its free is passed over.
// 2. With verification each block is filled with a pattern of its own when it is allocated and
//    checked when it is freed, or at the end.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "device_memory/allocator.h"
#include "device_memory/call_counts.h"
#include "replay/pattern/block_pattern.h"
#include "trace/allocation/alloc_trace.h"

namespace cachalot::replay {

// A trace in memory, so that reading it is not measured. @cost 24 bytes an event
class AllocEvents {
 public:
  struct Event {
    std::uint64_t bytes;  // of an allocation, scaled; of a mark, its number
    std::uint64_t slot;   // of the block, among those that live
    std::uint32_t stream;
    trace::AllocKind kind;
  };

  // @errors as AllocTrace
  static Result<AllocEvents> read(const std::string& path);
  // Multiplies all sizes; at least one byte stays of each. @errors kInvalidArgument: the factor
  Status scale(double factor);

  const std::vector<Event>& events() const { return events_; }
  const std::vector<std::string>& marks() const { return marks_; }
  std::uint64_t slots() const { return slots_; }
  std::uint64_t peak_live_bytes() const { return peak_live_bytes_; }

 private:
  std::vector<Event> events_;
  std::vector<std::string> marks_;
  std::uint64_t slots_ = 0;
  std::uint64_t peak_live_bytes_ = 0;
};

// What happened between two iteration marks, or in half of the trace.
struct AllocPhase {
  std::string name;
  std::uint64_t allocations = 0;
  std::uint64_t driver_allocations = 0;  // that made any call of the driver
  std::uint64_t stitches = 0;
  std::uint64_t reserved_bytes = 0;  // at its end

  double driver_share() const {
    return allocations == 0
               ? 0
               : static_cast<double>(driver_allocations) / static_cast<double>(allocations);
  }
};

// The most that was held, and asked for, within a stretch of events of equal length.
struct AllocSample {
  std::uint64_t events = 0;  // of the trace, at the end of the stretch
  std::uint64_t reserved_bytes = 0;
  std::uint64_t live_bytes = 0;

  bool operator==(const AllocSample&) const = default;
};

struct AllocReport {
  std::uint64_t events = 0;
  device_memory::AllocatorStats stats;
  device_memory::CallCounts calls;
  base::Histogram allocate_ns;
  base::Histogram free_ns;
  AllocPhase second_half;  // of the events
  std::vector<AllocPhase> iterations;
  std::vector<AllocSample> timeline;
  std::uint64_t checked_blocks = 0;
  std::uint64_t wrong_blocks = 0;
  double wall_s = 0;
};

struct AllocReplayOptions {
  Verify verify = Verify::kOff;
  PatternMemory* memory = nullptr;              // null: the backend's addresses are this process's
  std::function<void(std::uint64_t)> progress;  // events done; called now and then
  std::size_t timeline_samples = 0;             // at most so many; 0: no timeline
};

// @errors of the allocator, other than that memory is short
Result<AllocReport> replay_allocations(const AllocEvents& events,
                                       device_memory::Allocator& allocator,
                                       device_memory::Backend& backend,
                                       const AllocReplayOptions& options);

}  // namespace cachalot::replay
