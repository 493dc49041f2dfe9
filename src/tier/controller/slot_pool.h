// The free slots of a tier.
//
// 1. A slot is free or taken; a slot that is given back twice is an error, and nothing is given back then.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tier/radix/tier.h"

namespace cachalot::tier {

// @threads one at a time
// @cost    O(slots of the call)
class SlotPool {
 public:
  // @param name  for messages
  SlotPool(const char* name, std::uint32_t slots) : name_(name), is_taken_(slots) { clear(); }

  std::uint32_t slots() const { return static_cast<std::uint32_t>(is_taken_.size()); }
  std::uint32_t free_slots() const { return static_cast<std::uint32_t>(free_.size()); }
  // Appends `count` slots, lowest numbers first as long as none were given back; false: fewer are free, and
  // nothing is taken.
  bool take(std::uint32_t count, std::vector<Slot>& slots);
  // @errors kInvalidArgument: a slot that is out of range or not taken; the message names it
  Status give(std::span<const Slot> slots);
  // All slots are free.
  void clear();

 private:
  const char* name_;
  std::vector<Slot> free_;  // the next one last
  std::vector<bool> is_taken_;
};

}  // namespace cachalot::tier
