// The registered caches of a client, by number.
//
// A call holds the cache that it uses; remove() waits for all calls. It does not wait for layer loads and
// stores, because the caller may own them: while one is open, it returns kBusy. A load or store that has
// copied everything does not hold the cache any more.
//
// @threads any
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/fork_guard.h"
#include "client/share_tp/head_groups.h"
#include "kv/copy_engine.h"
#include "kv/cpu/copy_homes.h"
#include "kv/cuda/cuda_engine.h"
#include "kv/cuda/gpus.h"
#include "memory/coherence.h"

namespace cachalot::client {

// How the pages of a cache are copied.
struct CopyMeans {
  static CopyMeans of(const ClientOptions& options) {
    CopyMeans means;
    means.threads = options.copy_threads;
    if (options.pool_bypasses_caches) means.host_caches = kv::HostCaches::kBypassed;
    return means;
  }
  // for caches in this process's memory
  std::uint32_t threads = 1;
  std::shared_ptr<const kv::CopyHomes> homes = {};        // null: anywhere
  kv::Gpu* gpu = nullptr;                                 // the cache's GPU; outlives the cache
  kv::HostCaches host_caches = kv::HostCaches::kFlushed;  // for caches on a GPU
};

// Launched copies of one call, one for each head group. @threads one at a time
class StartedCopies {
 public:
  explicit StartedCopies(kv::Gpu& gpu) : gpu_(&gpu) {}
  void add(kv::PendingCopy copy) { copies_.push_back(std::move(copy)); }
  // Waits for all, and tells the GPU the outcome. @errors kIo
  Status wait(kv::WaitBy by = kv::WaitBy::kAsking);

 private:
  kv::Gpu* gpu_;
  std::vector<kv::PendingCopy> copies_;
};

class RegisteredCache {
 public:
  // @errors kInvalidArgument, kUnsupported: as kv::EngineCache::make, kv::CudaEngine::make, Gpu::check_memory
  static Result<std::shared_ptr<RegisteredCache>> make(
      const PagedCache& description, const KvGeometry& geometry, const HeadGroups& groups,
      const kv::BlockOrder& order, memory::Domain& domain, const CopyMeans& means);

  kv::Gpu* gpu() const { return gpu_; }  // null: the cache is in this process's memory
  // Returns the wanted stream, or the cache's; null without a GPU.
  // @errors kInvalidArgument: a stream without a GPU; as Gpu::check
  Result<CudaStream> stream_of(const std::optional<CudaStream>& wanted) const;
  // Checks a stream that stream_of() returned again. @errors as Gpu::check
  Status check_stream(CudaStream stream) const {
    return gpu_ == nullptr ? Status() : gpu_->check(stream);
  }

  // As kv::CopyEngine, of groups().count lists. On a GPU: on this stream, waiting as `by` says.
  Status gather(const GroupCopies& copies, kv::LayerRange layers, CudaStream stream,
                kv::WaitBy by = kv::WaitBy::kAsking);
  Status scatter(const GroupCopies& copies, kv::LayerRange layers, CudaStream stream,
                 kv::WaitBy by = kv::WaitBy::kAsking);
  // GPU cache only: launch without waiting. After an error no copy is in flight, except after kIo.
  Result<StartedCopies> start_gather(const GroupCopies& copies, kv::LayerRange layers,
                                     CudaStream stream) {
    return start(copies, layers, stream, kv::Direction::kGather);
  }
  Result<StartedCopies> start_scatter(const GroupCopies& copies, kv::LayerRange layers,
                                      CudaStream stream) {
    return start(copies, layers, stream, kv::Direction::kScatter);
  }

  // One for each head group. @errors as kv::RowPlan::make
  // @param choice  of all heads of the rank
  Result<std::vector<kv::RowPlan>> plan_rows(kv::RowChoice choice, kv::LayerRange layers) const;
  // As scatter(), of the plans that plan_rows() made.
  Status scatter_rows(std::span<const kv::RowPlan> plans, const GroupRows& rows, CudaStream stream);

  // Whether the cache's memory may be freed. @errors as Gpu::check_released
  Status check_released() const { return gpu_ == nullptr ? Status() : gpu_->check_released(); }

