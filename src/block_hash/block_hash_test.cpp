#include "block_hash/block_hash.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <unordered_set>

namespace cachalot::block_hash {
namespace {

TEST(BlockHash, IsWrittenHighWordFirst) {
  const BlockHash hash{.low = 0xfedcba9876543210u, .high = 0x0123456789abcdefu};
  EXPECT_EQ(to_hex(hash), "0123456789abcdeffedcba9876543210");
}

TEST(BlockHash, IsReadInEitherCase) {
  const Result<BlockHash> hash = parse_block_hash("0123456789ABCDEFfedcba9876543210");
  ASSERT_TRUE(hash);
  EXPECT_EQ(hash->high, 0x0123456789abcdefu);
  EXPECT_EQ(hash->low, 0xfedcba9876543210u);
}

TEST(BlockHash, AnythingButThirtyTwoDigitsIsAnError) {
  for (const char* text :
       {"", "0123", "0123456789abcdeffedcba987654321", "0123456789abcdeffedcba98765432100",
        "0123456789abcdeffedcba987654321g", "0x23456789abcdeffedcba9876543210",
        " 123456789abcdeffedcba9876543210", "-123456789abcdeffedcba9876543210"}) {
    const Result<BlockHash> hash = parse_block_hash(text);
    ASSERT_FALSE(hash) << text;
    EXPECT_EQ(hash.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(hash.error().message).find("expected 32 hexadecimal digits"),
              std::string::npos);
  }
}

RC_GTEST_PROP(BlockHash, SurvivesItsTextForm, (std::uint64_t low, std::uint64_t high)) {
  const BlockHash hash{.low = low, .high = high};
  const Result<BlockHash> again = parse_block_hash(to_hex(hash));
  RC_ASSERT(again.ok());
  RC_ASSERT(*again == hash);
}

// The numbers of docs/design/block_hash.md: what is in storage and in other engines' pools depends on them.
TEST(BlockHash, OfAHeadGroupIsTheBlocksXorAConstant) {
  const BlockHash hash{.low = 0xfedcba9876543210u, .high = 0x0123456789abcdefu};
  EXPECT_EQ(hash_head_group(hash, 0), hash);
  EXPECT_EQ(to_hex(hash_head_group({}, 1)), "d820b7e910b0f93f5692161d100b05e5");
  EXPECT_EQ(to_hex(hash_head_group({}, 7)), "df6748ddfbe1b32b12ae30237b17df14");
  std::unordered_set<BlockHash> all;
  std::unordered_set<std::uint64_t> homes;  // a pool places a block by low xor high
  for (std::uint32_t group = 0; group < 4096; ++group) {
    const BlockHash name = hash_head_group(hash, group);
    all.insert(name);
    homes.insert(name.low ^ name.high);
  }
  EXPECT_EQ(all.size(), 4096u);
  EXPECT_EQ(homes.size(), 4096u);
}

TEST(BlockHash, CanBeAKey) {
  std::unordered_set<BlockHash> set;
  set.insert(BlockHash{.low = 1, .high = 2});
  set.insert(BlockHash{.low = 1, .high = 3});
  set.insert(BlockHash{.low = 1, .high = 2});
  EXPECT_EQ(set.size(), 2u);
}

// sha256sum and xxhsum -H3 of the text "abc" give these on any machine.
TEST(Namespace, FollowsFromItsFingerprintAlone) {
  const NamespaceId space = make_namespace("abc");
  EXPECT_EQ(to_hex(space.digest), "ba7816bf8f01cfea414140de5dae2223");
  EXPECT_EQ(space.seed, 0x78af5f94892f3950u);
}

TEST(Namespace, DiffersForFingerprintsThatDifferInOneLetter) {
  const NamespaceId a = make_namespace("model=a dtype=bf16");
  const NamespaceId b = make_namespace("model=b dtype=bf16");
  EXPECT_NE(a.seed, b.seed);
  EXPECT_FALSE(a.digest == b.digest);
  EXPECT_EQ(a, make_namespace("model=a dtype=bf16"));
}

}  // namespace
}  // namespace cachalot::block_hash
