// The corners of a stitched block: it may begin with the head of one free block, which ends with a chunk, and end
// with the tail of another, which begins with one. What they serve is memory in chunks that are
// shared with another block, and that only a small request could use.
#pragma once

#include <cstdint>

#include "device_memory/heap/block_heap.h"

namespace cachalot::stitch {

struct Corners {
  const device_memory::Block* head = nullptr;
  const device_memory::Block* tail = nullptr;
  std::uint64_t head_bytes = 0;  // the last ones of the head
  std::uint64_t tail_bytes = 0;  // the first ones of the tail

  std::uint64_t bytes() const { return head_bytes + tail_bytes; }
};

// Corners for a request, so that it takes as few whole chunks as can be, and then leaves little of the corners.
//
// @return none where there are none; never more than `bytes`
// @cost   O(1): a few corners are looked at
Corners find_corners(const device_memory::FreePool& pool, std::uint64_t chunk_bytes,
                     std::uint64_t bytes);

}  // namespace cachalot::stitch
