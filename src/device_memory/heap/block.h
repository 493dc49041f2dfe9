// A contiguous piece of a segment: the unit that is handed out, split and merged.
//
// The blocks of a segment are a list in the order of their addresses, without gaps. Free neighbours
// of one stream are always merged.
#pragma once

#include <cstdint>
#include <set>

#include "device_memory/heap/start_map.h"
#include "device_memory/types.h"
#include "gpu/stream_events.h"

namespace cachalot::device_memory {

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

// What a free block has before the first border of units in it, or behind the last one, and its place among
// the parts of its size. 0 bytes: there is none.
struct Part {
  std::uint64_t bytes = 0;
  Block* prev = nullptr;
  Block* next = nullptr;
};

struct Block {
  Segment* segment = nullptr;
  Address address = 0;
  std::uint64_t bytes = 0;
  Block* prev = nullptr;
  Block* next = nullptr;
  BlockState state = BlockState::kUsed;
  gpu::StreamId stream =
      0;  // free: the stream that may reuse it without an event; used: the stream that allocated it
  std::uint64_t freed_at = 0;  // free: the number of the last free() in it; they grow
  void* owner = nullptr;       // used: what stands on it; the heap does not look at it
  FreeBlocks::iterator place;  // free: in the set of its stream
  FreeBlocks::node_type node;  // else: the set's node, kept so that none is allocated twice
  Part head;                   // free: up to the first border of units; not in whole units
  Part tail;                   // free: from the last border on; not in whole units

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

bool BySizeThenAddress::operator()(const Block* a, const Block* b) const {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->address > b->address;
}
bool BySizeThenAddress::operator()(const Block* a, AtLeast b) const {
  return a->bytes < b.bytes;
}

}  // namespace cachalot::device_memory
