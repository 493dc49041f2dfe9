// Events of an allocation trace as a program makes them: blocks are named by what allocate() returned.
//
// Ids count up from 1 and come once. Events wait until take() fetches them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "trace/allocation/alloc_event.h"
#include "trace/allocation/live_blocks.h"

namespace cachalot::trace {

// @threads one at a time
class AllocScript {
 public:
  using Block = std::uint64_t;

  Block allocate(std::uint64_t bytes, std::uint32_t stream = 0) {
    const Block id = ++last_id_;
    const std::uint64_t slot = live_.add({.id = id, .bytes = bytes, .stream = stream});
    events_.push_back(
        {.kind = AllocKind::kAllocate, .stream = stream, .id = id, .bytes = bytes, .slot = slot});
    return id;
  }

  void free(Block block) {
    const std::uint64_t slot = live_.remove(block);
    CACHALOT_CHECK(slot != LiveBlocks::kNoSlot);
    events_.push_back({.kind = AllocKind::kFree,
                       .stream = live_.at(slot).stream,
                       .id = block,
                       .bytes = live_.at(slot).bytes,
                       .slot = slot});
  }

  // In their order; none are left in it.
  void free(std::vector<Block>& blocks) {
    for (const Block block : blocks) free(block);
    blocks.clear();
  }

  // For what comes and goes at once.
  void touch(std::uint64_t bytes, std::uint32_t stream = 0) { free(allocate(bytes, stream)); }

  // One mark at a time: its text is valid until the next.
  void mark(std::string text) {
    mark_text_ = std::move(text);
    events_.push_back({.kind = AllocKind::kMark, .text = mark_text_});
  }

  std::uint64_t live_blocks() const { return live_.size(); }

  // The next event that waits; nullptr: none does, and new ones may be made.
  const AllocEvent* take() {
    if (taken_ < events_.size()) return &events_[taken_++];
    events_.clear();
    taken_ = 0;
    return nullptr;
  }

 private:
  Block last_id_ = 0;
  LiveBlocks live_;
  std::string mark_text_;
  std::vector<AllocEvent> events_;
  std::size_t taken_ = 0;
};

}  // namespace cachalot::trace
