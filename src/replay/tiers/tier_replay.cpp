#include "replay/tiers/tier_replay.h"

#include <cinttypes>

#include "cache_sim/hit_tokens.h"
#include "replay/pattern/block_pattern.h"

namespace cachalot::replay {
namespace {

constexpr std::uint32_t kLayers = 2;
// Keys and values of one head, bytes: a block of the trace is one "token" of the cache.
constexpr std::uint64_t kParts = 2;
constexpr std::uint64_t kWord = 8;

Result<KvGeometry> geometry_of(std::uint64_t block_bytes) {
  const std::uint64_t unit = kLayers * kParts * kWord;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30;
  if (block_bytes == 0 || block_bytes % unit != 0 || block_bytes > kMost) {
    return Error::make(Code::kInvalidArgument,
                       "block bytes are %" PRIu64 "; expected a multiple of %" PRIu64
                       ", at most 1 GiB",
                       block_bytes, unit);
  }
  KvGeometry geometry;
  geometry.layers = kLayers;
  geometry.kv_heads = 1;
  geometry.head_dim = static_cast<std::uint32_t>(block_bytes / (kLayers * kParts));
  geometry.dtype = DType::kI8;
  geometry.block_tokens = 1;
  return geometry;
}

}  // namespace

Result<TierReplay> TierReplay::make(const TierReplayOptions& options) {
  CACHALOT_TRY_ASSIGN(const KvGeometry geometry, geometry_of(options.block_bytes));
  auto memory = std::make_unique<Memory>();
  TieredCacheOptions tiers;
  tiers.device.layout = "vllm_bknhc";
  tiers.device.pages = options.device_blocks;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    auto& tensor =
        memory->layers.emplace_back(geometry.layer_bytes() * std::uint64_t{options.device_blocks});
    tiers.device.tensors.push_back({tensor.data(), tensor.size()});
  }
  tiers.shared.model = "replay";
  tiers.shared.geometry = geometry;
  tiers.host_bytes = options.host_blocks * options.block_bytes;
  tiers.exclusive = options.exclusive;
  tiers.writes = options.writes;
  tiers.device_order = tiers.host_order = options.order;
  CACHALOT_TRY_ASSIGN(TieredCache cache, TieredCache::make(tiers));
  return TierReplay(options, std::move(memory), std::move(cache));
}

TierReplay::TierReplay(const TierReplayOptions& options, std::unique_ptr<Memory> memory,
                       TieredCache cache)
    : options_(options), memory_(std::move(memory)), cache_(std::move(cache)) {}

Status TierReplay::add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens) {
  ++counts_.requests;
  counts_.blocks += ids.size();
  counts_.input_tokens += input_tokens;
  path_.clear();
  std::uint32_t number = eviction::kNoNode;
  for (const std::uint64_t id : ids) {
    number = numbers_.number_of(number, id);
    if (number == eviction::kNoNode)
      return Error::make(Code::kUnsupported, "tiers: the trace has too many distinct blocks");
    path_.push_back(number);
  }
  if (path_.empty()) return {};
  if (path_.size() >= options_.device_blocks) {
    ++counts_.skipped_requests;
    return {};
  }
  // One block more, which is never committed: the engine computes at least one.
  path_.push_back(eviction::kNoNode);
  CACHALOT_TRY_ASSIGN(const RequestId request, cache_.open(path_));
  const Result<TierStart> start = cache_.start(request);
  if (!start) {
    (void)cache_.close(request);
    return start.error();
  }
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    CACHALOT_TRY(cache_.wait_layer(request, layer));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i < start->cached_tokens) {
      verify(path_[i], start->pages[i]);
    } else {
      compute(path_[i], start->pages[i]);
    }
  }
  CACHALOT_TRY(cache_.commit(request, std::span(path_).first(ids.size())));
  CACHALOT_TRY(cache_.close(request));
  CACHALOT_TRY(cache_.flush());
  counts_.device_hits += start->device_tokens;
  counts_.host_hits += start->host_tokens;
  counts_.hit_tokens +=
      cache_sim::hit_tokens(start->cached_tokens, options_.block_tokens, input_tokens);
  return {};
}

void TierReplay::verify(std::uint32_t block, PageId page) {
  const std::uint64_t bytes = options_.block_bytes / kLayers;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    counts_.wrong_words += count_wrong(memory_->layers[layer].data() + page * bytes, bytes,
                                       std::uint64_t{block} * kLayers + layer, Verify::kFull);
  }
  counts_.verified_bytes += options_.block_bytes;
}

void TierReplay::compute(std::uint32_t block, PageId page) {
  const std::uint64_t bytes = options_.block_bytes / kLayers;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    write_pattern(memory_->layers[layer].data() + page * bytes, bytes,
                  std::uint64_t{block} * kLayers + layer, Verify::kFull);
  }
}

TierReplayCounts TierReplay::counts() const {
  TierReplayCounts result = counts_;
  result.tiers = cache_.statistics();
  return result;
}

}  // namespace cachalot::replay
