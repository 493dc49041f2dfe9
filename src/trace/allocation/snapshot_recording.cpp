#include "trace/allocation/snapshot_recording.h"

#include <cinttypes>
#include <string>

#include "trace/allocation/snapshot_fields.h"

namespace cachalot::trace {
namespace {

Error in(const std::string& place, const Error& error) {
  return Error::make(error.code, "%s: %s", place.c_str(), error.message);
}

Result<std::span<const PickleValue>> events_of(const PickleDocument& snapshot,
                                               std::uint64_t device) {
  const PickleValue root = snapshot.root();
  CACHALOT_TRY_ASSIGN(const auto devices, SnapshotFields(snapshot, root).list("device_traces"));
  if (device < devices.size() && !snapshot.items(devices[device]).empty()) {
    return snapshot.items(devices[device]);
  }
  std::string others;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!snapshot.items(devices[i]).empty()) others += " " + std::to_string(i);
  }
  if (others.empty()) others = " none: history was not recorded";
  return Error::make(Code::kInvalidArgument,
                     "device: %" PRIu64 " has no events, expected one that has:%s", device,
                     others.c_str());
}

}  // namespace

Result<SnapshotRecording> SnapshotRecording::read(const PickleDocument& snapshot,
                                                  const SnapshotOptions& options) {
  SnapshotRecording recording(options);
  CACHALOT_TRY_ASSIGN(const auto dicts, events_of(snapshot, options.device));
  CACHALOT_TRY(recording.read_events(snapshot, dicts));
  CACHALOT_TRY(recording.read_segments(snapshot));
  recording.counts_.blocks_before = recording.before_.size();
  return recording;
}

Status SnapshotRecording::read_events(const PickleDocument& snapshot,
                                      std::span<const PickleValue> dicts) {
  for (const PickleValue& dict : dicts) {
    const Status read = read_event(snapshot, dict);
    if (!read) {
      return in("device_traces[" + std::to_string(options_.device) + "][" +
                    std::to_string(counts_.events) + "]",
                read.error());
    }
    ++counts_.events;
  }
  counts_.passed_over = counts_.events - events_.size();
  return {};
}

Status SnapshotRecording::read_event(const PickleDocument& snapshot, const PickleValue& dict) {
  const SnapshotFields fields(snapshot, dict);
  CACHALOT_TRY_ASSIGN(const PickleValue action, fields.get("action", PickleKind::kText));
  const bool frees = action.is_text(options_.free == SnapshotFree::kCompleted ? "free_completed"
                                                                              : "free_requested");
  if (!frees && !action.is_text("alloc")) return {};
  Event event{.is_allocation = !frees, .address = 0, .block = {}};
  CACHALOT_TRY_ASSIGN(event.address, fields.number("addr"));
  CACHALOT_TRY_ASSIGN(event.block.bytes, fields.number("size", 1));
  CACHALOT_TRY_ASSIGN(const PickleValue stream, fields.get("stream", PickleKind::kInteger));
  event.block.stream = stream.integer;
  CACHALOT_TRY(follow(event));
  events_.push_back(event);
  return {};
}

Status SnapshotRecording::follow(const Event& event) {
  const auto [place, is_new] = lives_.try_emplace(event.address, false);
  if (is_new && !event.is_allocation) {
    before_[event.address] = event.block;
    return {};
  }
  if (place->second == event.is_allocation) {
    return Error::make(Code::kBadInput, "addr: 0x%" PRIx64 " is %s twice, expected %s between",
                       event.address, event.is_allocation ? "allocated" : "freed",
                       event.is_allocation ? "a free" : "an alloc");
  }
  place->second = event.is_allocation;
  return {};
}

Status SnapshotRecording::read_segments(const PickleDocument& snapshot) {
  const PickleValue root = snapshot.root();
  CACHALOT_TRY_ASSIGN(const auto segments, SnapshotFields(snapshot, root).list("segments"));
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Status read = read_segment(snapshot, segments[i]);
    if (!read) return in("segments[" + std::to_string(i) + "]", read.error());
  }
  return {};
}

Status SnapshotRecording::read_segment(const PickleDocument& snapshot, const PickleValue& dict) {
  const SnapshotFields fields(snapshot, dict);
  CACHALOT_TRY_ASSIGN(const std::uint64_t device, fields.number("device"));
  if (device != options_.device) return {};
  CACHALOT_TRY_ASSIGN(std::uint64_t address, fields.number("address"));
  CACHALOT_TRY_ASSIGN(const PickleValue stream, fields.get("stream", PickleKind::kInteger));
  CACHALOT_TRY_ASSIGN(const auto blocks, fields.list("blocks"));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Result<std::uint64_t> bytes = read_block(snapshot, blocks[i], stream.integer, address);
    if (!bytes) return in("blocks[" + std::to_string(i) + "]", bytes.error());
    address += *bytes;  // blocks lie side by side
  }
  return {};
}

// The bytes that it takes of its segment.
Result<std::uint64_t> SnapshotRecording::read_block(const PickleDocument& snapshot,
                                                    const PickleValue& dict, std::int64_t stream,
                                                    std::uint64_t address) {
  const SnapshotFields fields(snapshot, dict);
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, fields.number("size", 1));
  CACHALOT_TRY_ASSIGN(const PickleValue state, fields.get("state", PickleKind::kText));
  if (!is_in_use(state)) return bytes;
  if (fields.find("address") != nullptr) {  // versions before 2.2 do not say
    CACHALOT_TRY_ASSIGN(address, fields.number("address"));
  }
  Block block{bytes, stream};
  if (fields.find("requested_size") != nullptr) {  // nor this, before 2.1
    CACHALOT_TRY_ASSIGN(block.bytes, fields.number("requested_size", 1));
  }
  const auto known = lives_.find(address);
  if (known == lives_.end()) {
    before_[address] = block;
  } else if (!known->second) {
    ++counts_.contradictions;
  }
  return bytes;
}

bool SnapshotRecording::is_in_use(const PickleValue& state) const {
  if (state.is_text("active_allocated")) return true;
  // Freed, but other streams may still use it; the second is the older name.
  const bool is_pending =
      state.is_text("active_pending_free") || state.is_text("active_awaiting_free");
  return is_pending && options_.free == SnapshotFree::kCompleted;
}

}  // namespace cachalot::trace
