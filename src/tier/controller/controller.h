// The controller behind TieredCache (cachalot/tier.h): joins the books of L1 and L2, the copies between them, and L3.
//
// One mutex guards books, requests and jobs. It is held for lookups in the tree and for the copies of blocks that L1
// gives to L2 when it evicts; not for loads, backups, fetches, writes and agreements.
//
//   copier    one thread: loads from L2 to L1, backups from L1 to L2
//   fetchers  L3 to L2, a prompt each
//   writer    one thread: to L3
//
// What a job works on is locked in the tree until the job ends:
//   load      its last node in both tiers     backup   a ticket of the tree's Backups
//   fetch     the last block that arrived     write    its last node in each tier it reads from
#pragma once

#include <cachalot/tier.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "block_hash/block_hasher.h"
#include "tier/controller/request.h"
#include "tier/controller/shared_tier.h"
#include "tier/controller/tier_book.h"
#include "tier/controller/tier_copies.h"
#include "tier/controller/workers.h"

namespace cachalot::tier {

// @errors kInvalidArgument: selective_uses below 2, or back without L2
Status check_writes(TierWrites writes, std::uint32_t selective_uses, bool has_host);

class Controller {
 public:
  // @param options  checked: sizes, layouts and orders are valid
  Controller(const TieredCacheOptions& options, const RadixOptions& radix,
             std::unique_ptr<TierCopies> copies, std::uint32_t host_blocks,
             block_hash::BlockHasher hasher);
  ~Controller();

  // What TieredCache lists.
  Status attach_shared(std::unique_ptr<SharedTier> shared);
  Status detach_shared();
  bool has_shared() const;
  const TierCaches& caches() const { return copies_->caches(); }
  void set_prefetch(const PrefetchOptions& prefetch);
  Status set_writes(TierWrites writes, std::uint32_t selective_uses);

  Result<RequestId> open(std::span<const std::uint32_t> prompt, const RequestOptions& options);
  Result<bool> is_ready(RequestId id) const;
  Result<bool> wait_ready(RequestId id, std::uint64_t timeout_ns);
  Result<TierFetch> fetch_of(RequestId id) const;
  Result<std::uint64_t> prompt_tokens(RequestId id) const;
  Result<TierStart> start(RequestId id);
  Status wait_layer(RequestId id, std::uint32_t layer);
  Result<std::vector<PageId>> grow(RequestId id, std::uint64_t tokens);
  Status commit(RequestId id, std::span<const std::uint32_t> tokens);
  Status close(RequestId id);
  Status flush(std::uint64_t timeout_ns);
  Status clear();
  TierStatistics statistics() const;
  bool is_valid() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  // L3 while it is attached; jobs hold it.
  struct Shared {
    std::unique_ptr<SharedTier> tier;
    bool is_ending = false;
    std::uint32_t jobs = 0;
  };
  // Blocks of one tier in a row, for one store to L3.
  struct Segment {
    Tier tier = Tier::kHost;
    std::vector<BlockHash> hashes;
    std::vector<Slot> slots;
    NodeId node = kNoNode;  // locked in the tier
  };
  struct Write {
    std::shared_ptr<Shared> shared;
    NodeId node = kNoNode;
    std::optional<BlockHash> parent;
    std::vector<Segment> segments;
    std::uint64_t blocks = 0;
    bool is_whole = false;  // from the prompt's first block on
  };
  // What start() has found, and its slots.
  struct Plan {
    RadixMatch match;
    MatchSlots slots;
    std::uint32_t blocks = 0;       // of the prompt, its last part included
    std::uint32_t pool_blocks = 0;  // without L2: loaded from the pool
    std::vector<Slot> own;
  };

  // Requests
  Result<Request*> find(RequestId id) const;
  std::uint32_t tokens_to_blocks(std::uint64_t tokens) const;
  void relock(Request& request, NodeId device, NodeId host);
  void begin_fetch(Request& request, std::uint32_t first_block);
  bool is_ready(const Request& request, std::uint64_t now) const;
  std::uint64_t ready_at(const Request& request) const;
  Status take_device(const char* call, std::uint64_t blocks, std::vector<Slot>& slots, Lock& lock);
  Status load_from_pool(Request& request, Plan& plan, Lock& lock);
  Result<std::uint32_t> agree(Request& request, std::uint32_t blocks, Lock& lock);
  std::uint32_t worth_loading(const Plan& plan, std::uint64_t prompt_tokens);
  void begin_load(Request& request, Plan& plan, const Mark& mark);
  void wait_for_loads_of_others(Request& request, const Plan& plan);
  TierStart finish_start(Request& request, const Plan& plan, std::uint32_t cached);
  std::vector<PageId> pages_of(const Request& request) const;
  void release_fetch(Request& request);
  Status insert_in_pieces(const Request& request, std::uint32_t blocks);
  void count_unused(Fetch& fetch);
  void count_prompt(const Request& request, std::uint32_t first, std::uint32_t used);

  // Jobs
  void run_load(const std::shared_ptr<LoadJob>& job, NodeId node);
  void run_fetch(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<Shared>& shared);
  void find_in_shared(Fetch& fetch, Shared& shared, Lock& lock);
  void fetch_blocks(Fetch& fetch, Shared& shared, Lock& lock);
  void await_pool(Fetch& fetch, Shared& shared, Lock& lock);
  bool insert_fetched(Fetch& fetch, std::span<const Slot> slots);
  void write_out(NodeId node);
  bool begin_backup(NodeId node);
  void begin_write(NodeId node, bool is_whole);
  static std::uint64_t device_blocks_of(const Write& write);
  void run_write(Write& write);
  Result<Stored> store(Write& write, std::size_t& stored);
  void write_demoted();
  void end_job(std::shared_ptr<Shared> shared);

  const TieredCacheOptions options_;
  const std::uint32_t block_tokens_;
  const std::unique_ptr<TierCopies> copies_;
  Mark last_commit_;  // after all work that computes blocks of the tree
  const bool has_host_;
  const bool writes_shared_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  PrefetchOptions prefetch_;
  TierWrites writes_;
  std::uint32_t selective_uses_;
  TierBook book_;
  block_hash::BlockHasher hasher_;
  std::shared_ptr<Shared> shared_;
  std::map<std::uint64_t, std::unique_ptr<Request>> requests_;
  std::uint64_t next_request_ = 1;
  std::vector<std::shared_ptr<LoadJob>> loading_;  // by L1 slot; null: has arrived
  std::uint32_t loads_ = 0;                        // in flight
  std::uint64_t loading_blocks_ = 0;
  std::uint32_t backups_ = 0, writes_in_flight_ = 0;
  std::uint64_t fetching_blocks_ = 0;
  std::uint64_t write_queue_bytes_ = 0;
  std::uint64_t writing_device_blocks_ = 0;  // locked in L1
  std::unordered_set<BlockHash> written_;    // that L3 has or had; a bounded belief
  Bandwidth fetch_bandwidth_;
  TierStatistics counts_ = {};

  Workers copier_{1};
  std::unique_ptr<Workers> fetchers_;
  Workers writer_{1};
};

}  // namespace cachalot::tier
