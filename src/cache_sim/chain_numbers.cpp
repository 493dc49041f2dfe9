#include "cache_sim/chain_numbers.h"

namespace cachalot::cache_sim {

std::uint32_t ChainNumbers::number_of(std::uint32_t parent, std::uint64_t id) {
  Slot* slot = &find(parent, id);
  if (slot->number != eviction::kNoNode) return slot->number;
  if (size_ == most_) return eviction::kNoNode;
  if (std::uint64_t{size_} * 3 >= slots_.size() * std::uint64_t{2}) {
    rehash();
    slot = &find(parent, id);
  }
  *slot = Slot{id, parent, size_};
  return size_++;
}

Status ChainNumbers::append_path(std::span<const std::uint64_t> ids,
                                 std::vector<std::uint32_t>& path) {
  std::uint32_t parent = eviction::kNoNode;
  for (const std::uint64_t id : ids) {
    parent = number_of(parent, id);
    if (parent == eviction::kNoNode)
      return Error::make(Code::kUnsupported, "trace: more than %u distinct blocks", most_);
    path.push_back(parent);
  }
  return {};
}

// The slot of the prefix, or the free one where it belongs.
ChainNumbers::Slot& ChainNumbers::find(std::uint32_t parent, std::uint64_t id) {
  const auto is_it = [&](const Slot& slot) {
    return slot.number == eviction::kNoNode || (slot.id == id && slot.parent == parent);
  };
  const std::size_t line = line_of(id);
  for (std::size_t at = line; at < line + kLineSlots; ++at) {
    if (is_it(slots_[at])) return slots_[at];
  }
  const std::uint64_t mask = slots_.size() - 1;
  std::uint64_t at = base::mix64(id ^ base::mix64(parent + std::uint64_t{1})) & mask;
  while (!is_it(slots_[at])) at = (at + 1) & mask;
  return slots_[at];
}

void ChainNumbers::rehash() {
  base::HugeVector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.number != eviction::kNoNode) find(slot.parent, slot.id) = slot;
  }
}

}  // namespace cachalot::cache_sim
