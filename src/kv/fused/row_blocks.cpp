#include "kv/fused/row_blocks.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "kv/fused/call.h"

namespace cachalot::kv {
namespace {

std::uint64_t address_of(const memory::Extent& extent) {
  return reinterpret_cast<std::uintptr_t>(extent.at);
}

// What all rows have in common.
struct Common {
  std::uint64_t bytes = 0;                            // the longest length that divides all
  std::uint64_t first = ~std::uint64_t{0}, last = 0;  // addresses of the engine's
  std::uint64_t engine_bits = 0, pool_bits = 0;       // of all, or-ed: their alignment

  explicit Common(std::span<const RowPiece> pieces) {
    for (const RowPiece& piece : pieces) {
      bytes = std::gcd(bytes, piece.pool.bytes);
      first = std::min(first, piece.engine);
      last = std::max(last, piece.engine + piece.pool.bytes);
      pool_bits |= address_of(piece.pool);
    }
    for (const RowPiece& piece : pieces) engine_bits |= piece.engine - first;
    engine_bits |= bytes;
    pool_bits |= bytes;
  }
};

// The largest power of two that divides what was or-ed, `most` at most.
std::uint64_t largest_unit(std::uint64_t bits, std::uint64_t most) {
  return std::uint64_t{1} << std::countr_zero(bits | most);
}

Plan plan_of(std::uint64_t bytes, std::uint64_t engine_unit, std::uint64_t pool_unit) {
  Plan plan;
  plan.parts = plan.dimensions = 1;
  plan.token_dimension = 0;
  // A step is where in a unit of the pool a row begins: no step is another page.
  plan.dimension[0].count = plan.dimension[0].steps_per_page =
      static_cast<std::uint32_t>(kUnitBytes / pool_unit);
  plan.part[0].run_bytes = bytes;
  plan.part[0].page_stride = engine_unit;
  plan.part[0].pool_stride[0] = pool_unit;
  return plan;
}

}  // namespace

std::optional<RowBlocks> RowBlocks::make(std::span<const RowPiece> pieces) {
  constexpr std::uint64_t kMostEngineUnit = 4096;
  const Common common(pieces);
  const std::uint64_t engine_unit = largest_unit(common.engine_bits, kMostEngineUnit);
  const std::uint64_t pool_unit = largest_unit(common.pool_bits, kUnitBytes);
  if ((common.last - common.first) / engine_unit > std::numeric_limits<std::uint32_t>::max())
    return std::nullopt;
  RowBlocks rows(CopyPlan::of_blocks(plan_of(common.bytes, engine_unit, pool_unit),
                                     common.bytes + kUnitBytes - pool_unit));
  rows.base_ = common.first;
  for (const RowPiece& piece : pieces) {
    for (std::uint64_t done = 0; done < piece.pool.bytes; done += common.bytes) {
      const std::uint64_t within = (address_of(piece.pool) + done) % kUnitBytes;
      rows.pool_.push_back({piece.pool.at + done - within, common.bytes + within});
      rows.pages_.push_back(
          static_cast<std::uint32_t>((piece.engine + done - common.first) / engine_unit));
      const auto step = static_cast<std::uint32_t>(within / pool_unit);
      rows.tokens_.push_back({step, step + 1});
    }
  }
  return rows;
}

std::vector<BlockCopy> RowBlocks::blocks() const {
  std::vector<BlockCopy> blocks;
  blocks.reserve(pool_.size());
  for (std::size_t i = 0; i < pool_.size(); ++i)
    blocks.push_back({{&pool_[i], 1}, {&pages_[i], 1}, {&tokens_[i], 1}});
  return blocks;
}

}  // namespace cachalot::kv
