#include "client/cache_table.h"

#include <atomic>
#include <cinttypes>
#include <mutex>

#include "kv/cpu/cpu_engine.h"
#include "kv/paged_cache.h"

namespace cachalot::client {
namespace {

// Unique in the process, so that a client rejects another client's cache id.
std::atomic<std::uint32_t> last_number = 0;

Error unknown_cache(CacheId id) {
  return Error::make(Code::kNotFound, "cache: number %u is of no registered cache",
                     static_cast<std::uint32_t>(id));
}

}  // namespace

Status StartedCopies::wait(kv::WaitBy by) {
  Status outcome;
  for (kv::PendingCopy& copy : copies_) {
    Status one = gpu_->note(copy.wait(by));
    if (outcome) outcome = std::move(one);
  }
  return outcome;
}

RegisteredCache::RegisteredCache(const kv::EngineCache& rank, const HeadGroups& groups)
    : groups_(groups) {
  const std::uint32_t heads = rank.geometry().heads() / groups.count;
  for (std::uint32_t i = 0; i < groups.count; ++i) caches_.push_back(rank.heads(i * heads, heads));
}

Result<std::shared_ptr<RegisteredCache>> RegisteredCache::make(
    const PagedCache& description, const KvGeometry& geometry, const HeadGroups& groups,
    const kv::BlockOrder& order, memory::Domain& domain, const CopyMeans& means) {
  const std::vector<kv::Tensor> tensors = kv::tensors_of(description);
  CACHALOT_TRY_ASSIGN(const kv::EngineCache rank, kv::engine_cache_of(description, geometry));
  std::shared_ptr<RegisteredCache> made(new RegisteredCache(rank, groups));
  if (means.gpu == nullptr) {
    for (const kv::EngineCache& cache : made->caches_) {
      CACHALOT_TRY_ASSIGN(kv::CpuEngine engine,
                          kv::CpuEngine::make(cache, order, domain, {means.threads, means.homes}));
      made->engines_.push_back(std::make_unique<kv::CpuEngine>(std::move(engine)));
    }
    return made;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const Status on_it = means.gpu->check_memory(tensors[i].at, tensors[i].bytes); !on_it) {
      return Error::make(on_it.error().code, "cache: tensor %zu: %.400s", i, on_it.error().message);
    }
  }
  kv::CudaOptions options;
  options.host_caches = means.host_caches;
  options.started_reads = kv::ReadCheck::kValidated;  // LayerLoad validates after its wait
  for (const kv::EngineCache& cache : made->caches_) {
    CACHALOT_TRY_ASSIGN(std::unique_ptr<kv::CudaEngine> engine,
                        kv::CudaEngine::make(means.gpu->device(), cache, order, domain, options));
    made->engines_.push_back(std::move(engine));
  }
  made->gpu_ = means.gpu;
  made->stream_ = description.cuda_stream;
  return made;
}

RegisteredCache::~RegisteredCache() {
  if (gpu_ == nullptr) return;
  if (fork_generation() != forks_) {
    // engines and GPU belong to the parent process
    for (std::unique_ptr<kv::CopyEngine>& engine : engines_) (void)engine.release();
  } else if (gpu_->is_lost()) {
    for (std::unique_ptr<kv::CopyEngine>& engine : engines_) kv::keep_until_exit(std::move(engine));
  }
}

Result<CudaStream> RegisteredCache::stream_of(const std::optional<CudaStream>& wanted) const {
  if (gpu_ != nullptr) {
    const CudaStream stream = wanted.value_or(stream_);
    CACHALOT_TRY(check_stream(stream));
    return stream;
  }
  if (!wanted) return CudaStream{};
  return Error::make(Code::kInvalidArgument,
                     "stream: %p was given for a cache in this process's memory, expected none",
                     *wanted);
}

Status RegisteredCache::gather(const GroupCopies& copies, kv::LayerRange layers, CudaStream stream,
                               kv::WaitBy by) {
  if (gpu_ != nullptr) {
    CACHALOT_TRY_ASSIGN(StartedCopies started, start_gather(copies, layers, stream));
    return started.wait(by);
  }
  for (std::size_t i = 0; i < engines_.size(); ++i)
    CACHALOT_TRY(engines_[i]->gather(copies[i], layers));
  return {};
}

Status RegisteredCache::scatter(const GroupCopies& copies, kv::LayerRange layers, CudaStream stream,
                                kv::WaitBy by) {
  if (gpu_ != nullptr) {
    CACHALOT_TRY_ASSIGN(StartedCopies started, start_scatter(copies, layers, stream));
    return started.wait(by);
  }
  for (std::size_t i = 0; i < engines_.size(); ++i)
    CACHALOT_TRY(engines_[i]->scatter(copies[i], layers));
  return {};
}

