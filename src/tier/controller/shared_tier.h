// What a controller knows of L3: chains of blocks that are found, fetched and stored by their hashes.
#pragma once

#include <cachalot/client.h>

#include <memory>
#include <span>

#include "block_hash/block_hasher.h"
#include "kv/cuda/gpus.h"
#include "tier/radix/tier.h"

namespace cachalot::tier {

// The caches of an engine, as Client::register_cache takes them; without L2 `host` has no tensors.
struct TierCaches {
  PagedCache device, host;
  std::uint32_t device_pages_per_block = 1;
};

// A pool with or without storage behind it.
// @threads any, simultaneously
class SharedTier {
 public:
  // @param caches  outlive the object
  static Result<std::unique_ptr<SharedTier>> attach(const ClientOptions& options,
                                                    const TierCaches& caches,
                                                    const kv::Gpus::Open& open_gpu);
  ~SharedTier();

  // How much of a chain is there; begins to bring what is slow to read closer. Does not wait for it, but for the answer
  // of storage that is far away.
  Result<Prefetched> find(std::span<const BlockHash> hashes);
  // How many leading blocks are in the pool now.
  Result<std::size_t> count(std::span<const BlockHash> hashes);
  // Counts a prompt, as Client::count_prompt.
  void count_prompt(const PromptBlocks& prompt);
  // Whether blocks that find() saw in storage are still on their way. `stored`: all of those
  Result<bool> is_fetching(std::span<const BlockHash> stored);
  // Copies the longest prefix that is close into slots of a tier. After a timeout: what was read in time.
  // @return how many leading blocks; later slots may be overwritten
  Result<std::size_t> load(std::span<const BlockHash> hashes, Tier tier,
                           std::span<const Slot> slots, std::uint64_t timeout_ns);
  // @errors as Client::store
  Result<Stored> store(const BlockHash* parent, std::span<const BlockHash> hashes, Tier tier,
                       std::span<const Slot> slots, std::uint64_t timeout_ns);

 private:
  explicit SharedTier(Client client) : client_(std::move(client)) {}
  CacheId cache(Tier tier) const { return tier == Tier::kDevice ? device_ : host_; }
  std::vector<PageId> pages_of(Tier tier, std::span<const Slot> slots) const;

  Client client_;
  CacheId device_{}, host_{};
  std::uint32_t device_pages_per_block_ = 1;
};

// The hasher that a client with these options has.
Result<block_hash::BlockHasher> hasher_of(const ClientOptions& options);

}  // namespace cachalot::tier
