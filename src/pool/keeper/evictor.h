// Which published blocks stay and which are evicted: the keeper's side of the eviction policy.
//
// A block is in the policy's tree from enter() to evict(). Only leaves are evicted. Pinned blocks are
// held in the tree; tails of open chains are spared while there is any other leaf.
//
// Invariants (is_valid)
//   1. Those of the eviction policy.
//   2. A block is in the policy's tree if and only if it is live; its parent is live.
//
// @threads  one
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "eviction/eviction_policy.h"
#include "eviction/holds.h"
#include "eviction/leaf_lru.h"
#include "eviction/wrappers/copies_first.h"
#include "eviction/wrappers/expiring_leaves.h"
#include "pool/format/statistics.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/open_chains.h"
#include "pool/keeper/retention_rules.h"

namespace cachalot::pool {

class Evictor {
 public:
  // `policy` is that of `options`.
  Evictor(const Access& access, const KeeperOptions& options, eviction::PolicyKind policy,
          base::Clock& clock, Namespaces& namespaces, Blocks& blocks, DirectoryWriter& directory,
          KeeperCounters& counters);
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  OpenChains& open_chains() { return open_chains_; }

  // A block that has become live; its record and its namespace are known.
  // @param is_copy  another host has it, too
  void enter(std::uint32_t block, std::uint32_t parent, bool is_copy = false);
  // A live block was used.
  void touch(std::uint32_t block) {
    if (is_plain_lru_) {
      lru_->touch(block);
    } else {
      policy_->touch(block);
    }
  }
  // What touch() reads, for any block of the table: prefetch() some while before prefetch_neighbours(), that
  // before touch(). Where the policy has nothing to prefetch, can_prefetch() is false.
  bool can_prefetch() const { return lru_ != nullptr; }
  void prefetch(std::uint32_t block) const { lru_->prefetch(block); }
  void prefetch_neighbours(std::uint32_t block) const { lru_->prefetch_neighbours(block); }

  // Blocks that enter count as used now.
  void tell_policy_the_time();
  // Evicts what was not used for longer than the time to live. After each 4,096 blocks requests are
  // served; the next call continues soon.
  void expire();

  // A live block that is no victim, nor is its prefix, until as many calls of let_go().
  void keep(std::uint32_t block) {
    policy_->hold(block);
    kept_.add(block, table_.size());
  }
  void let_go(std::uint32_t block) {
    policy_->release(block);
    kept_.remove(block);
  }

  // The same, but for as long as there is any other leaf; `give_way` ends one of these, if there is one.
  void retain(std::uint32_t block) { policy_->hold(block); }
  void stop_retaining(std::uint32_t block) { policy_->release(block); }
  void set_last_resort(std::function<bool()> give_way) { give_way_ = std::move(give_way); }

  // Evicts the least valuable leaf; false if there is none but `protect` (kNoBlock: none), pinned blocks,
  // and tails of open chains.
  bool evict_one(std::uint32_t protect);
  // Evicts a leaf whose entry stands in the bucket of `hash`; false as evict_one().
  bool evict_from_bucket(const BlockHash& hash, std::uint32_t namespace_id, std::uint32_t protect);
  // Evicts a live block and all below it, leaves first. @return blocks @cost a look at every block
  std::uint32_t evict_subtree(std::uint32_t root);
  // Evicts all but pinned blocks and their prefixes. @return blocks
  std::uint32_t evict_all();
  // Evicts all blocks of a namespace, pinned ones, too. @return blocks @cost as evict_subtree()
  std::uint32_t evict_namespace(std::uint32_t namespace_id);

  // Evicts until at most so many blocks are live: a pool that lost a device has fewer.
  void fit(std::uint32_t capacity) {
    while (blocks_.count(BlockState::kLive) > capacity && evict_one(kNoBlock)) {
    }
    access_.domain().order();
  }
  // Evicts all blocks from `first` on, and all below them. @return blocks @cost as evict_subtree()
  std::uint32_t evict_from(std::uint32_t first);
  // Of the blocks that evict_from() evicts, those that stay otherwise: pinned ones, and the last ones of contexts.
  std::uint32_t count_kept(std::uint32_t first) const;

  bool is_valid() const;

 private:
  void make_policy(const KeeperOptions& options, eviction::PolicyKind kind);
  void add_quotas(const KeeperOptions& options);
  std::vector<std::uint32_t> all_below(const std::function<bool(std::uint32_t)>& is_root) const;
  void evict_from_leaves(const std::vector<std::uint32_t>& blocks);
  void evict(std::uint32_t block);
  bool is_pinned(std::uint32_t block) const {
    return rules_.is_pinned(table_.use(block).namespace_id, table_.record(block).hash);
  }

  const Access& access_;
  base::Clock& clock_;
  std::uint64_t ttl_ns_;
  bool copies_first_;
  RetentionRules rules_;
  Namespaces& namespaces_;
  Blocks& blocks_;
  const BlockTable& table_;  // of blocks_
  DirectoryWriter& directory_;
  KeeperCounters& counters_;
  std::unique_ptr<eviction::EvictionPolicy> policy_;
  // policy_ or what it wraps, where blocks do not expire; is_plain_lru_: nothing is around it, and touches are inlined.
  eviction::LeafLru* lru_ = nullptr;
  bool is_plain_lru_ = false;
  eviction::CopiesFirst* copies_ = nullptr;   // policy_ or what it wraps, where copies go first
  eviction::ExpiringLeaves* ages_ = nullptr;  // policy_, where blocks expire
  OpenChains open_chains_;
  eviction::Holds kept_;
  std::function<bool()> give_way_;
  std::uint64_t next_expiry_ns_ = 0;
};

}  // namespace cachalot::pool
