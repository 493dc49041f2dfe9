#include "trace/allocation/snapshot_converter.h"

#include <cinttypes>
#include <unordered_map>
#include <utility>

#include "trace/allocation/snapshot_recording.h"

namespace cachalot::trace {
namespace {

// Gives the recorded blocks, which are addresses, ids and small streams.
class Conversion {
 public:
  Status allocate(std::uint64_t address, const SnapshotRecording::Block& block) {
    const std::size_t stream = streams_.try_emplace(block.stream, streams_.size()).first->second;
    if (stream > kMaxAllocStream) {
      return Error::make(Code::kBadInput, "more than %u streams, expected fewer",
                         kMaxAllocStream + 1);
    }
    if (__builtin_add_overflow(live_bytes_, block.bytes, &live_bytes_)) {
      return Error::make(Code::kBadInput,
                         "size: %" PRIu64 " more live bytes, expected a sum below 2^64",
                         block.bytes);
    }
    const auto id = script_.allocate(block.bytes, static_cast<std::uint32_t>(stream));
    blocks_[address] = {id, block.bytes};
    return {};
  }

  void free(std::uint64_t address) {
    const Placed& block = blocks_[address];
    script_.free(block.id);
    live_bytes_ -= block.bytes;
  }

  std::uint64_t streams() const { return streams_.size(); }
  AllocScript take() { return std::move(script_); }

 private:
  struct Placed {
    AllocScript::Block id;
    std::uint64_t bytes;
  };

  std::unordered_map<std::int64_t, std::size_t> streams_;
  std::unordered_map<std::uint64_t, Placed> blocks_;  // by address, the last one there
  std::uint64_t live_bytes_ = 0;
  AllocScript script_;
};

}  // namespace

Result<ConvertedSnapshot> convert_snapshot(const PickleDocument& snapshot,
                                           const SnapshotOptions& options) {
  CACHALOT_TRY_ASSIGN(const SnapshotRecording recording,
                      SnapshotRecording::read(snapshot, options));
  Conversion conversion;
  for (const auto& [address, block] : recording.before()) {
    CACHALOT_TRY(conversion.allocate(address, block));
  }
  for (const SnapshotRecording::Event& event : recording.events()) {
    if (event.is_allocation) {
      CACHALOT_TRY(conversion.allocate(event.address, event.block));
    } else {
      conversion.free(event.address);
    }
  }
  SnapshotCounts counts = recording.counts();
  counts.streams = conversion.streams();
  return ConvertedSnapshot{conversion.take(), counts};
}

}  // namespace cachalot::trace
