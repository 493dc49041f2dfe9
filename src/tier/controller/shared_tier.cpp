#include "tier/controller/shared_tier.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "client/attach.h"
#include "client/fingerprint.h"

namespace cachalot::tier {
namespace {

// How long storage that other hosts write may take to say what it has; and naps meanwhile.
constexpr std::uint64_t kAnswerNs = 1'000'000'000;
constexpr auto kPause = std::chrono::milliseconds(1);

}  // namespace

Result<block_hash::BlockHasher> hasher_of(const ClientOptions& options) {
  if (options.hash == HashAlgorithm::kXxh3)
    return block_hash::BlockHasher::xxh3(
        block_hash::make_namespace(client::fingerprint_of(options)));
  return block_hash::BlockHasher::vllm(options.hash, options.python_hash_seed);
}

Result<std::unique_ptr<SharedTier>> SharedTier::attach(const ClientOptions& options,
                                                       const TierCaches& caches,
                                                       const kv::Gpus::Open& open_gpu) {
  ClientOptions attach = options;
  attach.counts_prompts = true;
  CACHALOT_TRY_ASSIGN(Client client, client::attach(attach, open_gpu));
  std::unique_ptr<SharedTier> tier(new SharedTier(std::move(client)));
  tier->device_pages_per_block_ = caches.device_pages_per_block;
  CACHALOT_TRY_ASSIGN(tier->device_, tier->client_.register_cache(caches.device));
  if (!caches.host.tensors.empty()) {
    CACHALOT_TRY_ASSIGN(tier->host_, tier->client_.register_cache(caches.host));
  }
  return tier;
}

SharedTier::~SharedTier() {
  (void)client_.detach();
}

std::vector<PageId> SharedTier::pages_of(Tier tier, std::span<const Slot> slots) const {
  const std::uint32_t pages = tier == Tier::kDevice ? device_pages_per_block_ : 1;
  std::vector<PageId> all;
  all.reserve(slots.size() * pages);
  for (const Slot slot : slots) {
    for (std::uint32_t i = 0; i < pages; ++i) all.push_back(slot * pages + i);
  }
  return all;
}

Result<Prefetched> SharedTier::find(std::span<const BlockHash> hashes) {
  const std::uint64_t until_ns = base::SteadyClock::read() + kAnswerNs;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const Prefetched found, client_.prefetch(hashes, 0));
    if (!found.is_asking || base::SteadyClock::read() >= until_ns) return found;
    std::this_thread::sleep_for(kPause);
  }
}

Result<std::size_t> SharedTier::count(std::span<const BlockHash> hashes) {
  return client_.lookup(hashes);
}

void SharedTier::count_prompt(const PromptBlocks& prompt) {
  (void)client_.count_prompt(prompt);
}

Result<bool> SharedTier::is_fetching(std::span<const BlockHash> stored) {
  return client_.is_fetching(stored);
}

Result<std::size_t> SharedTier::load(std::span<const BlockHash> hashes, Tier tier,
                                     std::span<const Slot> slots, std::uint64_t timeout_ns) {
  Result<std::size_t> loaded =
      client_.load(cache(tier), hashes, pages_of(tier, slots), {.timeout_ns = timeout_ns});
  if (!loaded && loaded.error().code == Code::kTimeout)
    return static_cast<std::size_t>(loaded.error().detail);
  return loaded;
}

Result<Stored> SharedTier::store(const BlockHash* parent, std::span<const BlockHash> hashes,
                                 Tier tier, std::span<const Slot> slots, std::uint64_t timeout_ns) {
  return client_.store(cache(tier), parent, hashes, pages_of(tier, slots),
                       {.timeout_ns = timeout_ns});
}

}  // namespace cachalot::tier
