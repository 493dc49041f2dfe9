// The stitched blocks: built, kept for the next request of their size, dropped least recently used first.
//
// 1. A block is in the index of sizes and in the order of recency if and only if it is not in use.
// 2. range_bytes() is the sum over all blocks; drop_to() brings it down as far as blocks in use allow.
// 3. What is dropped is unmapped only when the work is done that its streams had by then.
// 4. Dropping frees no memory: chunks belong to the primitive memory.
//
// @threads one at a time
#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <vector>

#include "gpu/stream_events.h"
#include "stitch/primitive_memory.h"
#include "stitch/stitched_block.h"

namespace cachalot::stitch {

class StitchedCache {
 public:
  StitchedCache(device_memory::Backend& backend, gpu::StreamEvents& events, PrimitiveMemory& memory)
      : backend_(backend), events_(events), memory_(memory) {}
  ~StitchedCache();

  // Bytes of a stitched block that are free, side by side.
  struct Window {
    StitchedBlock* block = nullptr;
    std::uint64_t offset = 0;
  };

  // A block of exactly these bytes that is available to the stream. Null: none was found.
  // @cost  looks at kExactLooks candidates at most; at one that is stale mostly only at the piece
  //        that was not free last time
  StitchedBlock* find_exact(std::uint64_t bytes, gpu::StreamId stream);
  // Free bytes in a larger block, the smallest first. No block: none was found.
  // @cost  looks at all pieces of kWindowLooks blocks at most
  Window find_window(std::uint64_t bytes, gpu::StreamId stream) const;
  // Whether `holds(piece, skip, bytes)` of each part of its pieces that these bytes lie in.
  template <class Holds>
  static bool all_of(const StitchedBlock& block, std::uint64_t offset, std::uint64_t bytes,
                     Holds holds) {
    for (const StitchedBlock::Piece& piece : block.pieces) {
      if (bytes == 0) break;
      const std::uint64_t skip = std::min(offset, piece.bytes);
      const std::uint64_t needed = std::min(bytes, piece.bytes - skip);
      if (needed != 0 && !holds(piece, skip, needed)) return false;
      offset -= skip;
      bytes -= needed;
    }
    return bytes == 0;
  }

  // Maps the chunks of the pieces side by side, and takes the pieces, which are free: it is in use.
  // @errors kNoSpace: no addresses, or the kernel's mappings are used up; nothing changed
  // @cost   one call to reserve, one a chunk to map, one to set the access
  Result<StitchedBlock*> build(std::vector<StitchedBlock::Piece> pieces, gpu::StreamId stream);

  // Takes bytes of its pieces, which are free. @return their address
  device_memory::Address use(Window window, std::uint64_t bytes, gpu::StreamId stream);
  void put_back(StitchedBlock* block);

  // Drops blocks that are not in use until range_bytes() is at most that. 0: all of them.
  Status drop_to(std::uint64_t range_bytes);
  // Unmaps what was dropped and whose work is done; with `wait`, all of it.
  Status unmap_dropped(bool wait);
  bool has_dropped() const { return !dropped_.empty(); }

  // While this object lives, no chunk is free that a block in use maps, also where the block is used in
  // part only.
  class HeldParts {
   public:
    explicit HeldParts(StitchedCache& cache);
    ~HeldParts();
    HeldParts(const HeldParts&) = delete;
    HeldParts& operator=(const HeldParts&) = delete;

   private:
    device_memory::BlockHeap& heap_;
    std::vector<device_memory::Block*> held_;
  };

  std::uint64_t range_bytes() const { return range_bytes_; }
  std::size_t blocks() const { return in_use_.size() + idle_.size(); }
  Status check() const;

 private:
  static constexpr int kExactLooks = 64;
  static constexpr int kWindowLooks = 64;

  struct Dropped {
    StitchedBlock* block;
    std::vector<gpu::StreamEvents::Event> events;  // of its streams, those that are not done
  };

  bool is_free(const StitchedBlock::Piece& piece, std::uint64_t skip, std::uint64_t bytes,
               gpu::StreamId stream) const;
  bool is_available(StitchedBlock* block, gpu::StreamId stream) const;
  bool find_free_run(const StitchedBlock& block, std::uint64_t bytes, gpu::StreamId stream,
                     std::uint64_t& offset) const;
  Status map_pieces(const StitchedBlock& block, std::uint64_t& mapped_bytes);
  void take_pieces(StitchedBlock* block, std::uint64_t offset, std::uint64_t bytes,
                   gpu::StreamId stream);
  Status drop(StitchedBlock* block);
  void unmap(StitchedBlock* block);

  device_memory::Backend& backend_;
  gpu::StreamEvents& events_;
  PrimitiveMemory& memory_;
  StitchedBlock::BySize by_size_;   // of those not in use
  std::list<StitchedBlock*> idle_;  // the least recently used first
  std::list<StitchedBlock*> in_use_;
  std::deque<StitchedBlock> storage_;
  std::vector<StitchedBlock*> spare_;
  std::deque<Dropped> dropped_;
  std::uint64_t range_bytes_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t ids_ = 0;
};

}  // namespace cachalot::stitch
