#include "cache_sim/cache_model.h"

#include <utility>

#include "cache_sim/stream/block_nodes.h"
#include "cache_sim/stream/stream_cache.h"
#include "eviction/eviction_policy.h"

namespace cachalot::cache_sim {
namespace {

class StreamModel final : public CacheModel {
 public:
  explicit StreamModel(std::unique_ptr<StreamCache> cache) : cache_(std::move(cache)) {}

  Hits access(std::span<const std::uint32_t> path) override {
    for (const std::uint32_t block : path) cache_->prefetch(block);
    Hits hits;
    for (std::uint32_t place = 0; place < path.size(); ++place) {
      if (!cache_->access(path[place], place)) continue;
      if (hits.prefix == place) ++hits.prefix;
      ++hits.blocks;
    }
    return hits;
  }

  std::uint64_t resident_blocks() const override { return cache_->resident_blocks(); }

 private:
  std::unique_ptr<StreamCache> cache_;
};

class LeafModel final : public CacheModel {
 public:
  LeafModel(std::uint64_t capacity_blocks, std::unique_ptr<eviction::EvictionPolicy> policy)
      : capacity_(capacity_blocks), policy_(std::move(policy)) {}

  // Parents stay as long as their children: the resident blocks of a path are a leading run.
  Hits access(std::span<const std::uint32_t> path) override {
    for (const std::uint32_t block : path) nodes_.prefetch(block);
    std::size_t hits = 0;
    eviction::NodeId tail = eviction::kNoNode;
    while (hits < path.size()) {
      const eviction::NodeId node = nodes_.find(path[hits]);
      if (node == eviction::kNoNode) break;
      tail = node;
      ++hits;
    }
    if (tail != eviction::kNoNode) policy_->touch(tail);
    for (std::size_t i = hits; i < path.size() && make_room(tail); ++i) {
      const eviction::NodeId node = nodes_.add(path[i]);
      policy_->grow(nodes_.room());
      policy_->insert(node, tail, path[i]);
      tail = node;
    }
    return Hits{hits, hits};
  }

  std::uint64_t resident_blocks() const override { return nodes_.size(); }

 private:
  bool make_room(eviction::NodeId tail) {
    if (nodes_.size() < capacity_) return true;
    const eviction::NodeId victim = policy_->victim(tail);
    if (victim == eviction::kNoNode) return false;
    policy_->erase(victim);
    nodes_.remove(victim);
    return true;
  }

  std::uint64_t capacity_;
  BlockNodes nodes_;
  std::unique_ptr<eviction::EvictionPolicy> policy_;
};

}  // namespace

Status check_cache(const CacheSpec& spec) {
  if (spec.capacity_blocks == 0) {
    return Error::make(Code::kInvalidArgument, "capacity_blocks: 0, expected at least 1 or inf");
  }
  if (!eviction::has_mode(spec.policy, spec.mode)) {
    return Error::make(Code::kInvalidArgument, "policy: %s has no %s mode, expected one of: %s",
                       eviction::policy_name(spec.policy), eviction::cache_mode_name(spec.mode),
                       eviction::policy_names(spec.mode).c_str());
  }
  return {};
}

Result<std::unique_ptr<CacheModel>> make_cache_model(const CacheSpec& spec) {
  CACHALOT_TRY(check_cache(spec));
  if (spec.policy == eviction::PolicyKind::kOpt) {
    return Error::make(Code::kInvalidArgument, "policy: opt needs to know the future");
  }
  if (spec.mode == eviction::CacheMode::kLeaf) {
    return std::unique_ptr<CacheModel>(std::make_unique<LeafModel>(
        spec.capacity_blocks, eviction::make_leaf_policy(spec.policy, /*capacity_nodes=*/0)));
  }
  return std::unique_ptr<CacheModel>(
      std::make_unique<StreamModel>(make_stream_cache(spec.policy, spec.capacity_blocks)));
}

}  // namespace cachalot::cache_sim
