#include "pool/keeper/evictor.h"

#include <algorithm>
#include <vector>

#include "base/fail_point.h"
#include "base/rng.h"
#include "eviction/wrappers/prioritized_leaves.h"
#include "eviction/wrappers/quota_leaves.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kTickNs = 100'000'000;   // what expiry counts in
constexpr std::uint32_t kExpiredAtATime = 4096;  // then requests are served again

std::uint32_t tick_at(std::uint64_t now_ns) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(now_ns / kTickNs + 1, 0xfffffffeu));
}

}  // namespace

Evictor::Evictor(const Access& access, const KeeperOptions& options, eviction::PolicyKind policy,
                 base::Clock& clock, Namespaces& namespaces, Blocks& blocks,
                 DirectoryWriter& directory, KeeperCounters& counters)
    : access_(access),
      clock_(clock),
      ttl_ns_(options.ttl_ns),
      copies_first_(options.copies_first),
      rules_(options, namespaces),
      namespaces_(namespaces),
      blocks_(blocks),
      table_(blocks.table()),
      directory_(directory),
      counters_(counters) {
  make_policy(options, policy);
}

void Evictor::make_policy(const KeeperOptions& options, eviction::PolicyKind kind) {
  const std::uint32_t nodes = table_.size();
  if (rules_.has_priorities()) {
    policy_ =
        std::make_unique<eviction::PrioritizedLeaves>(kind, nodes, [this](eviction::NodeId root) {
          return rules_.priority_of(table_.use(root).namespace_id);
        });
  } else {
    policy_ = eviction::make_leaf_policy(kind, nodes);
    lru_ = dynamic_cast<eviction::LeafLru*>(policy_.get());
  }
  is_plain_lru_ = lru_ != nullptr && !copies_first_ && ttl_ns_ == 0 && options.quotas.empty();
  // Where an operator said which namespaces go last, that alone counts.
  if (copies_first_ && !rules_.has_priorities()) {
    auto copies = std::make_unique<eviction::CopiesFirst>(std::move(policy_), nodes);
    copies_ = copies.get();
    policy_ = std::move(copies);
  }
  add_quotas(options);
  if (ttl_ns_ != 0) {
    auto ages = std::make_unique<eviction::ExpiringLeaves>(std::move(policy_), nodes);
    ages_ = ages.get();
    policy_ = std::move(ages);
    lru_ = nullptr;
  }
}

void Evictor::add_quotas(const KeeperOptions& options) {
  if (options.quotas.empty()) return;
  std::vector<std::uint64_t> blocks;
  for (std::uint32_t quota = 0; quota < options.quotas.size(); ++quota)
    blocks.push_back(namespaces_.quota_blocks(quota));
  policy_ = std::make_unique<eviction::QuotaLeaves>(
      std::move(policy_), table_.size(), std::move(blocks), [this](eviction::NodeId root) {
        return namespaces_.quota_of(table_.use(root).namespace_id);
      });
}

void Evictor::enter(std::uint32_t block, std::uint32_t parent, bool is_copy) {
  // What the policy may know a block by when it comes again: its hash, apart for each namespace.
  const std::uint64_t name =
      table_.record(block).hash.low ^ base::mix64(table_.use(block).namespace_id);
  policy_->insert(block, parent, name);
  namespaces_.add_live(table_.use(block).namespace_id);
  if (is_copy && copies_ != nullptr) copies_->mark_copy(block);
  if (is_pinned(block)) policy_->hold(block);
}

void Evictor::tell_policy_the_time() {
  if (ages_ != nullptr) ages_->set_now(tick_at(clock_.now_ns()));
}

void Evictor::expire() {
  if (ages_ == nullptr) return;
  const std::uint64_t now_ns = clock_.now_ns();
  ages_->set_now(tick_at(now_ns));
  if (now_ns < next_expiry_ns_ || now_ns < ttl_ns_) return;
  const std::uint32_t limit = tick_at(now_ns - ttl_ns_);
  for (std::uint32_t expired = 0; expired < kExpiredAtATime; ++expired) {
    const eviction::NodeId leaf = ages_->unused_since(limit);
    if (leaf == eviction::kNoNode) {
      next_expiry_ns_ = now_ns + kTickNs;
      break;
    }
    evict(leaf);
    ++counters_[KeeperCounter::kExpired];
  }
  access_.domain().order();
}

// The tail of an open chain is in use, whatever the order says: it is held while the next leaf is looked for.
bool Evictor::evict_one(std::uint32_t protect) {
  // What sessions retain goes when there is nothing else.
  const auto next = [&] {
    eviction::NodeId leaf = policy_->victim(protect);
    while (leaf == eviction::kNoNode && give_way_ && give_way_()) leaf = policy_->victim(protect);
    return leaf;
  };
  eviction::NodeId block = next();
  if (open_chains_.size() != 0) {
    std::vector<eviction::NodeId> spared;  // takes memory only if there is one
    while (block != eviction::kNoNode && open_chains_.has_tail(block)) {
      policy_->hold(block);
      spared.push_back(block);
      block = next();
    }
    for (const eviction::NodeId tail : spared) policy_->release(tail);
  }
  if (block == eviction::kNoNode) return false;
  ++counters_[KeeperCounter::kCapacityEvictions];
  evict(block);
  return true;
}

