#include "tier/radix/radix_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cachalot::tier {
namespace {

using Tokens = std::vector<Token>;

std::size_t common(const Tokens& one, const Tokens& other, std::uint32_t page_tokens) {
  return common_elements({.tokens = one}, {.tokens = other}, page_tokens);
}

// Case 1.
TEST(RadixKey, PagesOfOneTokenMatchTokenByToken) {
  EXPECT_EQ(common({1, 2, 3, 4}, {1, 2, 3, 4}, 1), 4u);
  EXPECT_EQ(common({1, 2, 3, 4}, {1, 2, 9, 9}, 1), 2u);
  EXPECT_EQ(common({9, 2, 3}, {1, 2, 3}, 1), 0u);
  EXPECT_EQ(common({1, 2, 3, 4}, {1, 2, 3}, 1), 3u);
  EXPECT_EQ(common({}, {1, 2}, 1), 0u);
  EXPECT_EQ(common({1, 2}, {}, 1), 0u);
}

// Case 2.
TEST(RadixKey, OnlyWholePagesMatch) {
  EXPECT_EQ(common({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 9, 8}, 4), 4u);
  EXPECT_EQ(common({1, 2, 3, 4}, {1, 9, 3, 4}, 4), 0u);
  EXPECT_EQ(common({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 9, 6, 7, 8}, 4), 4u);
  EXPECT_EQ(common({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 8}, 4), 8u);
  EXPECT_EQ(common({1, 2, 3}, {1, 2, 3}, 4), 0u);
}

// Case 3.
TEST(RadixKey, TheFirstDifferenceOfLongKeysIsFound) {
  Tokens one(2000);
  std::iota(one.begin(), one.end(), 10);
  for (const std::uint32_t page_tokens : {1u, 4u, 64u}) {
    for (const std::size_t at : {1, 2, 63, 64, 65, 127, 128, 511, 512, 513, 1234, 1999}) {
      Tokens other = one;
      other[at] ^= 0x80000000u;
      EXPECT_EQ(common(one, other, page_tokens), at / page_tokens * page_tokens) << at;
    }
  }
  EXPECT_EQ(common(one, one, 64), 1984u);
}

// Case 4.
TEST(RadixKey, BigramsMatchWhereBothTokensDo) {
  const auto bigrams = [](const Tokens& one, const Tokens& other, std::uint32_t page_tokens) {
    return common_elements({.tokens = one, .is_bigram = true}, {.tokens = other, .is_bigram = true},
                           page_tokens);
  };
  EXPECT_EQ(bigrams({1, 2, 3, 4, 5}, {1, 2, 3, 9, 5}, 1), 2u);
  EXPECT_EQ(bigrams({1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, 1), 4u);
  EXPECT_EQ(bigrams({1, 2}, {1, 2}, 1), 1u);
  EXPECT_EQ(bigrams({1}, {1}, 1), 0u);
  EXPECT_EQ(bigrams({}, {}, 1), 0u);
  Tokens one(130);
  std::iota(one.begin(), one.end(), 0);
  Tokens other = one;
  other[70] = 999;
  EXPECT_EQ(bigrams(one, other, 64), 64u);
}

// Case 6.
TEST(RadixKey, APartOfAKeyKeepsItsNamespace) {
  const Tokens tokens = {1, 2, 3, 4, 5};
  for (const bool is_bigram : {false, true}) {
    const RadixKey key{.tokens = tokens, .extra = "adapter", .is_bigram = is_bigram};
    const RadixKey front = key.first(2), back = key.from(1);
    EXPECT_EQ(front.elements(), 2u);
    EXPECT_EQ(back.elements(), key.elements() - 1);
    for (const RadixKey& part : {front, back, key.first(0)}) {
      EXPECT_EQ(part.extra, "adapter");
      EXPECT_EQ(part.is_bigram, is_bigram);
    }
    EXPECT_EQ(key.first(0).elements(), 0u);
    EXPECT_EQ(back.tokens[0], 2u);
  }
}

// Cases 14 and 15.
TEST(RadixKey, DifferentListsOfExtrasHaveDifferentTexts) {
  EXPECT_NE(frame_extra({"bc", "a"}), frame_extra({"c", "ab"}));
  EXPECT_NE(frame_extra({"a"}), frame_extra({"a", ""}));
  EXPECT_NE(frame_extra({}), frame_extra({""}));
  EXPECT_NE(frame_extra({frame_extra({"a"})}), frame_extra({"a"}));
  EXPECT_EQ(frame_extra({"bc", "a"}), frame_extra({"bc", "a"}));
}

TEST(RadixKey, KeysOfDifferentNamespacesHaveNothingInCommon) {
  const Tokens tokens = {1, 2, 3};
  EXPECT_EQ(common_elements({.tokens = tokens, .extra = "a"}, {.tokens = tokens}, 1), 0u);
  EXPECT_EQ(common_elements({.tokens = tokens, .is_bigram = true}, {.tokens = tokens}, 1), 0u);
}

}  // namespace
}  // namespace cachalot::tier
