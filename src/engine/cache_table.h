// The engine's caches that a client knows, by number.
//
// A call holds the cache it works on; who unregisters it waits until nobody does.
//
// @threads any
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "kv/cpu/cpu_engine.h"
#include "memory/coherence.h"

namespace cachalot::engine {

class RegisteredCache {
 public:
  // @errors kInvalidArgument, kUnsupported: as kv::EngineCache::make
  static Result<std::shared_ptr<RegisteredCache>> make(const PagedCache& description,
                                                       const KvGeometry& geometry,
                                                       const kv::BlockOrder& order,
                                                       memory::Domain& domain, std::uint32_t threads);

  kv::CpuEngine& engine() { return *engine_; }
  const kv::EngineCache& cache() const { return cache_; }
  std::uint32_t pages_per_block() const { return cache_.pages_per_block(); }

 private:
  friend class CacheTable;
  friend class CacheUse;
  explicit RegisteredCache(kv::EngineCache cache) : cache_(std::move(cache)) {}

  kv::EngineCache cache_;
  std::optional<kv::CpuEngine> engine_;
  std::atomic<std::uint32_t> uses_ = 0;
};

// A cache, held; may end in another thread than it began in.
class CacheUse {
 public:
  explicit CacheUse(std::shared_ptr<RegisteredCache> cache) : cache_(std::move(cache)) {
    cache_->uses_.fetch_add(1, std::memory_order_relaxed);  // under the table's lock
  }
  CacheUse(CacheUse&&) noexcept = default;
  CacheUse& operator=(CacheUse&&) = delete;
  ~CacheUse() {
    if (cache_ == nullptr) return;
    // Release: who sees that nobody uses it any more may give its memory away.
    if (cache_->uses_.fetch_sub(1, std::memory_order_release) == 1) cache_->uses_.notify_all();
  }
  RegisteredCache* operator->() const { return cache_.get(); }
  RegisteredCache& operator*() const { return *cache_; }

 private:
  std::shared_ptr<RegisteredCache> cache_;
};

class CacheTable {
 public:
  CacheId add(std::shared_ptr<RegisteredCache> cache);
  // @errors kNotFound
  Result<CacheUse> use(CacheId id);
  Status remove(CacheId id);

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<RegisteredCache>> caches_;
};

}  // namespace cachalot::engine
