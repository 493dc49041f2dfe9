// Chunks of several primitive blocks, mapped once more, side by side: what a request gets that no
// primitive block can hold.
//
// Its pieces are byte ranges of primitive blocks. All but the ends are whole chunks: the first piece
// may begin, and the last may end, inside a chunk whose other bytes belong to another block, so that
// nothing is rounded up. While it is in use, a used block stands for each piece; while it is not,
// its pieces may be free or serve others, and it is available when all of them are free.
#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <vector>

#include "device_memory/heap/block.h"

namespace cachalot::stitch {

struct StitchedBlock;

// Of equal ones the one that was used last comes first: its chunks are the likeliest to be free.
struct BySizeThenRecency {
  using is_transparent = void;
  inline bool operator()(const StitchedBlock* a, const StitchedBlock* b) const;
  inline bool operator()(const StitchedBlock* a, device_memory::AtLeast b) const;
};

struct StitchedBlock {
  using BySize = std::set<StitchedBlock*, BySizeThenRecency>;

  struct Piece {
    device_memory::Segment* segment;
    device_memory::Address address;
    std::uint64_t bytes;
  };

  std::uint64_t id = 0;              // never given twice; 0: dropped
  device_memory::Address range = 0;  // of addresses that it has reserved
  std::uint64_t range_bytes = 0;
  device_memory::Address address = 0;  // where its bytes begin
  std::uint64_t bytes = 0;
  std::vector<Piece> pieces;
  std::size_t blocker = 0;     // the piece that was not free at the last check
  std::uint64_t last_use = 0;  // a number that grows
  // The stream that used all of it last, and those that used a part since: their work may touch its addresses.
  std::vector<gpu::StreamId> streams;
  bool is_in_use = false;
  std::vector<device_memory::Block*>
      used;  // in use: a block for each piece, or for the first of them

  std::list<StitchedBlock*>::iterator place;  // among those in use, or those that are not
  BySize::iterator by_size;                   // not in use
  BySize::node_type node;                     // in use: the set's node
};

bool BySizeThenRecency::operator()(const StitchedBlock* a, const StitchedBlock* b) const {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->last_use > b->last_use;
}
bool BySizeThenRecency::operator()(const StitchedBlock* a, device_memory::AtLeast b) const {
  return a->bytes < b.bytes;
}

}  // namespace cachalot::stitch
