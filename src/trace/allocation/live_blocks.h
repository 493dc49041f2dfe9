// The live blocks of an allocation trace, found by their ids.
//
// 1. A block has a slot while it lives. Slots are small numbers: at most as many as blocks were ever
//    live at once, for a freed slot is given out again, the one freed last first. What a replay knows
//    of a block it can keep in an array by slot, without a table of its own.
// 2. Memory follows the live blocks, not the length of the trace.
//
// Open addressing with linear probing; a removal moves what comes after it back (D. Knuth, The Art of
// Computer Programming 3, 6.4, algorithm R), so that a long trace leaves no tombstones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace cachalot::trace {

// @cost about 70 bytes for each block that is live at the peak
class LiveBlocks {
 public:
  struct Block {
    std::uint64_t id = 0;
    std::uint64_t bytes = 0;
    std::uint64_t line = 0;  // of its allocation
    std::uint32_t stream = 0;
  };
  static constexpr std::uint64_t kNoSlot = ~std::uint64_t{0};

  LiveBlocks() : places_(kFirstPlaces) {}

  std::uint64_t size() const { return blocks_.size() - free_slots_.size(); }
  const Block& at(std::uint64_t slot) const { return blocks_[slot]; }

  // kNoSlot: no such block lives.
  std::uint64_t find(std::uint64_t id) const {
    const Place& place = places_[index_of(id)];
    return place.slot_and_one == 0 ? kNoSlot : place.slot_and_one - 1;
  }

  // kNoSlot: a block of this id lives already, and stays as it is.
  std::uint64_t add(const Block& block) {
    if ((size() + 1) * 2 > places_.size()) grow();
    Place& place = places_[index_of(block.id)];
    if (place.slot_and_one != 0) return kNoSlot;
    const std::uint64_t slot = take_slot();
    blocks_[slot] = block;
    place = {block.id, slot + 1};
    return slot;
  }

  // The slot that the block had; its content stays readable until the next add(). kNoSlot: none lives.
  std::uint64_t remove(std::uint64_t id) {
    std::size_t gap = index_of(id);
    if (places_[gap].slot_and_one == 0) return kNoSlot;
    const std::uint64_t slot = places_[gap].slot_and_one - 1;
    const std::size_t mask = places_.size() - 1;
    for (std::size_t at = (gap + 1) & mask; places_[at].slot_and_one != 0; at = (at + 1) & mask) {
      if (((at - home_of(places_[at].id)) & mask) < ((at - gap) & mask)) continue;
      places_[gap] = places_[at];
      gap = at;
    }
    places_[gap] = {};
    free_slots_.push_back(slot);
    return slot;
  }

 private:
  static constexpr std::size_t kFirstPlaces = 1024;  // always a power of two

  struct Place {
    std::uint64_t id = 0;
    std::uint64_t slot_and_one = 0;  // 0: free
  };

  std::size_t home_of(std::uint64_t id) const { return base::mix64(id) & (places_.size() - 1); }

  // Where the id is, or would be.
  std::size_t index_of(std::uint64_t id) const {
    std::size_t at = home_of(id);
    while (places_[at].slot_and_one != 0 && places_[at].id != id) {
      at = (at + 1) & (places_.size() - 1);
    }
    return at;
  }

  std::uint64_t take_slot() {
    if (free_slots_.empty()) {
      blocks_.emplace_back();
      return blocks_.size() - 1;
    }
    const std::uint64_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }

  void grow() {
    const std::vector<Place> old = std::move(places_);
    places_.assign(old.size() * 2, {});
    for (const Place& place : old) {
      if (place.slot_and_one != 0) places_[index_of(place.id)] = place;
    }
  }

  std::vector<Place> places_;
  std::vector<Block> blocks_;  // by slot
  std::vector<std::uint64_t> free_slots_;
};

}  // namespace cachalot::trace
