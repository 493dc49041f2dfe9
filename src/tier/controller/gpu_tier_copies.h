// L1 on a GPU, and L2 in page-locked memory: each is read and written by the copy engines of kv/cuda, on streams of
// the library, so that neither the engine's stream nor its multiprocessors wait for PCIe.
//
// 1. A load begins after the mark: what the engine's stream did before with the pages, it has done. A backup begins
//    after the mark of the last commit: what it copies is computed.
// 2. A layer of a load is said to be there as soon as its copy is launched: the engine's stream follows the copy's event,
//    and no thread of the engine waits for PCIe.
// 3. A copy is waited for before its slots are given away. So no two copies of a slot are in flight.
// 4. After a failure the GPU's memory is not used any more, and L2 and its registration stay until the process ends,
//    because a copy may be in flight.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "kv/cuda/cuda_engine.h"
#include "tier/controller/tier_copies.h"

namespace cachalot::tier {

// Bytes as the driver locks them, and HugeVector aligns them.
constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
  return (bytes + kPage - 1) / kPage * kPage;
}

class GpuTierCopies final : public TierCopies {
 public:
  // @param memory  L2's, of whole pages; empty: no L2
  // @param caches  of the device's cache, and of L2 in `memory`
  // @errors as TierCopies::make
  // @cost   page-locks L2: 25 to 40 ms a GiB (H200)
  static Result<std::unique_ptr<TierCopies>> make(kv::EngineCache device,
                                                  base::HugeVector<std::byte> memory,
                                                  TierCaches caches,
                                                  const kv::Gpus::Open& open_gpu);
  ~GpuTierCopies() override;

  bool is_usable() const override {
    return !has_failed_.load(std::memory_order_relaxed) && !gpu_->is_lost();
  }
  Status check() const override;
  Result<Mark> mark() const override;
  Status load(std::span<const SlotPair> blocks, const Mark& mark,
              const FinishLayer& finish_layer) override;
  Status follow(const Mark& mark) const override;
  Status back_up(std::span<const SlotPair> blocks, const Mark& mark) override;

 private:
  // The blocks of one copy, as the copy engine takes them.
  struct Copies {
    std::vector<memory::Extent> extents;
    std::vector<std::uint32_t> pages;
    std::vector<kv::BlockCopy> blocks;
  };

  GpuTierCopies(kv::EngineCache device, base::HugeVector<std::byte> memory, TierCaches caches);
  Status open(const kv::Gpus::Open& open_gpu);
  Status lay_out();
  Copies copies_of(std::span<const SlotPair> blocks) const;
  Status try_load(std::span<const SlotPair> blocks, const Mark& mark,
                  const FinishLayer& finish_layer);
  Status try_back_up(std::span<const SlotPair> blocks, const Mark& mark);
  Status fail_for_good(const Status& outcome);
  gpu::Stream stream() const;

  std::shared_ptr<base::HugeVector<std::byte>> memory_;
  // Where a block of L2 lies: `extents_` pieces of `extent_bytes_`, each as far from the next as all blocks' pieces
  // take, in the order that `order_` names.
  kv::BlockOrder order_{};
  std::uint32_t extents_ = 0;
  std::uint64_t extent_bytes_ = 0;
  const std::unique_ptr<memory::Domain> domain_;
  std::unique_ptr<kv::Gpu> gpu_;
  std::unique_ptr<kv::CudaEngine> engine_;
  std::atomic<bool> has_failed_ =
      false;  // relaxed: a thread that sees it late gets the driver's error
};

}  // namespace cachalot::tier
