// A contiguous piece of a segment: the unit that is handed out, split and merged.
//
// The blocks of a segment are a list in the order of their addresses, without gaps. Free neighbours
// of one stream are always merged.
#pragma once

#include <cstdint>
#include <set>
#include <type_traits>
#include <utility>

#include "vmm/heap/start_map.h"
#include "vmm/types.h"

namespace cachalot::vmm {

struct Block;
struct Segment;

enum class BlockState : std::uint8_t {
  kFree,
  kUsed,
  kAbsent,  // its memory was given back to the device; these addresses are not used again
};

struct AtLeast {
  std::uint64_t bytes;
};

struct BySizeThenAddress {
  using is_transparent = void;
  inline bool operator()(const Block* a, const Block* b) const;
  inline bool operator()(const Block* a, AtLeast b) const;
};

using FreeBlocks = std::set<Block*, BySizeThenAddress>;

// By a part of the block. Of equal ones that with the lowest address comes first.
template <std::uint64_t Block::*kPart>
struct ByPart {
  using is_transparent = void;
  inline bool operator()(const Block* a, const Block* b) const;
  inline bool operator()(const Block* a, AtLeast b) const;
};

template <std::uint64_t Block::*kPart>
using FreeParts = std::set<Block*, ByPart<kPart>>;

// Where something is in a set; while it is in none, it keeps the set's node, so that none is allocated twice.
template <class Set>
class SetPlace {
 public:
  void enter(Set& set, typename Set::key_type value) {
    if (node_.empty()) {
      place_ = set.insert(value).first;
    } else {
      node_.value() = value;
      place_ = set.insert(std::move(node_)).position;
    }
  }
  void leave(Set& set) { node_ = set.extract(place_); }
  bool is_at(std::add_const_t<std::remove_pointer_t<typename Set::key_type>>* value) const {
    return place_ != typename Set::iterator{} && *place_ == value;
  }

 private:
  typename Set::iterator place_;
  typename Set::node_type node_;
};

struct Block {
  Segment* segment = nullptr;
  Address address = 0;
  std::uint64_t bytes = 0;
  Block* prev = nullptr;
  Block* next = nullptr;
  BlockState state = BlockState::kUsed;
  Stream stream = 0;           // free: who may use it at once; used: who asked for it
  std::uint64_t freed_at = 0;  // free: the number of the last free() in it; they grow
  void* owner = nullptr;       // used: what stands on it; the heap does not look at it
  // Free, and a border of units is in it: what it has up to the first one, and from the last one on. In
  // whole units there is neither.
  std::uint64_t head_bytes = 0;
  std::uint64_t tail_bytes = 0;
  SetPlace<FreeBlocks> in_blocks;
  SetPlace<FreeParts<&Block::head_bytes>> in_heads;
  SetPlace<FreeParts<&Block::tail_bytes>> in_tails;

  Address end() const { return address + bytes; }
};

// Addresses that belong together: blocks of one segment merge, those of two never do.
struct Segment {
  Address base = 0;
  std::uint64_t bytes = 0;  // that blocks cover; a segment grows at its end
  Block* first = nullptr;
  Block* last = nullptr;
  std::size_t index = 0;  // in the heap's list
  std::uint64_t id = 0;   // never given twice; 0: removed
  std::uint64_t used_bytes = 0;
  std::uint64_t absent_bytes = 0;
  void* owner = nullptr;
  StartMap starts;
};

template <std::uint64_t Block::*kPart>
bool ByPart<kPart>::operator()(const Block* a, const Block* b) const {
  return a->*kPart != b->*kPart ? a->*kPart < b->*kPart : a->address < b->address;
}
template <std::uint64_t Block::*kPart>
bool ByPart<kPart>::operator()(const Block* a, AtLeast b) const {
  return a->*kPart < b.bytes;
}
bool BySizeThenAddress::operator()(const Block* a, const Block* b) const {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->address > b->address;
}
bool BySizeThenAddress::operator()(const Block* a, AtLeast b) const {
  return a->bytes < b.bytes;
}

}  // namespace cachalot::vmm