bool Evictor::evict_from_bucket(const BlockHash& hash, std::uint32_t namespace_id,
                                std::uint32_t protect) {
  std::uint32_t leaf = kNoBlock;
  directory_.for_each_in_bucket(hash, namespace_id, [&](std::uint32_t block) {
    const bool is_evictable = block != protect && policy_->residency().is_leaf(block) &&
                              !open_chains_.has_tail(block) && !is_pinned(block) &&
                              !kept_.is_held(block);
    if (is_evictable) leaf = block;
  });
  if (leaf == kNoBlock) return false;
  ++counters_[KeeperCounter::kBucketEvictions];
  evict(leaf);
  return true;
}

std::uint32_t Evictor::evict_all() {
  std::uint32_t evicted = 0;
  while (give_way_ && give_way_()) {
  }
  for (eviction::NodeId leaf; (leaf = policy_->victim(eviction::kNoNode)) != eviction::kNoNode;
       ++evicted)
    evict(leaf);
  counters_[KeeperCounter::kRequestedEvictions] += evicted;
  return evicted;
}

void Evictor::evict(std::uint32_t block) {
  open_chains_.forget_block(block);
  policy_->erase(block);
  kept_.forget(block);
  namespaces_.add_eviction(table_.use(block).namespace_id);
  directory_.retract(block);
  ++counters_[KeeperCounter::kEvictions];
  base::reach(base::FailPoint::kEvictionDone);
  blocks_.retire(block);
}

std::uint32_t Evictor::evict_subtree(std::uint32_t root) {
  const std::vector<std::uint32_t> inside =
      all_below([root](std::uint32_t block) { return block == root; });
  evict_from_leaves(inside);
  return static_cast<std::uint32_t>(inside.size());
}

std::uint32_t Evictor::evict_from(std::uint32_t first) {
  const std::vector<std::uint32_t> inside =
      all_below([first](std::uint32_t block) { return block >= first; });
  evict_from_leaves(inside);
  return static_cast<std::uint32_t>(inside.size());
}

std::uint32_t Evictor::count_kept(std::uint32_t first) const {
  const std::vector<std::uint32_t> inside =
      all_below([first](std::uint32_t block) { return block >= first; });
  return static_cast<std::uint32_t>(std::count_if(
      inside.begin(), inside.end(),
      [this](std::uint32_t block) { return is_pinned(block) || kept_.is_held(block); }));
}

// Live blocks that are roots, or have one above them. Rare, so a scan over all blocks will do.
std::vector<std::uint32_t> Evictor::all_below(
    const std::function<bool(std::uint32_t)>& is_root) const {
  enum : std::uint8_t { kUnknown, kInside, kOutside };
  std::vector<std::uint8_t> where(table_.size(), kUnknown);
  std::vector<std::uint32_t> path, inside;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    if (table_.use(block).state != BlockState::kLive) continue;
    std::uint32_t at = block;
    path.clear();
    while (at != kNoBlock && where[at] == kUnknown && path.size() < table_.size()) {
      path.push_back(at);
      if (is_root(at)) break;
      at = table_.record(at).parent;
    }
    const bool is_inside = at != kNoBlock && (where[at] == kInside || is_root(at));
    for (const std::uint32_t node : path) where[node] = is_inside ? kInside : kOutside;
    if (where[block] == kInside) inside.push_back(block);
  }
  return inside;
}

std::uint32_t Evictor::evict_namespace(std::uint32_t namespace_id) {
  std::vector<std::uint32_t> inside;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    const BlockTable::Use& use = table_.use(block);
    if (use.state == BlockState::kLive && use.namespace_id == namespace_id) inside.push_back(block);
  }
  evict_from_leaves(inside);
  return static_cast<std::uint32_t>(inside.size());
}

// Whole subtrees, in any order. Each pass takes the leaves that are left; a chain needs as many passes as it is deep, so
// start again from a parent as soon as it has become a leaf.
void Evictor::evict_from_leaves(const std::vector<std::uint32_t>& blocks) {
  std::vector<bool> is_inside(table_.size());
  for (const std::uint32_t block : blocks) is_inside[block] = true;
  for (std::uint32_t block : blocks) {
    while (block != kNoBlock && is_inside[block] && policy_->residency().is_leaf(block)) {
      const std::uint32_t parent = table_.record(block).parent;
      evict(block);
      is_inside[block] = false;
      block = parent;
    }
  }
  counters_[KeeperCounter::kRequestedEvictions] += blocks.size();
}

bool Evictor::is_valid() const {
  if (!policy_->is_valid()) return false;
  const eviction::Residency& tree = policy_->residency();
  if (tree.size() != table_.count(BlockState::kLive)) return false;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    const bool is_live = table_.use(block).state == BlockState::kLive;
    if (tree.contains(block) != is_live) return false;
    if (is_live && tree.parent(block) != table_.record(block).parent) return false;
  }
  return true;
}

}  // namespace cachalot::pool
