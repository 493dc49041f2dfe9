#include "index/cache_model.h"

#include <algorithm>
#include <string>
#include <vector>

#include "index/lru_list.h"

namespace cachalot::index {
namespace {

// Gives the blocks that are resident dense node numbers below the capacity, however many blocks the
// trace has: the lists and trees of a small cache stay small.
class Nodes {
 public:
  explicit Nodes(std::uint64_t capacity_blocks) : capacity_(capacity_blocks) {}

  bool is_full() const { return resident_ >= capacity_; }
  std::uint64_t resident() const { return resident_; }
  // How many node numbers may be in use soon: what lists and trees must have room for.
  std::uint32_t room() const { return static_cast<std::uint32_t>(block_of_.size()); }

  // kNoNode: not resident.
  NodeId find(std::uint32_t block) const {
    return block < node_of_.size() ? node_of_[block] : kNoNode;
  }

  // Not while full.
  NodeId add(std::uint32_t block) {
    if (block >= node_of_.size()) node_of_.resize(grown(block), kNoNode);
    NodeId node = free_;
    if (node == kNoNode) {
      node = used_++;
      if (node >= block_of_.size()) block_of_.resize(grown(node), kNoNode);
    }
    free_ = kNoNode;
    node_of_[block] = node;
    block_of_[node] = block;
    ++resident_;
    return node;
  }

  // A block goes only to make room for the next, so one free number is all there ever is.
  void remove(NodeId node) {
    CACHALOT_CHECK(free_ == kNoNode);
    node_of_[block_of_[node]] = kNoNode;
    free_ = node;
    --resident_;
  }

 private:
  // A size that holds `index` and at least doubles, as far as numbers go.
  static std::size_t grown(std::uint32_t index) {
    return std::min<std::size_t>(std::max<std::size_t>(1024, std::size_t{index} * 2), kMaxNodes);
  }

  std::uint64_t capacity_;
  std::uint64_t resident_ = 0;
  std::uint32_t used_ = 0;
  NodeId free_ = kNoNode;
  std::vector<NodeId> node_of_;          // of a block
  std::vector<std::uint32_t> block_of_;  // of a node
};

class StreamLru final : public CacheModel {
 public:
  explicit StreamLru(std::uint64_t capacity_blocks) : nodes_(capacity_blocks), list_(0) {}

  Hits access(std::span<const std::uint32_t> path) override {
    Hits hits;
    for (std::size_t i = 0; i < path.size(); ++i) {
      if (const NodeId node = nodes_.find(path[i]); node != kNoNode) {
        list_.move_to_newest(node);
        if (hits.prefix == i) ++hits.prefix;
        ++hits.blocks;
      } else {
        store(path[i]);
      }
    }
    return hits;
  }

  std::uint64_t resident_blocks() const override { return nodes_.resident(); }

 private:
  void store(std::uint32_t block) {
    if (nodes_.is_full()) {
      const NodeId victim = list_.oldest();
      list_.erase(victim);
      nodes_.remove(victim);
    }
    const NodeId node = nodes_.add(block);
    list_.grow(nodes_.room());
    list_.insert_newest(node);
  }

  Nodes nodes_;
  LruList list_;
};

class LeafCache final : public CacheModel {
 public:
  LeafCache(std::uint64_t capacity_blocks, std::unique_ptr<EvictionPolicy> policy)
      : nodes_(capacity_blocks), policy_(std::move(policy)) {}

  // Parents stay as long as their children: the resident blocks of a path are a leading run.
  Hits access(std::span<const std::uint32_t> path) override {
    std::size_t hits = 0;
    NodeId tail = kNoNode;
    while (hits < path.size()) {
      const NodeId node = nodes_.find(path[hits]);
      if (node == kNoNode) break;
      tail = node;
      ++hits;
    }
    if (tail != kNoNode) policy_->touch(tail);
    for (std::size_t i = hits; i < path.size() && make_room(tail); ++i) {
      const NodeId node = nodes_.add(path[i]);
      policy_->grow(nodes_.room());
      policy_->insert(node, tail);
      tail = node;
    }
    return Hits{hits, hits};
  }

  std::uint64_t resident_blocks() const override { return nodes_.resident(); }

 private:
  bool make_room(NodeId tail) {
    if (!nodes_.is_full()) return true;
    const NodeId victim = policy_->victim(tail);
    if (victim == kNoNode) return false;
    policy_->erase(victim);
    nodes_.remove(victim);
    return true;
  }

  Nodes nodes_;
  std::unique_ptr<EvictionPolicy> policy_;
};

}  // namespace

const char* cache_mode_name(CacheMode mode) {
  return mode == CacheMode::kStream ? "stream" : "leaf";
}

Result<CacheMode> parse_cache_mode(std::string_view name) {
  for (const CacheMode mode : {CacheMode::kStream, CacheMode::kLeaf}) {
    if (name == cache_mode_name(mode)) return mode;
  }
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "mode: %s is unknown, expected stream or leaf",
                     shown.c_str());
}

Result<std::unique_ptr<CacheModel>> make_cache_model(const CacheSpec& spec) {
  if (spec.capacity_blocks == 0) {
    return Error::make(Code::kInvalidArgument, "capacity_blocks: 0, expected at least 1 or inf");
  }
  if (spec.mode == CacheMode::kLeaf) {
    return std::unique_ptr<CacheModel>(std::make_unique<LeafCache>(
        spec.capacity_blocks, make_leaf_policy(spec.policy, /*capacity_nodes=*/0)));
  }
  switch (spec.policy) {
    case PolicyKind::kLru:
      return std::unique_ptr<CacheModel>(std::make_unique<StreamLru>(spec.capacity_blocks));
  }
  return Error::make(Code::kInvalidArgument, "policy: %s has no stream mode",
                     policy_name(spec.policy));
}

}  // namespace cachalot::index
