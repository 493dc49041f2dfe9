#include "cache_sim/chain_numbers.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "base/rng.h"

namespace cachalot::cache_sim {
namespace {

TEST(ChainNumbers, TheSameIdBelowAnotherParentIsAnotherPrefix) {
  ChainNumbers numbers;
  const std::uint32_t a = numbers.number_of(eviction::kNoNode, 7);
  const std::uint32_t b = numbers.number_of(eviction::kNoNode, 8);
  const std::uint32_t a7 = numbers.number_of(a, 7);
  EXPECT_NE(a7, a);
  EXPECT_NE(numbers.number_of(b, 7), a7);
  EXPECT_EQ(numbers.number_of(eviction::kNoNode, 7), a);
  EXPECT_EQ(numbers.number_of(a, 7), a7);
  EXPECT_EQ(numbers.size(), 4u);
}

TEST(ChainNumbers, CountsUpAndRemembersAllWhileTheTableGrows) {
  ChainNumbers numbers;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> model;
  base::Rng rng(3);
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t parent = model.empty() || rng.below(4) == 0
                                     ? eviction::kNoNode
                                     : static_cast<std::uint32_t>(rng.below(50));
    const std::uint64_t id = rng.below(400) * 0x100000001u;
    const auto next = static_cast<std::uint32_t>(model.size());
    const std::uint32_t expected = model.emplace(std::pair(parent, id), next).first->second;
    ASSERT_EQ(numbers.number_of(parent, id), expected);
  }
  EXPECT_GT(model.size(), 5000u);
  EXPECT_EQ(numbers.size(), model.size());
}

TEST(ChainNumbers, WhenAllAreTakenKnownPrefixesKeepTheirsAndNewOnesGetNone) {
  ChainNumbers numbers(2);
  EXPECT_EQ(numbers.number_of(eviction::kNoNode, 7), 0u);
  EXPECT_EQ(numbers.number_of(0, 7), 1u);
  EXPECT_EQ(numbers.number_of(1, 7), eviction::kNoNode);
  EXPECT_EQ(numbers.number_of(eviction::kNoNode, 8), eviction::kNoNode);
  EXPECT_EQ(numbers.number_of(0, 7), 1u);
  EXPECT_EQ(numbers.size(), 2u);
}

}  // namespace
}  // namespace cachalot::cache_sim
