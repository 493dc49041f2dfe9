#include "tier/radix/radix_hashes.h"

#include <gtest/gtest.h>

#include <vector>

#include "tier/radix/radix_test_tree.h"

namespace cachalot::tier {
namespace {

using block_hash::BlockHasher;

std::vector<BlockHasher> all_hashers() {
  std::vector<BlockHasher> hashers;
  hashers.push_back(BlockHasher::xxh3(block_hash::make_namespace("model")));
  hashers.push_back(*BlockHasher::vllm(HashAlgorithm::kSha256Cbor, ""));
  return hashers;
}

// Of a whole sequence from scratch.
std::vector<BlockHash> hashes_of(BlockHasher& hasher, const Tokens& tokens,
                                 std::uint32_t page_tokens) {
  std::vector<BlockHash> hashes(tokens.size() / page_tokens);
  hasher.hash_blocks(hasher.root(), tokens, page_tokens, hashes);
  return hashes;
}

std::vector<BlockHash> hashes_of_path(const TestTree& t, NodeId node) {
  std::vector<BlockHash> hashes;
  for (const NodeId each : t.path(node)) {
    const auto own = t.tree.node(each).hashes.view();
    hashes.insert(hashes.end(), own.begin(), own.end());
  }
  return hashes;
}

// Cases 23 and 26: chained, so that order and place matter.
TEST(RadixHashes, AreThoseOfTheSequence) {
  for (BlockHasher& hasher : all_hashers()) {
    for (const std::uint32_t page_tokens : {1u, 4u, 8u}) {
      TestTree t(page_tokens);
      const Tokens tokens = {1, 2, 3, 4, 1, 2, 3, 4, 4, 3, 2, 1, 1, 2, 3, 4};
      const NodeId node = t.insert(tokens).node;
      fill_hashes(t.tree, node, hasher);
      const std::vector<BlockHash> hashes = hashes_of_path(t, node);
      EXPECT_EQ(hashes, hashes_of(hasher, tokens, page_tokens));
      EXPECT_NE(hashes[0], hashes[1]);
    }
  }
}

TEST(RadixHashes, GoOnWhereANodeHasThem) {
  for (BlockHasher& hasher : all_hashers()) {
    TestTree t(2);
    const Tokens front = {1, 2, 3, 4}, tokens = join(front, {5, 6, 7, 8});
    const std::vector<BlockHash> expected = hashes_of(hasher, tokens, 2);
    t.insert(front, {.hashes = std::span(expected).first(2)});
    const NodeId node = t.insert(tokens).node;
    t.match({1, 2});  // split
    fill_hashes(t.tree, node, hasher);
    EXPECT_EQ(hashes_of_path(t, node), expected);
    EXPECT_TRUE(t.is_valid());
  }
}

// Cases 14, 15 and 27: an extra changes all hashes of its namespace.
TEST(RadixHashes, DifferInEachNamespace) {
  BlockHasher hasher = BlockHasher::xxh3(block_hash::make_namespace("model"));
  TestTree t(1);
  const Tokens tokens = {1, 2};
  std::vector<std::vector<BlockHash>> seen;
  for (const RadixKey& key :
       {RadixKey{.tokens = tokens}, RadixKey{.tokens = tokens, .extra = "salt"},
        RadixKey{.tokens = tokens, .extra = "other"}}) {
    const NodeId node = t.insert(key).node;
    fill_hashes(t.tree, node, hasher);
    seen.push_back(hashes_of_path(t, node));
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      EXPECT_NE(seen[i][0], seen[k][0]);
      EXPECT_NE(seen[i].back(), seen[k].back());
    }
  }
}

}  // namespace
}  // namespace cachalot::tier
