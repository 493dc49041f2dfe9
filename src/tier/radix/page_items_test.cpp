#include "tier/radix/page_items.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <vector>

namespace cachalot::tier {
namespace {

std::vector<int> numbers(int from, int to) {
  std::vector<int> all(static_cast<std::size_t>(to - from));
  std::iota(all.begin(), all.end(), from);
  return all;
}

std::vector<int> items(const PageItems<int>& run) {
  return {run.view().begin(), run.view().end()};
}

TEST(PageItems, ACutGivesTheFrontAndKeepsTheRest) {
  for (const int at : {0, 1, 5, 9, 10}) {
    PageItems<int> back(numbers(0, 10));
    const PageItems<int> front = back.split_front(static_cast<std::uint32_t>(at));
    EXPECT_EQ(items(front), numbers(0, at)) << at;
    EXPECT_EQ(items(back), numbers(at, 10)) << at;
  }
}

TEST(PageItemsDeathTest, ACutBeyondTheEndIsABug) {
  PageItems<int> run(numbers(0, 3));
  EXPECT_DEATH((void)run.split_front(4), "count <= size_");
}

// Cut at any places, in any piece: the pieces are the whole, and none holds more than twice its memory.
RC_GTEST_PROP(PageItems, PiecesOfManyCutsAreTheWhole, ()) {
  const int size = *rc::gen::inRange(1, 200);
  const auto cuts = *rc::gen::container<std::vector<std::pair<std::uint32_t, std::uint32_t>>>(
      rc::gen::pair(rc::gen::arbitrary<std::uint32_t>(), rc::gen::arbitrary<std::uint32_t>()));
  std::vector<PageItems<int>> pieces;
  pieces.emplace_back(numbers(0, size));
  for (const auto& [which, where] : cuts) {
    const std::size_t i = which % pieces.size();
    PageItems<int> front = pieces[i].split_front(where % (pieces[i].size() + 1));
    pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(i), std::move(front));
  }
  std::vector<int> all;
  for (const PageItems<int>& piece : pieces) {
    all.insert(all.end(), piece.view().begin(), piece.view().end());
    RC_ASSERT(piece.allocated_bytes() <= (2 * piece.size() + 1) * sizeof(int));
  }
  RC_ASSERT(all == numbers(0, size));
}

}  // namespace
}  // namespace cachalot::tier
