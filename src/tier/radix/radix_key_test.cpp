#include "tier/radix/radix_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cachalot::tier {
namespace {

using Tokens = std::vector<Token>;

// Case 1.
TEST(RadixKey, TokensMatchUpToTheFirstDifference) {
  EXPECT_EQ(common_tokens(Tokens{1, 2, 3, 4}, Tokens{1, 2, 3, 4}), 4u);
  EXPECT_EQ(common_tokens(Tokens{1, 2, 3, 4}, Tokens{1, 2, 9, 9}), 2u);
  EXPECT_EQ(common_tokens(Tokens{9, 2, 3}, Tokens{1, 2, 3}), 0u);
  EXPECT_EQ(common_tokens(Tokens{1, 2, 3, 4}, Tokens{1, 2, 3}), 3u);
  EXPECT_EQ(common_tokens(Tokens{}, Tokens{1, 2}), 0u);
  EXPECT_EQ(common_tokens(Tokens{1, 2}, Tokens{}), 0u);
}

// Case 3.
TEST(RadixKey, TheFirstDifferenceOfLongKeysIsFound) {
  Tokens one(2000);
  std::iota(one.begin(), one.end(), 10);
  for (const std::size_t at : {1, 2, 63, 64, 65, 127, 128, 511, 512, 513, 1234, 1999}) {
    Tokens other = one;
    other[at] ^= 0x80000000u;
    EXPECT_EQ(common_tokens(one, other), at);
  }
  EXPECT_EQ(common_tokens(one, one), 2000u);
}

}  // namespace
}  // namespace cachalot::tier
