// What a memory snapshot of PyTorch says of one device, read from its dicts (snapshot_converter.h has the
// fields) and checked: allocations and frees of blocks by their addresses, and the blocks that were there
// before the recording began.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "trace/allocation/pickle_value.h"

namespace cachalot::trace {

enum class SnapshotFree { kCompleted, kRequested };

struct SnapshotOptions {
  std::uint64_t device = 0;
  SnapshotFree free = SnapshotFree::kCompleted;
};

struct SnapshotCounts {
  std::uint64_t events = 0;       // of the recording
  std::uint64_t passed_over = 0;  // of them: segments, marks, out of memory, the other kind of free
  std::uint64_t blocks_before = 0;
  std::uint64_t streams = 0;
  // In use at the end by the segments, and freed by the recording: something went unrecorded.
  std::uint64_t contradictions = 0;
};

// @threads one at a time
class SnapshotRecording {
 public:
  struct Block {
    std::uint64_t bytes;
    std::int64_t stream;
  };
  // An address is allocated and freed in turn, with a free first where it is one of before().
  struct Event {
    bool is_allocation;
    std::uint64_t address;
    Block block;
  };

  // @errors as convert_snapshot
  static Result<SnapshotRecording> read(const PickleDocument& snapshot,
                                        const SnapshotOptions& options);

  const std::vector<Event>& events() const { return events_; }
  const std::map<std::uint64_t, Block>& before() const { return before_; }  // by address
  const SnapshotCounts& counts() const { return counts_; }

 private:
  explicit SnapshotRecording(const SnapshotOptions& options) : options_(options) {}

  Status read_events(const PickleDocument& snapshot, std::span<const PickleValue> dicts);
  Status read_event(const PickleDocument& snapshot, const PickleValue& dict);
  Status follow(const Event& event);
  Status read_segments(const PickleDocument& snapshot);
  Status read_segment(const PickleDocument& snapshot, const PickleValue& dict);
  Result<std::uint64_t> read_block(const PickleDocument& snapshot, const PickleValue& dict,
                                   std::int64_t stream, std::uint64_t address);
  bool is_in_use(const PickleValue& state) const;

  SnapshotOptions options_;
  std::vector<Event> events_;
  std::map<std::uint64_t, Block> before_;
  std::unordered_map<std::uint64_t, bool>
      lives_;  // by address: whether it does after what was read
  SnapshotCounts counts_;
};

}  // namespace cachalot::trace