  const HeadGroups& groups() const { return groups_; }
  // Of one head group: its geometry is that of a pool block.
  const kv::EngineCache& cache() const { return caches_[0]; }
  std::uint32_t pages_per_block() const { return cache().pages_per_block(); }

  // Makes no driver calls for a lost GPU, nor in a forked child.
  ~RegisteredCache();

 private:
  friend class CacheTable;
  friend class CacheUse;
  friend class OpenCache;
  static constexpr std::uint32_t kGone = 1u << 31;
  RegisteredCache(const kv::EngineCache& rank, const HeadGroups& groups);
  Result<StartedCopies> start(const GroupCopies& copies, kv::LayerRange layers, CudaStream stream,
                              kv::Direction direction);
  // GPU cache only. @param start  (engine, number of the group) -> Result<kv::PendingCopy>
  template <class Start>
  Result<StartedCopies> start_groups(Start start);

  bool enter();
  void leave();

  const HeadGroups groups_;
  // One for each group. Engines refer to caches.
  std::vector<kv::EngineCache> caches_;
  std::vector<std::unique_ptr<kv::CopyEngine>>
      engines_;  // kv::CudaEngines if the cache is on a GPU
  kv::Gpu* gpu_ = nullptr;
  CudaStream stream_ = nullptr;
  const std::uint64_t forks_ = fork_generation();
  std::atomic<std::uint32_t> uses_ = 0;  // plus kGone once it is unregistered
  // Incremented under the table's lock
  std::atomic<std::uint32_t> open_loads_ = 0, open_stores_ = 0;
};

// A cache that a call holds. May be destroyed on another thread.
class CacheUse {
 public:
  CacheUse(CacheUse&&) noexcept = default;
  CacheUse& operator=(CacheUse&&) = delete;
  ~CacheUse() {
    if (cache_ != nullptr) cache_->leave();
  }
  RegisteredCache* operator->() const { return cache_.get(); }
  RegisteredCache& operator*() const { return *cache_; }

 private:
  friend class CacheTable;
  friend class OpenCache;
  explicit CacheUse(std::shared_ptr<RegisteredCache> cache)
      : cache_(std::move(cache)) {}  // enter() has succeeded

  std::shared_ptr<RegisteredCache> cache_;
};

enum class LayerCall { kLoad, kStore };

// A cache that a layer load or store holds open.
// @threads one at a time
class OpenCache {
 public:
  OpenCache(OpenCache&& from) noexcept
      : cache_(std::move(from.cache_)), open_(std::exchange(from.open_, nullptr)), id_(from.id_) {}
  OpenCache& operator=(OpenCache&&) = delete;
  ~OpenCache() { close(); }

  // Holds the cache for one copy. @errors kNotFound: closed, and the cache was unregistered since
  Result<CacheUse> use() const;
  // Dimensions only; also valid after close().
  const kv::EngineCache& cache() const { return cache_->cache(); }
  RegisteredCache& operator*() const { return *cache_; }
  std::uint32_t pages_per_block() const { return cache_->pages_per_block(); }
  bool is_open() const { return open_ != nullptr; }
  // Allows the cache to be unregistered. Idempotent.
  void close() {
    // Release: pairs with the acquire in CacheTable::remove().
    if (open_ != nullptr) std::exchange(open_, nullptr)->fetch_sub(1, std::memory_order_release);
  }

 private:
  friend class CacheTable;
  OpenCache(std::shared_ptr<RegisteredCache> cache, LayerCall call, CacheId id);

  std::shared_ptr<RegisteredCache> cache_;
  std::atomic<std::uint32_t>* open_;
  CacheId id_;
};

class CacheTable {
 public:
  CacheId add(std::shared_ptr<RegisteredCache> cache);
  // @errors kNotFound
  Result<CacheUse> use(CacheId id);
  Result<OpenCache> open(CacheId id, LayerCall call);
  // Removes the cache and waits for the calls that use it.
  // @errors kNotFound; kBusy: a layer load or store is open, nothing was removed; as Gpu::check_released,
  //         and the cache is removed
  Status remove(CacheId id);

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<RegisteredCache>> caches_;
};

}  // namespace cachalot::client
