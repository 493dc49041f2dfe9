#include "eviction/structure/node_lists.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

template <std::uint32_t kLists>
std::vector<NodeId> in_order(const NodeLists<kLists>& lists, std::uint32_t list) {
  std::vector<NodeId> nodes;
  for (NodeId n = lists.oldest(list); n != kNoNode; n = lists.newer(n)) nodes.push_back(n);
  return nodes;
}

RC_GTEST_PROP(NodeLists, AreQueuesThatShareTheirNodes, ()) {
  constexpr NodeId kNodes = 12;
  constexpr std::uint32_t kLists = 3;
  NodeLists<kLists> lists;
  lists.grow(kNodes);
  std::array<std::vector<NodeId>, kLists> naive;
  const auto steps = *rc::gen::container<std::vector<std::tuple<bool, NodeId, std::uint32_t>>>(
      rc::gen::tuple(rc::gen::arbitrary<bool>(), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<std::uint32_t>(0, kLists)));
  for (const auto& [leaves, node, list] : steps) {
    const bool is_in = lists.list_of(node) != NodeLists<kLists>::kInNone;
    if (is_in) std::erase(naive[lists.list_of(node)], node);
    if (is_in && leaves) {
      lists.erase(node);
    } else if (is_in) {
      lists.move_to_newest(list, node);
      naive[list].push_back(node);
    } else {
      lists.push_newest(list, node);
      naive[list].push_back(node);
    }
    for (std::uint32_t l = 0; l < kLists; ++l) {
      RC_ASSERT(in_order(lists, l) == naive[l]);
      RC_ASSERT(lists.size(l) == naive[l].size());
    }
  }
}

TEST(NodeLists, KeepTheirOrderWhenTheyGrow) {
  NodeLists<2> lists;
  lists.grow(2);
  lists.push_newest(1, 1);
  lists.push_newest(1, 0);
  lists.grow(1000);
  lists.push_newest(1, 999);
  EXPECT_EQ(in_order(lists, 1), (std::vector<NodeId>{1, 0, 999}));
  EXPECT_EQ(lists.oldest(0), kNoNode);
}

TEST(NodeListsDeathTest, ANodeIsInOneListOnly) {
  NodeLists<2> lists;
  lists.grow(1);
  lists.push_newest(0, 0);
  EXPECT_DEATH(lists.push_newest(1, 0), "kInNone");
}

}  // namespace
}  // namespace cachalot::eviction
