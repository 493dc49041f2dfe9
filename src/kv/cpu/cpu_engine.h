// The copy engine of this processor: engine pages in ordinary memory, the pool through a domain,
// nothing in between.
//
// gather   fragments in pool order become runs of whole lines, written past the cache where the
//          domain does, the next fragments prefetched meanwhile
// scatter  the block's lines are invalidated all at once, then fragments of any size are copied
//
// @threads  any number may use one engine at a time; calls share nothing
#pragma once

#include <memory>

#include "kv/copy_engine.h"
#include "kv/cpu/copy_homes.h"

namespace cachalot::kv {

struct CpuOptions {
  // A call's blocks are divided among so many threads, the caller's among them; they are started
  // and ended by the call. Each order()s what it wrote.
  std::uint32_t threads = 1;
  // Which cores copy what; null: any. With homes a call divides its threads as in_homes() says.
  std::shared_ptr<const CopyHomes> homes = {};
};

class CpuEngine final : public CopyEngine {
 public:
  // @param cache, order, domain  outlive the engine
  // @errors kInvalidArgument: no thread at all
  static Result<CpuEngine> make(const EngineCache& cache, const BlockOrder& order,
                                memory::Domain& domain, const CpuOptions& options = {});

  // @cost a gather: reading and writing each byte once; no allocation with one thread
  Status gather(std::span<const BlockCopy> blocks, LayerRange layers = {}) override;
  Status scatter(std::span<const BlockCopy> blocks, LayerRange layers = {}) override;

  // @cost some 40 ns a row of 256 bytes that no cache holds (Zen 5)
  Status scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks) override;

  const EngineCache& cache() const override { return *cache_; }
  const BlockOrder& order() const override { return *order_; }

 private:
  CpuEngine(const EngineCache& cache, const BlockOrder& order, memory::Domain& domain,
            const CpuOptions& options)
      : cache_(&cache), order_(&order), domain_(&domain), options_(options) {}

  Status copy(std::span<const BlockCopy> blocks, LayerRange layers, Direction direction);
  // Calls f(blocks) for the share of each thread. @param block_bytes  that are copied of each
  template <class Block, class F>
  void in_shares(std::span<const Block> blocks, std::uint64_t block_bytes, F&& f) const;
  void gather_share(const CopyPlan& plan, std::span<const BlockCopy> blocks) const;
  void scatter_share(const CopyPlan& plan, std::span<const BlockCopy> blocks) const;
  void prepare_whole(const CopyPlan& plan, const BlockCopy& block) const;
  std::byte* place_of(const Fragment& fragment, const BlockCopy& block) const {
    return cache_->bases()[fragment.tensor] + fragment.engine_offset +
           block.pages[fragment.page] * fragment.page_stride;
  }

  const EngineCache* cache_;
  const BlockOrder* order_;
  memory::Domain* domain_;
  CpuOptions options_;
};

}  // namespace cachalot::kv
