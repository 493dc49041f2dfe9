#include "eviction/structure/indexed_heap.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

TEST(IndexedHeap, IsEmptyAtFirst) {
  IndexedHeap heap;
  EXPECT_EQ(heap.top(), kNoNode);
  EXPECT_EQ(heap.top_but(kNoNode), kNoNode);
  EXPECT_FALSE(heap.contains(0));
}

TEST(IndexedHeapDeathTest, RefusesWhatIsTwiceThereOrNotAtAll) {
  IndexedHeap heap;
  heap.grow(2);
  heap.push(0, {});
  EXPECT_DEATH(heap.push(0, {}), "kNowhere");
  EXPECT_DEATH(heap.erase(1), "contains");
  EXPECT_DEATH(heap.push(2, {}), "size");
}

RC_GTEST_PROP(IndexedHeap, HasTheLowestOnTopAfterAnySteps, ()) {
  constexpr NodeId kNodes = 40;
  IndexedHeap heap;
  heap.grow(kNodes);
  std::map<NodeId, Rank> naive;
  const auto lowest_but = [&](NodeId spared) {
    NodeId best = kNoNode;
    for (const auto& [node, rank] : naive) {
      if (node != spared && (best == kNoNode || rank < naive[best])) best = node;
    }
    return best;
  };
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, std::uint64_t>>>(
      rc::gen::tuple(rc::gen::inRange(0, 4), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<std::uint64_t>(0, 8)));
  std::uint64_t step = 0;
  for (const auto& [what, node, first] : steps) {
    const Rank rank{first, ++step};  // no ties
    if (!heap.contains(node)) {
      const NodeId top = heap.top();
      if (what == 0 && top != kNoNode) {
        heap.replace(top, node, rank);
        naive.erase(top);
      } else {
        heap.push(node, rank);
      }
      naive[node] = rank;
    } else if (what == 1) {
      heap.erase(node);
      naive.erase(node);
    } else {
      heap.update(node, rank);
      naive[node] = rank;
    }
    RC_ASSERT(heap.is_valid());
    RC_ASSERT(heap.size() == naive.size());
    RC_ASSERT(heap.top() == lowest_but(kNoNode));
    RC_ASSERT(heap.top_but(heap.top()) == lowest_but(heap.top()));
    RC_ASSERT(heap.top_but(node) == lowest_but(node));
  }
}

}  // namespace
}  // namespace cachalot::eviction
