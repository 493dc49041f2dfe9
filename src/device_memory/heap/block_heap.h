// Segments cut into blocks: split, merge, and find free ones by size or address. It knows nothing of
// devices; the caching, expandable and stitching allocators are rules on top of it.
//
// 1. The blocks of a segment cover it without gaps or overlaps, in the order of the list.
// 2. Two free neighbours of the same stream do not exist: they are merged.
// 3. A block is in the set of its stream if and only if it is free, and in those of heads and tails if it
//    has one.
// 4. free_bytes, and whole_bytes of each stream, are the sums over its set.
// 5. find() gives the block that covers an address.
//
// @threads one at a time
// @cost    every call O(log blocks), find() O(log64 units of the segment); no allocation once warm
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device_memory/heap/block.h"
#include "device_memory/heap/part_index.h"

namespace cachalot::device_memory {

// The free blocks that a stream may use at once.
struct FreePool {
  FreeBlocks blocks;
  PartIndex<&Block::head> heads;
  PartIndex<&Block::tail> tails;
  std::uint64_t free_bytes = 0;
  std::uint64_t whole_bytes = 0;  // in whole units, which is what can be stitched
};

class BlockHeap {
 public:
  enum class Parts { kIgnored, kKnown };

  // @param unit_bytes  a power of two: what whole_bytes counts in
  // @param parts       kKnown: heads and tails of free blocks can be searched, too
  explicit BlockHeap(std::uint64_t unit_bytes, Parts parts = Parts::kIgnored)
      : unit_bytes_(unit_bytes), has_parts_(parts == Parts::kKnown) {}
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // A segment of one free block. bytes 0: it has none yet.
  Segment* add_segment(Address base, std::uint64_t bytes, gpu::StreamId stream, void* owner);
  // Free bytes at the segment's end; merged with a free block of the stream before them.
  // @return the free block that ends the segment now
  Block* extend(Segment* segment, std::uint64_t bytes, gpu::StreamId stream);
  // Nothing of it may be used.
  void remove_segment(Segment* segment);

  FreePool& pool(gpu::StreamId stream);

  // The smallest free block of at least `bytes`, the first of equals; null: none.
  Block* best_fit(gpu::StreamId stream, std::uint64_t bytes);

  // Uses [address, address + bytes) of the free block that has it; the rest stays free.
  // @return the used block, which is exactly that
  Block* take(Block* free_block, Address address, std::uint64_t bytes, void* owner);
  // As take() from the block's beginning.
  Block* take(Block* free_block, std::uint64_t bytes, void* owner) {
    return take(free_block, free_block->address, bytes, owner);
  }
  // @return the free block that has it now
  Block* free(Block* used);
  // [address, address + bytes) of the free block that has it becomes another stream's. @return as free()
  Block* give(Block* free_block, Address address, std::uint64_t bytes, gpu::StreamId stream);
  Block* give(Block* free_block, gpu::StreamId stream) {
    return give(free_block, free_block->address, free_block->bytes, stream);
  }
  // Free memory that is no more. @return the absent block, which is exactly that range
  Block* remove_memory(Block* free_block, Address address, std::uint64_t bytes);

  Block* find(Segment* segment, Address address) const;

  std::uint64_t whole_bytes(const Block* block) const;
  // The whole units in it, counted from its segment's base; none where first >= end.
  Address first_whole(const Block* block) const {
    const Address base = block->segment->base;
    return base + ((block->address - base + unit_bytes_ - 1) & ~(unit_bytes_ - 1));
  }
  Address end_whole(const Block* block) const {
    const Address base = block->segment->base;
    return base + ((block->end() - base) & ~(unit_bytes_ - 1));
  }

  std::uint64_t used_bytes() const { return used_bytes_; }
  const std::vector<Segment*>& segments() const { return segments_; }
  // The number of the last free().
  std::uint64_t frees() const { return frees_; }

  // The first invariant above that does not hold. @cost all blocks
  Status check() const;

 private:
  Block* make_block(Segment* segment, Address address, std::uint64_t bytes);
  void drop_block(Block* block);
  Block* split(Block* block, Address at);
  Block* cut(Block* block, Address address, std::uint64_t bytes);
  void merge_next(Block* block);
  Block* merge_around(Block* block);
  void enter(Block* block);
  void leave(Block* block);
  std::uint64_t unit_of(const Segment* segment, Address address) const {
    return (address - segment->base) / unit_bytes_;
  }
  void note_start(Block* block);
  void forget_start(Block* block);
  std::uint64_t head_of(const Block* block) const;
  std::uint64_t tail_of(const Block* block) const;
  bool is_entered(const Block* block) const;
  Status check_segment(const Segment& segment) const;

  std::uint64_t unit_bytes_;
  bool has_parts_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t frees_ = 0;
  std::uint64_t segment_ids_ = 0;
  std::unordered_map<gpu::StreamId, std::unique_ptr<FreePool>> pools_;
  FreePool* recent_pool_ = nullptr;
  gpu::StreamId recent_stream_ = 0;
  std::vector<Segment*> segments_;
  std::deque<Segment> segment_storage_;
  std::vector<Segment*> spare_segments_;
  std::deque<Block> block_storage_;
  std::vector<Block*> spare_blocks_;
};

}  // namespace cachalot::device_memory
