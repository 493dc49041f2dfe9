#include "block_hash/block_hasher.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace cachalot::block_hash {
namespace {

std::vector<std::uint32_t> ids_from(std::uint32_t first, std::size_t count = 16) {
  std::vector<std::uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

BlockHasher vllm(HashAlgorithm algorithm, std::string_view seed = "0") {
  Result<BlockHasher> hasher = BlockHasher::vllm(algorithm, seed);
  EXPECT_TRUE(hasher);
  return *std::move(hasher);
}

// What vLLM computes with PYTHONHASHSEED=0 and blocks of 16 tokens.
TEST(Sha256Cbor, MatchesVllmForAChain) {
  BlockHasher hasher = vllm(HashAlgorithm::kSha256Cbor);
  EXPECT_EQ(hasher.root().hex(),
            "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
  const Digest first = hasher.next(hasher.root(), ids_from(0));
  EXPECT_EQ(first.hex(), "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c");
  const Digest second = hasher.next(first, ids_from(16));
  EXPECT_EQ(second.hex(), "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac");
}

TEST(Sha256Cbor, MatchesVllmsIntegerFormAndIsStoredAsItsFirstHalf) {
  BlockHasher hasher = vllm(HashAlgorithm::kSha256Cbor);
  const Digest first = hasher.next(hasher.root(), ids_from(0));
  EXPECT_EQ(first.low64(), 12687895063098490012u);
  EXPECT_EQ(to_hex(first.block_hash()), "d830de3d42c00f25a2949b5d12d98642");
}

// Of vLLM 0.32, by its own functions; tests/vllm/test_hashes.py compares with them.
const ExtraKey kLora = {"lora", "lora-x", "/adapters/x"};
const ExtraKey kImage = {"mm", "img-1", std::int64_t{-3}};  // begins before the block
const ExtraKey kSalt = {"cache_salt", "tenant-a"};

ExtraKey embeddings_key() {
  std::vector<std::uint8_t> digest(32);
  std::iota(digest.begin(), digest.end(), std::uint8_t{0});
  return {"prompt_embeds", digest};
}

struct KeysAndHashes {
  ExtraKeys keys;
  const char* with_seed_0;
  const char* without_seed;
};

TEST(Sha256Cbor, MatchesVllmForExtraKeys) {
  const KeysAndHashes cases[] = {
      {{kSalt},
       "3be36890effbb5e0d90d6506b68f1365539bcf2a82688a430612688636e0959d",
       "4e31e1ced73eb044a95997f0109d0ddab3d9145878214f1a0ee37c048b397859"},
      {{kLora, kSalt},
       "aa147bdc886e296175c7be2720c80290b9a78f2961acd5f4c8dd423ba8b06d7e",
       "ed51fc37eb52eb3a64a5f5459b53cae9e3e2edd9ff03bfeb8510820b2417560f"},
      {{kLora, kImage, kSalt},
       "8bda5427d316716a42e12cb62e472e5457a50bbb275442df5614cb6016f836a8",
       "d95d37f5d5644e54417d987e6690235c675f57ccaa0aeae396562718769b36ee"},
      {{embeddings_key()},
       "b35aab804915f620cee19188eb57a761b2c1119e26993f0fd8c2b60c794f453f",
       "b64e5a4e4fcbea9eee2a843c15dcb062ada057cc1269eeee248197b4535373f1"}};
  BlockHasher with = vllm(HashAlgorithm::kSha256Cbor, "0");
  BlockHasher without = vllm(HashAlgorithm::kSha256Cbor, "");
  for (const KeysAndHashes& each : cases) {
    EXPECT_EQ(with.next(with.root(), ids_from(0), each.keys).hex(), each.with_seed_0);
    EXPECT_EQ(without.next(without.root(), ids_from(0), each.keys).hex(), each.without_seed);
  }
}

TEST(Sha256Cbor, MatchesVllmWithoutAPythonHashSeed) {
  BlockHasher hasher = vllm(HashAlgorithm::kSha256Cbor, "");
  EXPECT_EQ(hasher.root().hex(),
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  const Digest first = hasher.next(hasher.root(), ids_from(0));
  EXPECT_EQ(first.hex(), "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749");
  EXPECT_EQ(hasher.next(first, ids_from(16)).hex(),
            "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c");
}

// There vLLM takes a random seed.
TEST(XxhashCbor, NeedsAPythonHashSeed) {
  const Result<BlockHasher> hasher = BlockHasher::vllm(HashAlgorithm::kXxhashCbor, "");
  ASSERT_FALSE(hasher);
  EXPECT_EQ(hasher.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(hasher.error().message).find("python_hash_seed"), std::string::npos);
}

TEST(Sha256Cbor, MatchesVllmForIdsOfEveryLength) {
  BlockHasher hasher = vllm(HashAlgorithm::kSha256Cbor);
  const std::vector<std::uint32_t> ids = {0,          23, 24, 255, 256, 65535, 65536, 151643,
                                          2147483647, 7,  8,  9,   10,  11,    12,    13};
  const std::string expected = "4382f31e8dce597e0ce01d7b7e150a64595eaa19b79961623d11b4528999c601";
  EXPECT_EQ(hasher.next(hasher.root(), ids).hex(), expected);
  const std::vector<std::uint64_t> wide(ids.begin(), ids.end());
  EXPECT_EQ(hasher.next(hasher.root(), wide).hex(), expected);
}

// From python3-cbor2's canonical form of (digest, (2**64 - 1, 2**32), None).
TEST(Sha256Cbor, TakesIdsOf64Bits) {
  BlockHasher hasher = vllm(HashAlgorithm::kSha256Cbor);
  const std::vector<std::uint64_t> ids = {~std::uint64_t{0}, std::uint64_t{1} << 32};
  EXPECT_EQ(hasher.next(hasher.root(), ids).hex(),
            "8189e8b5ce2aa382137c73ad7a25136261b2c6352b05f53b5a455d05d9662aee");
}

TEST(XxhashCbor, MatchesVllm) {
  BlockHasher hasher = vllm(HashAlgorithm::kXxhashCbor);
  EXPECT_EQ(hasher.root().hex(), "1ebe36576dcb573f26b99533a20aaeca");
  const Digest first = hasher.next(hasher.root(), ids_from(0));
  EXPECT_EQ(first.hex(), "209f5d549fc07c8e39d823615ede61ce");
  EXPECT_EQ(hasher.next(first, ids_from(16)).hex(), "03888914ee75b87e89df867a21beb72b");
  const ExtraKey keys[] = {kSalt};
  EXPECT_EQ(hasher.next(hasher.root(), ids_from(0), keys).hex(),
            "98274286b84f2817c2be8c2638bd68e1");
}

TEST(VllmHashes, DependOnThePythonHashSeed) {
  BlockHasher zero = vllm(HashAlgorithm::kSha256Cbor, "0");
  BlockHasher one = vllm(HashAlgorithm::kSha256Cbor, "1");
  EXPECT_FALSE(zero.root() == one.root());
}

// Computed with python3-xxhash from the bytes that the header draws; a change of any of them would
// orphan every pool there is.
TEST(Xxh3, HashesTheDocumentedBytes) {
  BlockHasher hasher = BlockHasher::xxh3(make_namespace("abc"));
  EXPECT_EQ(hasher.root().hex(), std::string(32, '0'));
  const Digest first = hasher.next(hasher.root(), ids_from(0));
  EXPECT_EQ(first.hex(), "d98cd4da68dde770ca39719b081cd7d5");
  EXPECT_EQ(hasher.next(first, ids_from(16)).hex(), "2748efc79290aee177c657e12e5aa5d5");
  const std::vector<std::uint64_t> wide = {1, ~std::uint64_t{0}};
  EXPECT_EQ(hasher.next(hasher.root(), wide).hex(), "4913269ea70b704e3c5e14e1d279260b");
  const ExtraKey keys[] = {kLora, kImage, embeddings_key()};
  EXPECT_EQ(hasher.next(hasher.root(), ids_from(0), keys).hex(),
            "9853f01ca0e812f8316297a6f0799794");
}

TEST(Xxh3, DiffersBetweenNamespaces) {
  BlockHasher a = BlockHasher::xxh3(make_namespace("a"));
  BlockHasher b = BlockHasher::xxh3(make_namespace("b"));
  EXPECT_FALSE(a.next(a.root(), ids_from(0)) == b.next(b.root(), ids_from(0)));
}

TEST(Xxh3, DistinguishesWhatCouldBeTakenForEachOther) {
  BlockHasher hasher = BlockHasher::xxh3(make_namespace("abc"));
  std::vector<Digest> digests;
  const std::vector<std::uint32_t> narrow = {1, 0};
  const std::vector<std::uint64_t> wide = {1};  // the same bytes
  digests.push_back(hasher.next(hasher.root(), narrow));
  digests.push_back(hasher.next(hasher.root(), wide));
  const ExtraKeys of_keys[] = {{{"ab"}},
                               {{"a"}, {"b"}},
                               {{"a", "b"}},
                               {{std::vector<std::uint8_t>{'a', 'b'}}},
                               {{"ab", std::int64_t{0}}},
                               {{"ab", std::int64_t{-1}}},
                               {{}}};
  for (const ExtraKeys& keys : of_keys) digests.push_back(hasher.next(hasher.root(), narrow, keys));
  digests.push_back(hasher.next(digests[0], narrow));
  for (std::size_t i = 0; i < digests.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(digests[i] == digests[j]) << i << " " << j;
  }
}

TEST(HashBlocks, HashesWholeBlocksInAChainAndLeavesAPartialOneOut) {
  for (const HashAlgorithm algorithm : {HashAlgorithm::kXxh3, HashAlgorithm::kSha256Cbor}) {
    BlockHasher hasher = algorithm == HashAlgorithm::kXxh3
                             ? BlockHasher::xxh3(make_namespace("abc"))
                             : vllm(algorithm);
    const std::vector<std::uint32_t> ids = ids_from(0, 40);
    std::vector<BlockHash> hashes(5);
    const Digest last = hasher.hash_blocks(hasher.root(), ids, 16, hashes);
    const Digest first = hasher.next(hasher.root(), ids_from(0));
    const Digest second = hasher.next(first, ids_from(16));
    EXPECT_EQ(hashes[0], first.block_hash());
    EXPECT_EQ(hashes[1], second.block_hash());
    EXPECT_EQ(hashes[2], BlockHash{});
    EXPECT_EQ(last, second);
    EXPECT_EQ(hasher.hash_blocks(first, ids, 16, {}), first);
    const ExtraKeys of_first[] = {{kSalt}};
    hasher.hash_blocks(hasher.root(), ids, 16, hashes, of_first);
    const Digest salted = hasher.next(hasher.root(), ids_from(0), of_first[0]);
    EXPECT_EQ(hashes[0], salted.block_hash());
    EXPECT_EQ(hashes[1], hasher.next(salted, ids_from(16)).block_hash());
  }
}

TEST(BlockHasher, OfVllmTakesVllmsAlgorithmsOnly) {
  EXPECT_EQ(BlockHasher::vllm(HashAlgorithm::kXxh3, "0").error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot::block_hash
