// The bytes of L1 and L2, and the copies between them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/huge_allocator.h"
#include "kv/cuda/gpus.h"
#include "kv/engine_cache.h"
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

// A place in the engine's stream; null where L1 has no stream.
using Mark = std::shared_ptr<const kv::StreamMark>;

// In this process's memory a copy cannot fail. On a GPU one can, and then L1 or L2 may have wrong bytes: after that,
// check() fails for good, and nothing of these tiers may be used.
// @threads any, for different slots
class TierCopies {
 public:
  // @param host_blocks  0: no L2
  // @errors kInvalidArgument: what EngineCache::make lists, an unknown layout; of a GPU's: memory of another one, a
  //         block whose layers are no multiples of 64 bytes; kNoSpace: the machine has not so much memory, or cannot
  //         page-lock it; as CudaDevice::open()
  static Result<std::unique_ptr<TierCopies>> make(const KvGeometry& geometry,
                                                  const PagedCache& device,
                                                  std::string_view host_layout,
                                                  std::uint32_t host_blocks,
                                                  const kv::Gpus::Open& open_gpu);
  virtual ~TierCopies() = default;
  TierCopies(const TierCopies&) = delete;
  TierCopies& operator=(const TierCopies&) = delete;

  std::uint32_t device_blocks() const { return device_.pages() / device_.pages_per_block(); }
  std::uint32_t pages_per_block() const { return device_.pages_per_block(); }
  std::uint64_t block_bytes() const { return device_.geometry().block_bytes(); }
  const TierCaches& caches() const { return caches_; }
  const Bandwidth& load_bandwidth() const { return load_bandwidth_; }

  // Whether no copy has failed.
  virtual bool is_usable() const { return true; }
  // @errors kIo: an earlier copy failed; kInvalidArgument: the engine's stream is being captured into a graph
  virtual Status check() const { return {}; }
  // After all work that is on the engine's stream now. @errors as check(), and the driver's
  virtual Result<Mark> mark() const { return Mark(); }

  // Layer by layer: one more is there for whatever runs after the mark. null: it is there
  using FinishLayer = std::function<void(Mark arrival)>;
  // From L2 to L1, layer by layer, after `mark`. Returns when the last layer is there.
  virtual Status load(std::span<const SlotPair> blocks, const Mark& mark,
                      const FinishLayer& finish_layer) = 0;
  // What is put on the engine's stream from now on runs after the mark. @errors as check(), and the driver's
  virtual Status follow(const Mark&) const { return {}; }
  // From L1 to L2, after `mark`. Returns when the bytes are there.
  // @errors the bytes in L2 are void
  virtual Status back_up(std::span<const SlotPair> blocks, const Mark& mark) = 0;

 protected:
  explicit TierCopies(kv::EngineCache device) : device_(std::move(device)) {}

  kv::EngineCache device_;
  TierCaches caches_;
  Bandwidth load_bandwidth_;
};

// The blocks of a device cache, after its checks. @errors kInvalidArgument: page_tokens is no divisor of a block
Result<std::uint32_t> blocks_of(const KvGeometry& geometry, const PagedCache& device);

}  // namespace cachalot::tier