Result<StartedCopies> RegisteredCache::start(const GroupCopies& copies, kv::LayerRange layers,
                                             CudaStream stream, kv::Direction direction) {
  return start_groups([&](kv::CudaEngine& engine, std::size_t i) {
    return direction == kv::Direction::kGather ? engine.start_gather(copies[i], stream, layers)
                                               : engine.start_scatter(copies[i], stream, layers);
  });
}

template <class Start>
Result<StartedCopies> RegisteredCache::start_groups(Start start) {
  StartedCopies started(*gpu_);
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Result<kv::PendingCopy> copy = start(static_cast<kv::CudaEngine&>(*engines_[i]), i);
    if (!copy) {
      const Status refused = gpu_->note(copy.error());
      CACHALOT_TRY(started.wait());
      return refused.error();
    }
    started.add(*std::move(copy));
  }
  return started;
}

Result<std::vector<kv::RowPlan>> RegisteredCache::plan_rows(kv::RowChoice choice,
                                                            kv::LayerRange layers) const {
  choice.heads = cache().geometry().heads() * groups_.count;
  std::vector<kv::RowPlan> plans;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    choice.first_head = static_cast<std::uint32_t>(i) * caches_[i].geometry().heads();
    CACHALOT_TRY_ASSIGN(kv::RowPlan plan,
                        kv::RowPlan::make(caches_[i], engines_[i]->order(), choice, layers));
    plans.push_back(std::move(plan));
  }
  return plans;
}

Status RegisteredCache::scatter_rows(std::span<const kv::RowPlan> plans, const GroupRows& rows,
                                     CudaStream stream) {
  if (gpu_ != nullptr) {
    CACHALOT_TRY_ASSIGN(StartedCopies started,
                        start_groups([&](kv::CudaEngine& engine, std::size_t i) {
                          return engine.start_scatter_rows(plans[i], rows[i], stream);
                        }));
    return started.wait();
  }
  for (std::size_t i = 0; i < engines_.size(); ++i)
    CACHALOT_TRY(engines_[i]->scatter_rows(plans[i], rows[i]));
  return {};
}

CacheId CacheTable::add(std::shared_ptr<RegisteredCache> cache) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
  caches_.emplace(number, std::move(cache));
  return CacheId{number};
}

bool RegisteredCache::enter() {
  std::uint32_t uses = uses_.load(std::memory_order_relaxed);
  do {
    if ((uses & kGone) != 0) return false;
  } while (!uses_.compare_exchange_weak(uses, uses + 1, std::memory_order_relaxed));
  return true;
}

void RegisteredCache::leave() {
  // Release: pairs with the acquire in remove(). After it the caller may free the memory.
  if (uses_.fetch_sub(1, std::memory_order_release) == (kGone | 1)) uses_.notify_all();
}

OpenCache::OpenCache(std::shared_ptr<RegisteredCache> cache, LayerCall call, CacheId id)
    : cache_(std::move(cache)),
      open_(call == LayerCall::kLoad ? &cache_->open_loads_ : &cache_->open_stores_),
      id_(id) {
  open_->fetch_add(1, std::memory_order_relaxed);
}

Result<CacheUse> OpenCache::use() const {
  if (!cache_->enter()) return unknown_cache(id_);
  return CacheUse(cache_);
}

Result<CacheUse> CacheTable::use(CacheId id) {
  const std::shared_lock lock(mutex_);
  const auto at = caches_.find(static_cast<std::uint32_t>(id));
  if (at == caches_.end() || !at->second->enter()) return unknown_cache(id);
  return CacheUse(at->second);
}

Result<OpenCache> CacheTable::open(CacheId id, LayerCall call) {
  const std::shared_lock lock(mutex_);
  const auto at = caches_.find(static_cast<std::uint32_t>(id));
  if (at == caches_.end()) return unknown_cache(id);
  return OpenCache(at->second, call, id);
}

Status CacheTable::remove(CacheId id) {
  std::shared_ptr<RegisteredCache> cache;
  {
    const std::lock_guard lock(mutex_);
    const auto at = caches_.find(static_cast<std::uint32_t>(id));
    if (at == caches_.end()) return unknown_cache(id);
    // Acquire: pairs with the release in OpenCache::close().
    const bool loads = at->second->open_loads_.load(std::memory_order_acquire) != 0;
    if (loads || at->second->open_stores_.load(std::memory_order_acquire) != 0) {
      return Error::make(Code::kBusy, "cache: a layer %s of cache %u is open: end it first",
                         loads ? "load" : "store", static_cast<std::uint32_t>(id));
    }
    cache = std::move(at->second);
    caches_.erase(at);
    cache->uses_.fetch_or(RegisteredCache::kGone, std::memory_order_relaxed);
  }
  for (std::uint32_t uses;
       (uses = cache->uses_.load(std::memory_order_acquire)) != RegisteredCache::kGone;) {
    cache->uses_.wait(uses);
  }
  return cache->check_released();
}

}  // namespace cachalot::client
