#include "kv/fused/tables.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace cachalot::kv {
namespace {

template <class T>
std::size_t append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const std::size_t at = (bytes.size() + alignof(T) - 1) / alignof(T) * alignof(T);
  bytes.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size_bytes());
  return at;
}

// Lanes that make a line of a GPU's, 128 bytes, with one access.
constexpr std::uint32_t kLineLanes = 128 / kUnitBytes;

std::uint64_t longest_run(const Plan& plan) {
  std::uint64_t longest = 0;
  for (std::uint32_t k = 0; k < plan.parts; ++k) {
    longest = std::max(longest, plan.part[k].run_bytes);
  }
  return longest;
}

std::uint32_t alignment_of(std::uint64_t all_or_ed) {
  constexpr std::uint64_t kMost = 256;
  return static_cast<std::uint32_t>(std::uint64_t{1} << std::countr_zero(all_or_ed | kMost));
}

// What is put into the tables, before they are one piece.
struct Lists {
  std::vector<CallBlock> blocks;
  std::vector<PoolPiece> pieces;
  std::vector<std::uint32_t> pages, tokens;
};

// The block's bytes only: extents may be longer.
Status add_pieces(const BlockCopy& block, std::uint64_t padded, const PoolMap* pool, Lists& lists) {
  std::uint64_t offset = 0;
  for (const memory::Extent& extent : block.pool) {
    if (offset == padded) break;
    memory::Extent used{extent.at, std::min(extent.bytes, padded - offset)};
    while (used.bytes != 0) {
      PoolPart part{reinterpret_cast<std::uintptr_t>(used.at), used.bytes};
      if (pool != nullptr) {
        CACHALOT_TRY_ASSIGN(part, pool->find_part(used));
      }
      lists.pieces.push_back({part.at, offset});
      offset += part.bytes;
      used = {used.at + part.bytes, used.bytes - part.bytes};
    }
  }
  lists.pieces.push_back({0, offset});
  return {};
}

CallBlock begin_of(const Lists& lists, std::uint64_t items) {
  return {items, static_cast<std::uint32_t>(lists.pieces.size()),
          static_cast<std::uint32_t>(lists.pages.size()),
          static_cast<std::uint32_t>(lists.tokens.size()), 0};
}

std::uint32_t add_tokens(const BlockCopy& block, Lists& lists) {
  std::uint32_t count = 0;
  for (const TokenRange& range : block.tokens) {
    for (std::uint32_t token = range.first; token < range.last; ++token, ++count) {
      lists.tokens.push_back(token);
    }
  }
  return count;
}

}  // namespace

WorkShape shape_for(const Plan& plan, std::uint32_t most_lanes) {
  const std::uint64_t units = (longest_run(plan) + kUnitBytes - 1) / kUnitBytes;
  std::uint64_t wanted = std::bit_ceil(std::max<std::uint64_t>(units, 1));
  if (wanted > kLineLanes) wanted = std::max<std::uint64_t>(wanted / 2, kLineLanes);
  const auto lanes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, std::max(most_lanes, 1u)));
  constexpr std::uint32_t kUnitsALane = 4;  // kUnitsAtOnce of copy_thread.h
  return {lanes, lanes * kUnitsALane * kUnitBytes};
}

std::uint32_t pool_alignment(const Plan& plan) {
  std::uint64_t all = 0;
  for (std::uint32_t k = 0; k < plan.parts; ++k) {
    all |= plan.part[k].pool_offset | plan.part[k].run_bytes;
    for (std::uint32_t d = 0; d < plan.dimensions; ++d) all |= plan.part[k].pool_stride[d];
  }
  return alignment_of(all);
}

std::uint32_t engine_alignment(const Plan& plan, std::span<const std::uint64_t> tensors) {
  std::uint64_t all = 0;
  for (const std::uint64_t base : tensors) all |= base;
  for (std::uint32_t k = 0; k < plan.parts; ++k) {
    all |= plan.part[k].engine_offset | plan.part[k].page_stride;
    for (std::uint32_t d = 0; d < plan.dimensions; ++d) all |= plan.part[k].engine_stride[d];
  }
  return alignment_of(all);
}

Result<CallTables> CallTables::make(const CopyPlan& plan, std::span<const BlockCopy> blocks,
                                    std::span<const std::uint64_t> tensors, const PoolMap* pool,
                                    const WorkShape& shape) {
  const Plan& arithmetic = plan.arithmetic();
  CallTables out;
  FusedCall& call = out.call_;
  call = FusedCall{};
  call.plan = arithmetic;
  call.block_bytes = plan.block_bytes();
  call.padded_bytes = plan.padded_block_bytes();
  call.block_count = static_cast<std::uint32_t>(blocks.size());
  call.lanes = shape.lanes;
  call.item_bytes = shape.item_bytes;
  // A fragment that begins inside a unit may need an item more.
  const std::uint32_t aligned = std::min(pool_alignment(arithmetic), kUnitBytes);
  const std::uint64_t longest = longest_run(arithmetic) + kUnitBytes - aligned;
  const std::uint64_t per_fragment = (longest + shape.item_bytes - 1) / shape.item_bytes;
  call.items_per_fragment = static_cast<std::uint32_t>(per_fragment);
  Lists lists;
  lists.blocks.reserve(blocks.size() + 1);
  std::uint64_t most_items = 0, least_items = ~std::uint64_t{0};  // of a block
  for (const BlockCopy& block : blocks) {
    CallBlock row = begin_of(lists, call.items);
    CACHALOT_TRY(add_pieces(block, call.padded_bytes, pool, lists));
    lists.pages.insert(lists.pages.end(), block.pages.begin(), block.pages.end());
    row.tokens = add_tokens(block, lists);
    lists.blocks.push_back(row);
    const std::uint64_t items = fragment_count(arithmetic, row.tokens) * per_fragment;
    most_items = std::max(most_items, items);
    least_items = std::min(least_items, items);
    call.items += items;
  }
  lists.blocks.push_back(begin_of(lists, call.items));
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (blocks.size() >= kMost || lists.pieces.size() > kMost || lists.pages.size() > kMost ||
      lists.tokens.size() > kMost || per_fragment > kMost || most_items > kMost) {
    return Error::make(
        Code::kInvalidArgument,
        "copy: %zu blocks with %zu extents, %zu pages, %zu tokens in one call and %" PRIu64
        " pieces in one block, expected below 2^32 of each",
        blocks.size(), lists.pieces.size(), lists.pages.size(), lists.tokens.size(), most_items);
  }
  if (most_items == least_items && call.items <= kMost)
    call.block_items = static_cast<std::uint32_t>(most_items);
  append<CallBlock>(out.bytes_, lists.blocks);
  call.pieces_at = append<PoolPiece>(out.bytes_, lists.pieces);
  call.tensors_at = append<std::uint64_t>(out.bytes_, tensors);
  call.pages_at = append<std::uint32_t>(out.bytes_, lists.pages);
  call.tokens_at = append<std::uint32_t>(out.bytes_, lists.tokens);
  return out;
}

FusedCall CallTables::call_at(std::uint64_t at) const {
  FusedCall call = call_;
  call.tables = at;
  return call;
}

FusedLaunch CallTables::launch_at(std::uint64_t at) const {
  FusedLaunch launch{};
  launch.call = call_at(at);
  CACHALOT_CHECK(at != 0 || bytes_.size() <= sizeof launch.tables);
  if (at == 0) std::memcpy(launch.tables, bytes_.data(), bytes_.size());
  return launch;
}

}  // namespace cachalot::kv
