// The engine's caches that a client knows, by number.
//
// A call holds the cache it works on; who unregisters it waits until nobody does. A layer load or store
// lasts as long as its owner likes, who may be the one that unregisters: it is not waited for. While one is
// open the cache is not unregistered; one that has copied all it will holds it no more.
//
// @threads any
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "client/fork_guard.h"
#include "client/gpus.h"
#include "kv/copy_engine.h"
#include "kv/cuda/cuda_engine.h"
#include "memory/coherence.h"

namespace cachalot::client {

// What copies a cache's pages.
struct CopyMeans {
  // As a client's options say.
  static CopyMeans of(const ClientOptions& options) {
    CopyMeans means;
    means.threads = options.copy_threads;
    if (options.pool_bypasses_caches) means.host_caches = kv::HostCaches::kBypassed;
    return means;
  }
  std::uint32_t threads = 1;                              // of a cache in this process's memory
  Gpu* gpu = nullptr;                                     // that the cache is on; outlives it
  kv::HostCaches host_caches = kv::HostCaches::kFlushed;  // of a GPU's cache
};

class RegisteredCache {
 public:
  // @errors kInvalidArgument, kUnsupported: as kv::EngineCache::make, kv::CudaEngine::make, Gpu::check_memory
  static Result<std::shared_ptr<RegisteredCache>> make(const PagedCache& description,
                                                       const KvGeometry& geometry,
                                                       const kv::BlockOrder& order,
                                                       memory::Domain& domain,
                                                       const CopyMeans& means);

  Gpu* gpu() const { return gpu_; }  // null: it is in this process's memory
  // The stream of a call that asks for this one, or for none; nothing where there is no GPU.
  // @errors kInvalidArgument: a stream, and no GPU; as Gpu::check
  Result<CudaStream> stream_of(const std::optional<CudaStream>& wanted) const;
  // Once more, of what stream_of() gave. @errors as Gpu::check
  Status check_stream(CudaStream stream) const {
    return gpu_ == nullptr ? Status() : gpu_->check(stream);
  }

  // As kv::CopyEngine's, and on this stream where there is a GPU, which is waited for so.
  Status gather(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers, CudaStream stream,
                kv::WaitBy by = kv::WaitBy::kAsking);
  Status scatter(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers, CudaStream stream,
                 kv::WaitBy by = kv::WaitBy::kAsking);
  // Of a GPU's cache only: launched, and not waited for. Its wait() goes by way of gpu()->note().
  Result<kv::PendingCopy> start_gather(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers,
                                       CudaStream stream);
  Result<kv::PendingCopy> start_scatter(std::span<const kv::BlockCopy> blocks,
                                        kv::LayerRange layers, CudaStream stream);

  // Whether its memory may be given away. @errors as Gpu::check_released
  Status check_released() const { return gpu_ == nullptr ? Status() : gpu_->check_released(); }

  const kv::EngineCache& cache() const { return cache_; }
  std::uint32_t pages_per_block() const { return cache_.pages_per_block(); }

  // Asks the driver nothing of a GPU that was lost, nor in a forked child.
  ~RegisteredCache();

 private:
  friend class CacheTable;
  friend class CacheUse;
  friend class OpenCache;
  static constexpr std::uint32_t kGone = 1u << 31;
  explicit RegisteredCache(kv::EngineCache cache) : cache_(std::move(cache)) {}
  kv::CudaEngine& on_gpu() { return static_cast<kv::CudaEngine&>(*engine_); }

  bool enter();
  void leave();

  kv::EngineCache cache_;
  std::unique_ptr<kv::CopyEngine> engine_;  // a GPU's, if there is one
  Gpu* gpu_ = nullptr;
  CudaStream stream_ = nullptr;
  const std::uint64_t forks_ = fork_generation();
  std::atomic<std::uint32_t> uses_ = 0;  // and kGone, from when it is unregistered on
  std::atomic<std::uint32_t> open_loads_ = 0, open_stores_ = 0;  // begun under the table's lock
};

// A cache, held by a call; may end in another thread than it began in.
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
      : cache_(std::move(cache)) {}  // it was entered

  std::shared_ptr<RegisteredCache> cache_;
};

enum class LayerCall { kLoad, kStore };

// A cache, open for a layer load or store.
// @threads one at a time
class OpenCache {
 public:
  OpenCache(OpenCache&& from) noexcept
      : cache_(std::move(from.cache_)), open_(std::exchange(from.open_, nullptr)), id_(from.id_) {}
  OpenCache& operator=(OpenCache&&) = delete;
  ~OpenCache() { close(); }

  // What a call copies with. @errors kNotFound: it was closed, and unregistered since
  Result<CacheUse> use() const;
  // Sizes and the like: also when it is closed.
  const kv::EngineCache& cache() const { return cache_->cache(); }
  RegisteredCache& operator*() const { return *cache_; }
  std::uint32_t pages_per_block() const { return cache_->pages_per_block(); }
  bool is_open() const { return open_ != nullptr; }
  // From here on it can be unregistered. A second time does nothing.
  void close() {
    // Release: who sees that none is open may give its memory away.
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
  // Waits for the calls that use it. @errors kNotFound; kBusy: a layer load or store is open; it is removed,
  // and as Gpu::check_released
  Status remove(CacheId id);

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<RegisteredCache>> caches_;
};

}  // namespace cachalot::client
