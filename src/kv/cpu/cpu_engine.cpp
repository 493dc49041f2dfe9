#include "kv/cpu/cpu_engine.h"

#include <algorithm>

#include "kv/cpu/in_homes.h"
#include "kv/cpu/in_threads.h"
#include "kv/cpu/run_batch.h"
#include "kv/walk.h"

namespace cachalot::kv {

Result<CpuEngine> CpuEngine::make(const EngineCache& cache, const BlockOrder& order,
                                  memory::Domain& domain, const CpuOptions& options) {
  if (options.threads == 0) {
    return Error::make(Code::kInvalidArgument, "copy engine: 0 threads, expected at least 1");
  }
  return CpuEngine(cache, order, domain, options);
}

Status CpuEngine::gather(std::span<const BlockCopy> blocks, LayerRange layers) {
  return copy(blocks, layers, Direction::kGather);
}

Status CpuEngine::scatter(std::span<const BlockCopy> blocks, LayerRange layers) {
  return copy(blocks, layers, Direction::kScatter);
}

template <class Block, class F>
void CpuEngine::in_shares(std::span<const Block> blocks, std::uint64_t block_bytes, F&& f) const {
  if (options_.homes != nullptr)
    return in_homes(*options_.homes, options_.threads, block_bytes, blocks, f);
  in_threads(options_.threads, blocks.size(),
             [&](std::size_t first, std::size_t last) { f(blocks.subspan(first, last - first)); });
}

Status CpuEngine::copy(std::span<const BlockCopy> blocks, LayerRange layers, Direction direction) {
  CACHALOT_TRY_ASSIGN(const CopyPlan plan,
                      CopyPlan::compile(*cache_, *order_, layers, grain_of(blocks)));
  CACHALOT_TRY(check_blocks(*cache_, plan, blocks, direction));
  in_shares(blocks, plan.copied_bytes(), [&](std::span<const BlockCopy> share) {
    direction == Direction::kGather ? gather_share(plan, share) : scatter_share(plan, share);
  });
  return {};
}

void CpuEngine::gather_share(const CopyPlan& plan, std::span<const BlockCopy> blocks) const {
  GatherBatch batch(*domain_);
  for (const BlockCopy& block : blocks) {
    batch.begin_block(block.pool, block.hash);
    for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& fragment) {
      batch.add(fragment.pool_offset, place_of(fragment, block), fragment.bytes);
    });
    batch.end_block();
  }
  batch.flush();
  // The publisher orders its own stores only, so each thread orders what it stored.
  domain_->order();
}

void CpuEngine::scatter_share(const CopyPlan& plan, std::span<const BlockCopy> blocks) const {
  ScatterBatch parts(*domain_, Preparation::kByBatch), wholes(*domain_, Preparation::kDone);
  for (const BlockCopy& block : blocks) {
    const bool whole = plan.is_whole() && block.tokens.empty();
    if (whole) prepare_whole(plan, block);
    ScatterBatch& batch = whole ? wholes : parts;
    batch.begin_block(block.pool, block.hash);
    for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& fragment) {
      batch.add(fragment.pool_offset, place_of(fragment, block), fragment.bytes);
    });
  }
  parts.flush();
  wholes.flush();
}

Status CpuEngine::scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks) {
  CACHALOT_TRY(check_row_blocks(plan, blocks));
  in_shares(blocks, plan.padded_block_bytes(), [&](std::span<const RowBlock> share) {
    RowWalk walk(plan);
    ScatterBatch batch(*domain_, Preparation::kByBatch);
    for (const RowBlock& block : share) {
      batch.begin_block(block.pool, nullptr);
      walk.for_each_row(block.number, [&](const Row& row) {
        batch.add(row.pool_offset, cache_->bases()[row.tensor] + row.engine_offset, row.bytes);
      });
    }
    batch.flush();
  });
  return {};
}

// Every line of the block, once (R3).
void CpuEngine::prepare_whole(const CopyPlan& plan, const BlockCopy& block) const {
  std::uint64_t left = plan.padded_block_bytes();
  for (const memory::Extent& extent : block.pool) {
    const memory::Extent part{extent.at, std::min(extent.bytes, left)};
    domain_->prepare_read(&part, 1);
    left -= part.bytes;
  }
}

}  // namespace cachalot::kv
