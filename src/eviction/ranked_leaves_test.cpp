#include "eviction/ranked_leaves.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

// By its definition: all that is known of each node, and a search.
template <class Order>
class Naive {
 public:
  struct Node {
    NodeId parent;
    NodeMemory memory;
    int holders = 0;
  };
  void insert(NodeId node, NodeId parent) {
    ++now_;
    const std::uint32_t depth = parent == kNoNode ? 0 : nodes_[parent].memory.depth + 1;
    nodes_[node] = {parent, {now_, now_, 1, depth}};
  }
  void touch(NodeId node) {
    ++now_;
    for (; node != kNoNode; node = nodes_[node].parent) {
      nodes_[node].memory.used_at = now_;
      ++nodes_[node].memory.uses;
    }
  }
  void erase(NodeId node) { nodes_.erase(node); }
  void hold(NodeId node, int by) { nodes_[node].holders += by; }
  bool is_held(NodeId node) { return nodes_[node].holders > 0; }
  NodeId victim(NodeId protect) const {
    NodeId best = kNoNode;
    for (const auto& [node, own] : nodes_) {
      bool may_go = node != protect && own.holders == 0;
      for (const auto& [other, its] : nodes_) may_go = may_go && its.parent != node;
      if (!may_go) continue;
      if (best == kNoNode || Order::rank(own.memory) < Order::rank(nodes_.at(best).memory)) {
        best = node;
      }
    }
    return best;
  }

 private:
  std::map<NodeId, Node> nodes_;
  std::uint64_t now_ = 0;
};

template <class Order>
void compare_with_the_definition() {
  constexpr NodeId kNodes = 20;
  RankedLeaves<Order> policy(kNodes);
  Naive<Order> naive;
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, NodeId>>>(
      rc::gen::tuple(rc::gen::inRange(0, 6), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, kNodes)));
  for (const auto& [what, node, other] : steps) {
    if (!policy.residency().contains(node)) {
      const NodeId parent = policy.residency().contains(other) ? other : kNoNode;
      policy.insert(node, parent);
      naive.insert(node, parent);
    } else if (what == 0 && policy.residency().is_leaf(node)) {
      policy.erase(node);
      naive.erase(node);
    } else if (what == 1) {
      policy.hold(node);
      naive.hold(node, 1);
    } else if (what == 2 && naive.is_held(node)) {
      policy.release(node);
      naive.hold(node, -1);
    } else {
      policy.touch(node);
      naive.touch(node);
    }
    RC_ASSERT(policy.is_valid());
    RC_ASSERT(policy.victim(kNoNode) == naive.victim(kNoNode));
    const NodeId protect = policy.residency().contains(other) ? other : kNoNode;
    RC_ASSERT(policy.victim(protect) == naive.victim(protect));
  }
}

RC_GTEST_PROP(RankedLeaves, FifoChoosesTheVictimsOfTheDefinition, ()) {
  compare_with_the_definition<FifoOrder>();
}
RC_GTEST_PROP(RankedLeaves, LfuChoosesTheVictimsOfTheDefinition, ()) {
  compare_with_the_definition<LfuOrder>();
}
RC_GTEST_PROP(RankedLeaves, LengthAwareChoosesTheVictimsOfTheDefinition, ()) {
  compare_with_the_definition<LengthAwareOrder>();
}

}  // namespace
}  // namespace cachalot::eviction
