// The public class: checks of the options, and calls that forward to the controller.
#include <cachalot/tier.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "tier/controller/controller.h"
#include "tier/controller/make.h"

namespace cachalot {

double PrefillModel::cost_ns(std::uint64_t cached, std::uint64_t tokens) const {
  if (cached >= tokens) return 0;
  const auto from = static_cast<double>(cached), to = static_cast<double>(tokens);
  return a_ns + b_ns * (to - from) + c_ns * (to * to - from * from);
}

struct TieredCache::Impl {
  ClientOptions shared;
  kv::Gpus::Open open_gpu;
  std::unique_ptr<tier::Controller> controller;
};

namespace {

// Of L2.
Result<std::uint32_t> host_blocks_of(const TieredCacheOptions& options,
                                     std::uint32_t device_blocks) {
  const double ratio = options.host_ratio;
  if (ratio != 0 && options.host_bytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "host_ratio is %g and host_bytes is %" PRIu64 "; expected one of the two",
                       ratio, options.host_bytes);
  }
  const double least = options.exclusive ? 0 : 1;
  if (ratio != 0 && !(std::isfinite(ratio) && ratio > least)) {
    return Error::make(
        Code::kInvalidArgument, "host_ratio is %g; expected more than %g%s", ratio, least,
        options.exclusive ? "" : ", because L2 has a copy of each block of L1 (or exclusive)");
  }
  double blocks = ratio * device_blocks;
  if (options.host_bytes != 0) {
    const std::uint64_t block = options.shared.geometry.block_bytes();
    if (options.host_bytes < block) {
      return Error::make(Code::kInvalidArgument,
                         "host_bytes is %" PRIu64 "; expected at least the %" PRIu64 " of a block",
                         options.host_bytes, block);
    }
    blocks = static_cast<double>(options.host_bytes / block);
  }
  constexpr double kMost = 4'000'000'000.0;
  if (blocks > kMost) {
    return Error::make(Code::kInvalidArgument, "L2 would have %.0f blocks; expected at most %.0f",
                       blocks, kMost);
  }
  return static_cast<std::uint32_t>(blocks);
}

Status check(const TieredCacheOptions& options, std::uint32_t host_blocks) {
  if (options.fetch_threads == 0 || options.fetch_threads > kMostThreads) {
    return Error::make(Code::kInvalidArgument, "fetch_threads is %u; expected 1 to %u",
                       options.fetch_threads, kMostThreads);
  }
  if (host_blocks == 0 && options.exclusive) {
    return Error::make(Code::kInvalidArgument, "exclusive needs L2: set host_ratio or host_bytes");
  }
  return tier::check_writes(options.writes, options.selective_uses, host_blocks != 0);
}

}  // namespace

Result<TieredCache> TieredCache::make(const TieredCacheOptions& options) {
  return tier::make(options, [](int ordinal) { return kv::CudaDevice::open(ordinal); });
}

Result<TieredCache> tier::make(const TieredCacheOptions& options, kv::Gpus::Open open_gpu) {
  const KvGeometry& geometry = options.shared.geometry;
  CACHALOT_TRY_ASSIGN(const std::uint32_t device_blocks, tier::blocks_of(geometry, options.device));
  if (options.shared.share_tp != 0) CACHALOT_TRY(geometry.head_group(options.shared.share_tp));
  CACHALOT_TRY_ASSIGN(const std::uint32_t host_blocks, host_blocks_of(options, device_blocks));
  CACHALOT_TRY(check(options, host_blocks));
  tier::RadixOptions radix{.page_tokens = geometry.block_tokens};
  CACHALOT_TRY_ASSIGN(radix.device_order, eviction::parse_leaf_order(options.device_order));
  CACHALOT_TRY_ASSIGN(radix.host_order, eviction::parse_leaf_order(options.host_order));
  CACHALOT_TRY_ASSIGN(block_hash::BlockHasher hasher, tier::hasher_of(options.shared));
  CACHALOT_TRY_ASSIGN(
      std::unique_ptr<tier::TierCopies> copies,
      tier::TierCopies::make(geometry, options.device, options.host_layout, host_blocks, open_gpu));
  auto impl = std::make_unique<TieredCache::Impl>();
  impl->shared = options.shared;
  impl->open_gpu = std::move(open_gpu);
  impl->controller = std::make_unique<tier::Controller>(options, radix, std::move(copies),
                                                        host_blocks, std::move(hasher));
  TieredCache cache(std::move(impl));
  if (!options.shared.pool.empty()) CACHALOT_TRY(cache.attach_pool(options.shared.pool));
  return cache;
}

TieredCache::TieredCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TieredCache::TieredCache(TieredCache&&) noexcept = default;
TieredCache& TieredCache::operator=(TieredCache&&) noexcept = default;
TieredCache::~TieredCache() = default;

Status TieredCache::attach_pool(std::span<const std::string> pool) {
  if (has_pool()) return Error::make(Code::kBusy, "a pool is attached already; detach it first");
  ClientOptions options = impl_->shared;
  options.pool.assign(pool.begin(), pool.end());
  CACHALOT_TRY_ASSIGN(
      std::unique_ptr<tier::SharedTier> shared,
      tier::SharedTier::attach(options, impl_->controller->caches(), impl_->open_gpu));
  return impl_->controller->attach_shared(std::move(shared));
}

Status TieredCache::detach_pool() {
  return impl_->controller->detach_shared();
}
bool TieredCache::has_pool() const {
  return impl_->controller->has_shared();
}
void TieredCache::set_prefetch(const PrefetchOptions& prefetch) {
  impl_->controller->set_prefetch(prefetch);
}
Status TieredCache::set_writes(TierWrites writes, std::uint32_t selective_uses) {
  return impl_->controller->set_writes(writes, selective_uses);
}
Result<RequestId> TieredCache::open(std::span<const std::uint32_t> prompt,
                                    const RequestOptions& options) {
  return impl_->controller->open(prompt, options);
}
Result<bool> TieredCache::is_ready(RequestId request) const {
  return impl_->controller->is_ready(request);
}
Result<bool> TieredCache::wait_ready(RequestId request, std::uint64_t timeout_ns) {
  return impl_->controller->wait_ready(request, timeout_ns);
}
Result<TierFetch> TieredCache::fetch_of(RequestId request) const {
  return impl_->controller->fetch_of(request);
}
Result<std::uint64_t> TieredCache::prompt_tokens(RequestId request) const {
  return impl_->controller->prompt_tokens(request);
}
Result<TierStart> TieredCache::start(RequestId request) {
  return impl_->controller->start(request);
}
Status TieredCache::wait_layer(RequestId request, std::uint32_t layer) {
  return impl_->controller->wait_layer(request, layer);
}
Result<std::vector<PageId>> TieredCache::grow(RequestId request, std::uint64_t tokens) {
  return impl_->controller->grow(request, tokens);
}
Status TieredCache::commit(RequestId request, std::span<const std::uint32_t> tokens) {
  return impl_->controller->commit(request, tokens);
}
Status TieredCache::close(RequestId request) {
  return impl_->controller->close(request);
}
Status TieredCache::flush(std::uint64_t timeout_ns) {
  return impl_->controller->flush(timeout_ns);
}
Status TieredCache::clear() {
  return impl_->controller->clear();
}
TierStatistics TieredCache::statistics() const {
  return impl_->controller->statistics();
}
bool TieredCache::is_valid() const {
  return impl_->controller->is_valid();
}

}  // namespace cachalot
