// Device memory without fragmentation: a request that no free block can hold gets the chunks of
// several, mapped side by side at new addresses.
//
// A request goes through these states, in this order:
//
//   S1  a free primitive block of exactly its size, else such a stitched one: no driver call
//   S2  a larger primitive block is split, else the beginning of a larger stitched one is used: no
//       driver call. Not where much lies free in parts of chunks, and a stitch would take fewer chunks
//   S3  free primitive blocks, from the largest down, are stitched; the last one is split
//   S4  the memory that is missing is created; then as S2 or S3. Where a program stitches for ever, new
//       memory instead of S3 (stitch_budget.h)
//   S5  out of memory: what other streams freed is waited for, what is cached is given back, and the
//       request goes through all of it once more, then fails
//
// Training asks for the same sizes in every iteration: the stitched blocks of the first ones stay
// cached, and S1 takes over.
//
// 1. Every used byte belongs to one request or slab: primitive blocks do not overlap, and a stitched
//    block in use holds a used primitive block for each of its pieces.
// 2. Memory that is created is never more than what is missing, rounded up to a chunk.
//
// @source GMLake (arXiv 2401.08156) §4. Differs: blocks are bytes, not chunks, and only the ends of a
//         stitched block may lie inside a chunk; free neighbours of a segment merge; the beginning
//         of a larger stitched block may serve a request; other streams' memory is taken by events
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device_memory/tracked_allocator.h"
#include "stitch/placement_history.h"
#include "stitch/primitive_memory.h"
#include "stitch/small_pool.h"
#include "stitch/stitch_budget.h"
#include "stitch/stitch_options.h"
#include "stitch/stitched_cache.h"
#include "stitch/stream_drains.h"

namespace cachalot::stitch {

// How often each state was what served a request above small_request_bytes.
struct StitchStates {
  std::uint64_t repeated = 0;         // S1, at the place of an iteration ago
  std::uint64_t exact_primitive = 0;  // S1
  std::uint64_t exact_stitched = 0;
  std::uint64_t split = 0;  // S2
  std::uint64_t window = 0;
  std::uint64_t stitched = 0;  // S3
  std::uint64_t created = 0;   // S4, without a stitch
  std::uint64_t created_and_stitched = 0;
  std::uint64_t slabs = 0;  // chunks for small requests that had to be created
};

class StitchAllocator final : public device_memory::TrackedAllocator {
 public:
  // @errors kInvalidArgument: as StitchOptions::check()
  static Result<std::unique_ptr<StitchAllocator>> create(device_memory::Backend& backend,
                                                         gpu::StreamEvents& events,
                                                         const StitchOptions& options = {});

  const char* name() const override { return "stitch"; }
  StitchStates states() const;
  std::uint64_t stitched_range_bytes() const;  // addresses of the stitched blocks that are kept

 private:
  enum Kind : std::uint32_t { kSmall, kPrimitive, kStitched };
  enum class Limits { kObeyed, kIgnored };  // frag_limit_bytes

  StitchAllocator(device_memory::Backend& backend, gpu::StreamEvents& events,
                  const StitchOptions& options);

  Result<Placed> do_allocate(std::uint64_t bytes, gpu::StreamId stream) override;
  void do_free(const Placed& placed) override;
  Status do_release_cached() override;
  Status do_check() const override;
  std::uint64_t do_reserved_bytes() const override { return memory_.reserved_bytes(); }
  std::uint64_t do_used_bytes() const override;

  Result<Placed> allocate_small(std::uint64_t bytes, gpu::StreamId stream);
  Result<Placed> allocate_large(std::uint64_t bytes, gpu::StreamId stream);
  bool may_use(const device_memory::Block& block, gpu::StreamId stream);
  // Whether all of it is free, and of this stream or of others whose work on it is done.
  bool may_use(device_memory::Segment* segment, device_memory::Address address, std::uint64_t bytes,
               gpu::StreamId stream);
  // Makes it one free block of the stream, which may_use() it. @return the block that has it
  device_memory::Block* claim(device_memory::Segment* segment, device_memory::Address address,
                              std::uint64_t bytes, gpu::StreamId stream);
  std::optional<Placed> place_again(const Place& place, std::uint64_t bytes, gpu::StreamId stream);
  Place place_of(const Placed& placed) const;
  Result<Placed> allocate_anew(std::uint64_t bytes, gpu::StreamId stream);
  // S1 to S3. Nothing: the request needs more memory.
  Result<std::optional<Placed>> find(std::uint64_t bytes, gpu::StreamId stream, Limits limits);
  Result<std::optional<Placed>> stitch(std::uint64_t bytes, gpu::StreamId stream);
  Result<Placed> create(std::uint64_t bytes, gpu::StreamId stream, Limits limits);
  Result<Placed> create_alone(std::uint64_t bytes, gpu::StreamId stream);
  // New memory although what is free could be stitched.
  Result<Placed> buy(std::uint64_t bytes, gpu::StreamId stream);

  // Whether the request gets new memory, if there is any, and not a stitch.
  bool may_buy(std::uint64_t bytes, Limits limits) const;
  bool is_worth_stitching(std::uint64_t bytes, std::uint64_t missing, gpu::StreamId stream,
                          Limits limits);
  // Whether stitching it takes fewer whole chunks than the beginning of `block` does, and that matters.
  bool saves_chunks(std::uint64_t bytes, const device_memory::Block* block, gpu::StreamId stream);
  // Whether new memory for it goes to the growing segment, where blocks share chunks.
  bool grows(std::uint64_t bytes) const {
    return bytes < StitchOptions::kMediumRequestBytes || bytes % options_.chunk_bytes != 0;
  }

  std::uint64_t stitched_limit_bytes() const;

  // A chunk of free memory; null: there is none.
  device_memory::Block* chunk_for_slab(gpu::StreamId stream);
  Result<device_memory::Block*> slab(gpu::StreamId stream);
  // What would have to be created before the request can be stitched.
  std::uint64_t missing_bytes(std::uint64_t bytes, gpu::StreamId stream);
  std::vector<StitchedBlock::Piece> gather(std::uint64_t bytes, gpu::StreamId stream);
  // Takes over at least `bytes` that other streams freed, if there are so many: of what their work is
  // done with, or, with `wait`, of all.
  Status adopt(std::uint64_t bytes, gpu::StreamId stream, bool wait);
  void free_empty_slabs();

  Placed placed(device_memory::Block* block, std::uint64_t& state);
  Placed use(StitchedCache::Window window, std::uint64_t bytes, gpu::StreamId stream,
             std::uint64_t& state);

  const StitchOptions options_;
  PrimitiveMemory memory_;
  StitchedCache stitched_;
  SmallPool small_;
  StreamDrains drains_;
  PlacementHistory history_;
  StitchBudget budget_;
  StitchStates states_;
  bool used_driver_ = false;  // during this allocate()
};

}  // namespace cachalot::stitch
