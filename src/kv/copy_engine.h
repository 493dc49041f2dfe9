// Gather and scatter: between an engine's paged cache and blocks of the pool, any number of blocks
// a call. Implementations: kv/cpu (this processor) and kv/cuda (a GPU). They give equal bytes and equal
// checksums; one test suite runs against both.
//
// 1. A call that is refused has moved no byte.
// 2. gather() writes whole lines of the pool and nothing else; what is behind a block's last byte
//    in its last line becomes zero. Before it returns, every thread that wrote has order()ed.
// 3. scatter() invalidates what it reads once, before it reads (R3), and validates nothing: R6 is
//    the caller's.
// 4. A block's hash runs over its lines in pool order, so its checksum is that of the same bytes
//    put() flat.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

#include "kv/plan.h"
#include "kv/row_plan.h"
#include "memory/coherence.h"

namespace cachalot::kv {

using cachalot::TokenRange;

// One block of a call.
struct BlockCopy {
  // Where its bytes are in the pool: extents in order, 64-byte aligned, multiples of 64 bytes, at
  // least the block's bytes in all.
  std::span<const memory::Extent> pool;
  // The engine's pages, pages_per_block() of them, in the order of their tokens.
  std::span<const std::uint32_t> pages;
  // Which tokens: ascending, disjoint; none: all. A gather of some tokens, or of some layers,
  // must cover whole lines of the block.
  std::span<const TokenRange> tokens = {};
  // If not null: takes the lines that are copied. Made for padded_block_bytes(); a block that is
  // copied layer by layer, first to last, gets the same one each time. Whole lines then, here too,
  // and in one stretch: layers must be outermost in the block order.
  memory::FusedHash* hash = nullptr;
};

// One block of a call that reads rows.
struct RowBlock {
  std::span<const memory::Extent> pool;  // as BlockCopy::pool
  std::uint64_t number = 0;              // in the plan's chain
};

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Engine pages into the pool.
  // @errors kInvalidArgument: a page id, a range or an extent that does not fit; kIo: a device failed, and
  //         nothing is known of the copy: it may still be in flight. After any other error it is not
  virtual Status gather(std::span<const BlockCopy> blocks, LayerRange layers = {}) = 0;

  // Pool blocks into the engine's pages. Two blocks of a call share no page. @errors as gather()
  virtual Status scatter(std::span<const BlockCopy> blocks, LayerRange layers = {}) = 0;

  // The chosen rows of blocks into the engine's pages.
  // @param plan    of this engine's cache and order
  // @param blocks  numbers ascending
  // @errors as gather(), kInvalidArgument: a block that is not in the chain
  virtual Status scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks) = 0;

  virtual const EngineCache& cache() const = 0;
  virtual const BlockOrder& order() const = 0;
};

// What every engine checks before it moves a byte.
Status check_blocks(const EngineCache& cache, const CopyPlan& plan,
                    std::span<const BlockCopy> blocks, Direction direction);

Status check_row_blocks(const RowPlan& plan, std::span<const RowBlock> blocks);

// The finest grain that the blocks of a call ask for.
Grain grain_of(std::span<const BlockCopy> blocks);

}  // namespace cachalot::kv
