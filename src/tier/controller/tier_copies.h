// The bytes of L1 and L2, and the copies between them.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>

#include "base/huge_allocator.h"
#include "kv/page_copy.h"
#include "tier/controller/shared_tier.h"

namespace cachalot::tier {

// A slot of L2, and one of L1.
struct SlotPair {
  Slot host = 0;
  Slot device = 0;
};

// How fast bytes were moved lately. @threads any
class Bandwidth {
 public:
  void add(std::uint64_t bytes, std::uint64_t ns);
  // 0: not measured yet.
  double bytes_per_ns() const { return bytes_per_ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> bytes_per_ns_ = 0;
};

// @threads any, for different slots
class TierCopies {
 public:
  // @param host_blocks  0: no L2
  // @errors kInvalidArgument: what EngineCache::make lists, an unknown layout; kUnsupported: a cache on a GPU;
  //         kNoSpace: the machine has not so much memory
  static Result<std::unique_ptr<TierCopies>> make(const KvGeometry& geometry,
                                                  const PagedCache& device,
                                                  std::string_view host_layout,
                                                  std::uint32_t host_blocks);

  std::uint32_t device_blocks() const { return device_.pages() / device_.pages_per_block(); }
  std::uint32_t pages_per_block() const { return device_.pages_per_block(); }
  std::uint64_t block_bytes() const { return device_.geometry().block_bytes(); }
  const TierCaches& caches() const { return caches_; }

  void load_layer(std::uint32_t layer, std::span<const SlotPair> blocks);
  void back_up(std::span<const SlotPair> blocks);
  const Bandwidth& load_bandwidth() const { return load_bandwidth_; }

 private:
  TierCopies(kv::EngineCache device, kv::EngineCache host, base::HugeVector<std::byte> memory)
      : device_(std::move(device)), host_(std::move(host)), memory_(std::move(memory)) {}

  kv::EngineCache device_, host_;
  base::HugeVector<std::byte> memory_;
  TierCaches caches_;
  Bandwidth load_bandwidth_;
};

// The blocks of a device cache, after its checks. @errors kInvalidArgument: page_tokens is no divisor of a block
Result<std::uint32_t> blocks_of(const KvGeometry& geometry, const PagedCache& device);

}  // namespace cachalot::tier
