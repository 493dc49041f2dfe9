#include "tier/controller/slot_pool.h"

namespace cachalot::tier {

bool SlotPool::take(std::uint32_t count, std::vector<Slot>& slots) {
  if (count > free_.size()) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Slot slot = free_.back();
    free_.pop_back();
    is_taken_[slot] = true;
    slots.push_back(slot);
  }
  return true;
}

Status SlotPool::give(std::span<const Slot> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    if (slot < is_taken_.size() && is_taken_[slot]) {
      is_taken_[slot] = false;
      continue;
    }
    for (std::size_t taken = 0; taken < i; ++taken) is_taken_[slots[taken]] = true;
    return Error::make(Code::kInvalidArgument, "%s: slot %u is given back, but %s", name_, slot,
                       slot < is_taken_.size() ? "is not taken" : "does not exist");
  }
  free_.insert(free_.end(), slots.rbegin(), slots.rend());
  return {};
}

void SlotPool::clear() {
  free_.clear();
  for (std::size_t slot = is_taken_.size(); slot > 0; --slot)
    free_.push_back(static_cast<Slot>(slot - 1));
  is_taken_.assign(is_taken_.size(), false);
}

}  // namespace cachalot::tier
