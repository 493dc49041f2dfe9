// What a controller knows of L3: chains of blocks that are found, fetched and stored by their hashes.
#pragma once

#include <cachalot/client.h>

#include <memory>
#include <span>

#include "block_hash/block_hasher.h"
#include "kv/cuda/gpus.h"
#include "tier/radix/tier.h"

namespace cachalot::tier {

// @threads any, simultaneously
class SharedTier {
 public:
  virtual ~SharedTier() = default;

  // The hasher of the blocks' namespace.
  virtual Result<block_hash::BlockHasher> make_hasher() const = 0;
  // How much of a chain is there; begins to bring what is slow to read closer. Does not wait for it, but for the answer
  // of storage that is far away.
  virtual Result<Prefetched> find(std::span<const BlockHash> hashes) = 0;
  // How many leading blocks are in the pool now.
  virtual Result<std::size_t> count(std::span<const BlockHash> hashes) = 0;
  // Counts a prompt, as Client::count_prompt.
  virtual void count_prompt(const PromptBlocks& prompt) = 0;
  // Whether blocks that find() saw in storage are still on their way. `stored`: all of those
  virtual Result<bool> is_fetching(std::span<const BlockHash> stored) = 0;
  // Copies the longest prefix that is close into slots of a tier. After a timeout: what was read in time.
  // @return how many leading blocks; later slots may be overwritten
  virtual Result<std::size_t> load(std::span<const BlockHash> hashes, Tier tier,
                                   std::span<const Slot> slots, std::uint64_t timeout_ns) = 0;
  // @errors as Client::store
  virtual Result<Stored> store(const BlockHash* parent, std::span<const BlockHash> hashes,
                               Tier tier, std::span<const Slot> slots,
                               std::uint64_t timeout_ns) = 0;
};

// The caches of an engine, as Client::register_cache takes them; without L2 `host` has no tensors.
struct TierCaches {
  PagedCache device, host;
  std::uint32_t device_pages_per_block = 1;
};

// A pool with or without storage behind it.
class PoolTier final : public SharedTier {
 public:
  // @param caches  outlive the object
  static Result<std::unique_ptr<PoolTier>> attach(const ClientOptions& options,
                                                  const TierCaches& caches,
                                                  const kv::Gpus::Open& open_gpu);
  ~PoolTier() override;

  Result<block_hash::BlockHasher> make_hasher() const override;
  Result<Prefetched> find(std::span<const BlockHash> hashes) override;
  Result<std::size_t> count(std::span<const BlockHash> hashes) override;
  void count_prompt(const PromptBlocks& prompt) override;
  Result<bool> is_fetching(std::span<const BlockHash> stored) override;
  Result<std::size_t> load(std::span<const BlockHash> hashes, Tier tier,
                           std::span<const Slot> slots, std::uint64_t timeout_ns) override;
  Result<Stored> store(const BlockHash* parent, std::span<const BlockHash> hashes, Tier tier,
                       std::span<const Slot> slots, std::uint64_t timeout_ns) override;

 private:
  explicit PoolTier(Client client) : client_(std::move(client)) {}
  CacheId cache(Tier tier) const { return tier == Tier::kDevice ? device_ : host_; }
  std::vector<PageId> pages_of(Tier tier, std::span<const Slot> slots) const;

  Client client_;
  ClientOptions options_;
  CacheId device_{}, host_{};
  std::uint32_t device_pages_per_block_ = 1;
};

// The hasher that a client with these options has.
Result<block_hash::BlockHasher> hasher_of(const ClientOptions& options);

}  // namespace cachalot::tier
