#include "kv/copy_engine.h"

#include <cinttypes>

#include "kv/walk.h"

namespace cachalot::kv {
namespace {

using memory::kLineBytes;

Status check_pages(const EngineCache& cache, const BlockCopy& block, std::size_t number) {
  if (block.pages.size() != cache.pages_per_block()) {
    return Error::make(Code::kInvalidArgument, "copy: block %zu has %zu page ids, expected %u",
                       number, block.pages.size(), cache.pages_per_block());
  }
  for (const std::uint32_t page : block.pages) {
    if (page < cache.pages()) continue;
    return Error::make(Code::kInvalidArgument, "copy: block %zu: page id %u, expected below %u",
                       number, page, cache.pages());
  }
  return {};
}

Status check_extents(std::span<const memory::Extent> pool, std::uint64_t bytes,
                     std::size_t number) {
  std::uint64_t room = 0;
  for (const memory::Extent& extent : pool) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(extent.at) % kLineBytes == 0 &&
                         extent.bytes % kLineBytes == 0;
    if (extent.at == nullptr || !aligned || __builtin_add_overflow(room, extent.bytes, &room)) {
      return Error::make(Code::kInvalidArgument,
                         "copy: block %zu: an extent of %" PRIu64
                         " bytes at %p, expected whole lines",
                         number, extent.bytes, static_cast<void*>(extent.at));
    }
  }
  if (room >= bytes) return {};
  return Error::make(Code::kInvalidArgument,
                     "copy: block %zu: extents of %" PRIu64 " bytes, expected at least %" PRIu64,
                     number, room, bytes);
}

Status check_tokens(const EngineCache& cache, const BlockCopy& block, std::size_t number) {
  std::uint32_t behind = 0;
  for (const TokenRange& range : block.tokens) {
    const bool fits = range.first >= behind && range.first < range.last &&
                      range.last <= cache.geometry().block_tokens;
    if (!fits) {
      return Error::make(Code::kInvalidArgument,
                         "copy: block %zu: tokens %u to %u, expected a range within %u to %u",
                         number, range.first, range.last, behind, cache.geometry().block_tokens);
    }
    behind = range.last;
  }
  return {};
}

// Writes go by whole lines: so each stretch that lies alone in the block must be lines. A hash goes
// on from call to call: so there must be one stretch.
Status check_stretches(const CopyPlan& plan, const BlockCopy& block, std::size_t number) {
  if (plan.is_whole() && block.tokens.empty()) return {};
  std::uint64_t end = 0;  // of the piece before
  std::uint64_t stretches = 0;
  bool whole = true;
  for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& piece) {
    if (stretches == 0 || piece.pool_offset != end) {
      ++stretches;
      whole &= end % kLineBytes == 0 && piece.pool_offset % kLineBytes == 0;
    }
    end = piece.pool_offset + piece.bytes;
  });
  if (block.hash != nullptr && stretches > 1) {
    return Error::make(Code::kInvalidArgument,
                       "copy: block %zu: the chosen tokens and layers are %" PRIu64
                       " stretches of the block, expected one, as the hash goes through it",
                       number, stretches);
  }
  if (whole && (end % kLineBytes == 0 || end == plan.block_bytes())) return {};
  return Error::make(Code::kInvalidArgument,
                     "copy: block %zu: the chosen tokens and layers end inside a line near byte "
                     "%" PRIu64 ", expected whole 64-byte lines",
                     number, end);
}

}  // namespace

Status check_blocks(const EngineCache& cache, const CopyPlan& plan,
                    std::span<const BlockCopy> blocks, Direction direction) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockCopy& block = blocks[i];
    CACHALOT_TRY(check_pages(cache, block, i));
    CACHALOT_TRY(check_extents(block.pool, plan.padded_block_bytes(), i));
    CACHALOT_TRY(check_tokens(cache, block, i));
    if (direction == Direction::kGather || block.hash != nullptr) {
      CACHALOT_TRY(check_stretches(plan, block, i));
    }
  }
  return {};
}

Status check_row_blocks(const RowPlan& plan, std::span<const RowBlock> blocks) {
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CACHALOT_TRY(check_extents(blocks[i].pool, plan.padded_block_bytes(), i));
    if (blocks[i].number < next || blocks[i].number >= plan.blocks()) {
      return Error::make(Code::kInvalidArgument,
                         "copy: block %zu is number %" PRIu64 " of the chain, expected %" PRIu64
                         " to %" PRIu64,
                         i, blocks[i].number, next, plan.blocks() - 1);
    }
    next = blocks[i].number + 1;
  }
  return {};
}

Grain grain_of(std::span<const BlockCopy> blocks) {
  for (const BlockCopy& block : blocks) {
    if (!block.tokens.empty()) return Grain::kToken;
  }
  return Grain::kPage;
}

}  // namespace cachalot::kv
