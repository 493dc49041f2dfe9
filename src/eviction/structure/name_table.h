// Numbers by name: an open table whose slots tell most names apart by themselves, so that neither a
// search nor a removal reads another table's memory as a rule.
//
// 1. A slot holds 32 bits of the name's hash and the number. The upper bits of those 32 are its
//    home, so a slot can be moved without its name.
// 2. From the home of each to its slot no slot is empty (linear probing, Knuth 6.4 R for removal).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/huge_allocator.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    O(1), one cache line mostly; 11 to 21 bytes a name
class NameTable {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  // The number of `name`, as is_it(number) says of those whose 32 bits are its own; or kNone.
  template <class IsIt>
  std::uint32_t find(std::uint64_t name, IsIt&& is_it) const {
    const std::uint32_t tag = tag_of(name);
    for (std::size_t i = home(tag); slots_[i].number != kNone; i = next(i)) {
      if (slots_[i].tag == tag && is_it(slots_[i].number)) return slots_[i].number;
    }
    return kNone;
  }
  void add(std::uint64_t name, std::uint32_t number) {
    if (++size_ > slots_.size() / 4 * 3) grow();
    put({tag_of(name), number});
  }
  // What was added so.
  void remove(std::uint64_t name, std::uint32_t number) {
    std::size_t hole = home(tag_of(name));
    while (slots_[hole].number != number) hole = next(hole);
    for (std::size_t i = next(hole); slots_[i].number != kNone; i = next(i)) {
      // May it stand in the hole? Only if its home is not between the two.
      const std::size_t mask = slots_.size() - 1;
      if (((i - home(slots_[i].tag)) & mask) < ((i - hole) & mask)) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole].number = kNone;
    --size_;
  }
  void prefetch(std::uint64_t name) const { __builtin_prefetch(&slots_[home(tag_of(name))], 1); }

 private:
  struct Slot {
    std::uint32_t tag = 0, number = kNone;
  };

  static std::uint32_t tag_of(std::uint64_t name) {
    return static_cast<std::uint32_t>(name * 0x9e3779b97f4a7c15u >> 32);
  }
  std::size_t home(std::uint32_t tag) const { return tag >> shift_; }
  std::size_t next(std::size_t i) const { return (i + 1) & (slots_.size() - 1); }
  void put(Slot slot) {
    std::size_t i = home(slot.tag);
    while (slots_[i].number != kNone) i = next(i);
    slots_[i] = slot;
  }
  void grow() {
    base::HugeVector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    --shift_;
    for (const Slot& slot : old) {
      if (slot.number != kNone) put(slot);
    }
  }

  static constexpr int kFirstBits = 10;
  int shift_ = 32 - kFirstBits;
  base::HugeVector<Slot> slots_ = base::HugeVector<Slot>(std::size_t{1} << kFirstBits);
  std::size_t size_ = 0;
};

}  // namespace cachalot::eviction
