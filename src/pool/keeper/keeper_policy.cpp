// Which blocks stay and which go: the keeper's side of the eviction policy.
#include <algorithm>
#include <tuple>

#include "base/rng.h"
#include "eviction/structure/prioritized_leaves.h"
#include "pool/keeper/keeper.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kTickNs = 100'000'000;   // what expiry counts in
constexpr std::uint32_t kExpiredAtATime = 4096;  // then requests are served again

std::uint32_t tick_at(std::uint64_t now_ns) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(now_ns / kTickNs + 1, 0xfffffffeu));
}

bool is_before(const PinnedBlock& a, const PinnedBlock& b) {
  const auto key = [](const PinnedBlock& pin) {
    return std::tuple(pin.namespace_digest.low, pin.namespace_digest.high, pin.hash.low,
                      pin.hash.high);
  };
  return key(a) < key(b);
}

}  // namespace

Status KeeperOptions::check() const {
  CACHALOT_TRY(eviction::parse_pool_policy(policy));
  if (max_grants == 0) {
    return Error::make(Code::kInvalidArgument, "grants per client: 0 is not at least 1");
  }
  for (const NamespacePriority& wanted : priorities) {
    if (wanted.priority < eviction::PrioritizedLeaves::kPriorities) continue;
    return Error::make(Code::kInvalidArgument, "priority of a namespace: %u, expected 0 to %u",
                       wanted.priority, eviction::PrioritizedLeaves::kPriorities - 1);
  }
  return {};
}

void Keeper::make_policy(eviction::PolicyKind kind) {
  const std::uint32_t nodes = access_.geometry.blocks;
  std::sort(options_.pins.begin(), options_.pins.end(), is_before);
  if (options_.priorities.empty()) {
    policy_ = eviction::make_leaf_policy(kind, nodes);
  } else {
    policy_ = std::make_unique<eviction::PrioritizedLeaves>(
        kind, nodes,
        [this](eviction::NodeId root) { return priority_of(blocks_.use(root).namespace_id); });
  }
  if (options_.ttl_ns != 0) {
    auto ages = std::make_unique<eviction::ExpiringLeaves>(std::move(policy_), nodes);
    ages_ = ages.get();
    policy_ = std::move(ages);
  }
  lru_ = dynamic_cast<eviction::LeafLru*>(policy_.get());
}

std::uint32_t Keeper::priority_of(std::uint32_t namespace_id) const {
  if (is_namespace(namespace_id)) {
    for (const NamespacePriority& wanted : options_.priorities) {
      if (wanted.namespace_digest == namespaces_[namespace_id - 1]) return wanted.priority;
    }
  }
  return KeeperOptions::kDefaultPriority;
}

bool Keeper::is_pinned(std::uint32_t block) const {
  if (options_.pins.empty()) return false;
  const std::uint32_t namespace_id = blocks_.use(block).namespace_id;
  if (!is_namespace(namespace_id)) return false;
  return std::binary_search(options_.pins.begin(), options_.pins.end(),
                            PinnedBlock{namespaces_[namespace_id - 1], blocks_.record(block).hash},
                            is_before);
}

// What the policy may know a block by when it comes again: its hash, apart for each namespace.
std::uint64_t Keeper::name_of(std::uint32_t block) const {
  return blocks_.record(block).hash.low ^ base::mix64(blocks_.use(block).namespace_id);
}

// A block that has become live; its record and its namespace are known.
void Keeper::enter_tree(std::uint32_t block, std::uint32_t parent) {
  policy_->insert(block, parent, name_of(block));
  if (is_pinned(block)) policy_->hold(block);
}

void Keeper::tell_policy_the_time() {
  if (ages_ != nullptr) ages_->set_now(tick_at(clock_->now_ns()));
}

// Evicts what was not used for longer than the time to live. After each 4,096 of them others have their
// turn: the next look is soon.
void Keeper::expire() {
  if (ages_ == nullptr) return;
  const std::uint64_t now_ns = clock_->now_ns();
  ages_->set_now(tick_at(now_ns));
  if (now_ns < next_expiry_ns_ || now_ns < options_.ttl_ns) return;
  const std::uint32_t limit = tick_at(now_ns - options_.ttl_ns);
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

// Evicts the least valuable leaf; false if there is none but `protect`, what is pinned, and the tails of
// open chains. Such a tail is in use, whatever the order says: it is held while the next one is looked for.
bool Keeper::evict_one(std::uint32_t protect) {
  eviction::NodeId block = policy_->victim(protect);
  if (open_chains_.size() != 0) {
    std::vector<eviction::NodeId> spared;  // takes memory only if there is one
    while (block != eviction::kNoNode && open_chains_.has_tail(block)) {
      policy_->hold(block);
      spared.push_back(block);
      block = policy_->victim(protect);
    }
    for (const eviction::NodeId tail : spared) policy_->release(tail);
  }
  if (block == eviction::kNoNode) return false;
  evict(block);
  return true;
}

}  // namespace cachalot::pool
