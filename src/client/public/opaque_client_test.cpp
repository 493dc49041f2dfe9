#include <cachalot/opaque_client.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "pool/pool.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

constexpr std::uint64_t kBytes = 1000;  // not whole lines
constexpr std::uint32_t kTokens = 4;

class OpaqueClientTest : public ::testing::TestWithParam<const char*> {
 protected:
  OpaqueClientTest() : cluster_(1024, 64, GetParam()) {}

  OpaqueOptions options() const {
    OpaqueOptions options;
    options.pool = {cluster_.path()};
    options.fingerprint = "test-model/opaque";
    options.block_bytes = kBytes;
    options.block_tokens = kTokens;
    options.checksums = true;
    options.pinned_reads = true;
    options.keeper_timeout_ns = 2'000'000'000;
    return options;
  }
  OpaqueClient attach() const {
    Result<OpaqueClient> client = OpaqueClient::attach(options());
    EXPECT_TRUE(client) << (client ? "" : client.error().message);
    return *std::move(client);
  }

  static std::vector<std::byte> bytes_of(const BlockHash& hash) {
    std::vector<std::byte> bytes(kBytes);
    base::Rng rng(hash.low);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
    return bytes;
  }
  static std::vector<std::vector<std::byte>> all_bytes(std::span<const BlockHash> hashes) {
    std::vector<std::vector<std::byte>> all;
    for (const BlockHash& hash : hashes) all.push_back(bytes_of(hash));
    return all;
  }
  template <class Byte>
  static std::vector<Byte*> addresses(std::vector<std::vector<std::byte>>& blocks) {
    std::vector<Byte*> all;
    for (auto& block : blocks) all.push_back(block.data());
    return all;
  }
  static Result<Stored> store(OpaqueClient& client, std::span<const BlockHash> hashes) {
    std::vector<std::vector<std::byte>> blocks = all_bytes(hashes);
    return client.store(nullptr, hashes, addresses<const std::byte>(blocks));
  }

  // Changes one byte of a block in the pool, as a broken memory would.
  void damage(const BlockHash& hash) {
    Result<pool::Pool> pool = pool::Pool::open({cluster_.path()});
    ASSERT_TRUE(pool) << pool.error().message;
    pool::KeeperView view;
    pool::Found found;
    const std::uint32_t first_namespace = 1;
    ASSERT_EQ(pool::DirectoryReader(pool->access())
                  .lookup({&hash, 1}, first_namespace, view, {&found, 1}),
              1u);
    pool->access().for_each_extent(
        found.entry.block, memory::kLineBytes, [&](std::byte* at, std::uint64_t) {
          memory::Line line;
          std::memcpy(&line, at, sizeof line);
          reinterpret_cast<std::byte*>(&line)[5] ^= std::byte{1};
          pool->access().domain().write_bulk(at, &line, sizeof line, nullptr);
        });
    pool->access().domain().complete();
  }

  Cluster cluster_;
};

TEST_P(OpaqueClientTest, BytesThatOneClientStoresAnotherOneLoads) {
  OpaqueClient writer = attach(), reader = attach();
  const std::vector<BlockHash> hashes = writer.hash_tokens(tokens_of(1, 40 * kTokens));
  ASSERT_EQ(hashes.size(), 40u);
  const Result<Stored> stored = store(writer, hashes);
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->blocks, 40u);
  EXPECT_EQ(stored->written, 40u);
  EXPECT_EQ(*reader.lookup(hashes), 40u);
  std::vector<std::vector<std::byte>> blocks(40, std::vector<std::byte>(kBytes));
  const Result<std::size_t> loaded = reader.load(hashes, addresses<std::byte>(blocks));
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(*loaded, 40u);
  EXPECT_TRUE(blocks == all_bytes(hashes));
  EXPECT_EQ(reader.statistics().loaded_bytes, 40 * kBytes);
  EXPECT_EQ(reader.statistics().copied_bytes, 40 * kBytes);
  EXPECT_EQ(store(reader, hashes)->written, 0u);
}

TEST_P(OpaqueClientTest, AnotherFingerprintIsAnotherNamespace) {
  OpaqueClient writer = attach();
  const std::vector<BlockHash> hashes = writer.hash_tokens(tokens_of(1, 2 * kTokens));
  ASSERT_TRUE(store(writer, hashes));
  OpaqueOptions other = options();
  other.fingerprint += "/other";
  Result<OpaqueClient> stranger = OpaqueClient::attach(other);
  ASSERT_TRUE(stranger);
  EXPECT_EQ(*stranger->lookup(hashes), 0u);
  EXPECT_NE(stranger->hash_tokens(tokens_of(1, 2 * kTokens)), hashes);
}

TEST_P(OpaqueClientTest, CallbacksSeeAndFillBlocksInPlace) {
  OpaqueClient writer = attach(), reader = attach();
  const std::vector<BlockHash> hashes = writer.hash_tokens(tokens_of(2, 20 * kTokens));
  const Result<Stored> stored =
      writer.store_in_place(nullptr, hashes, [&](std::size_t i, std::span<std::byte> room) {
        EXPECT_EQ(room.size(), kBytes);
        std::memcpy(room.data(), bytes_of(hashes[i]).data(), kBytes);
        return Status();
      });
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->written, 20u);
  std::size_t seen = 0;
  const auto imported =
      reader.load_in_place(hashes, [&](std::size_t i, std::span<const std::byte> bytes) {
        EXPECT_EQ(i, seen++);
        EXPECT_TRUE(std::ranges::equal(bytes, bytes_of(hashes[i])));
        return OpaqueClient::Import::kTaken;
      });
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(seen, 20u);
  EXPECT_EQ(imported->blocks, 20u);
  EXPECT_EQ(imported->revoked, 0u);
  EXPECT_FALSE(imported->is_damaged);
}

TEST_P(OpaqueClientTest, TheCallerMayEndALoadAndAStore) {
  OpaqueClient client = attach();
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(3, 8 * kTokens));
  ASSERT_TRUE(store(client, std::span(hashes).first(6)));
  const auto imported = client.load_in_place(hashes, [](std::size_t i, std::span<const std::byte>) {
    return i == 4 ? OpaqueClient::Import::kRefused : OpaqueClient::Import::kTaken;
  });
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->blocks, 4u);
  EXPECT_FALSE(imported->is_damaged);
  const Result<Stored> stored =
      client.store_in_place(nullptr, hashes, [](std::size_t, std::span<std::byte>) -> Status {
        return Error::make(Code::kUnsupported, "no such cells");
      });
  ASSERT_FALSE(stored);
  EXPECT_STREQ(stored.error().message, "no such cells");
  EXPECT_EQ(*client.lookup(hashes), 6u);
  EXPECT_EQ(store(client, hashes)->blocks, 8u);  // its reservation was given back
}

// The codes that mean something else where the pool or a GPU returns them.
TEST_P(OpaqueClientTest, TheExportersErrorIsTheCallersWhateverItsCode) {
  OpaqueClient client = attach();
  std::uint32_t prompt = 100;
  for (const Code code : {Code::kStale, Code::kIo, Code::kNoSpace, Code::kTimeout}) {
    const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(prompt++, 3 * kTokens));
    std::size_t calls = 0;
    const Result<Stored> stored =
        client.store_in_place(nullptr, hashes, [&](std::size_t, std::span<std::byte>) -> Status {
          ++calls;
          return Error::make(code, "no such cells");
        });
    ASSERT_FALSE(stored);
    EXPECT_EQ(stored.error().code, code);
    EXPECT_EQ(calls, 1u) << code_name(code);
  }
  // All 64 blocks of the pool are free: none was withheld.
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(prompt, 64 * kTokens));
  EXPECT_EQ(store(client, hashes)->blocks, 64u);
}

// Those of a load in place, and of loads in parts: eight blocks, six in the pool, the sixth damaged.
TEST_P(OpaqueClientTest, EachPromptCountsOnceAndUsesValidBlocksOnly) {
  OpaqueClient client = attach();
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(8, 8 * kTokens));
  const auto take = [](std::size_t, std::span<const std::byte>) {
    return OpaqueClient::Import::kTaken;
  };
  const auto expect = [&](std::uint64_t prompts, std::uint64_t used) {
    const Statistics now = client.statistics();
    EXPECT_EQ(now.prompts, prompts);
    EXPECT_EQ(now.prompt_blocks, 8 * prompts);
    EXPECT_EQ(now.used_pool_blocks, used);
  };
  EXPECT_EQ(client.load_in_place(hashes, take)->blocks, 0u);
  expect(1, 0);
  ASSERT_TRUE(store(client, std::span(hashes).first(6)));
  EXPECT_EQ(*client.lookup(hashes), 6u);
  EXPECT_EQ(client.load_in_place(std::span(hashes).first(6), take)->blocks, 6u);
  expect(2, 6);
  damage(hashes[5]);
  EXPECT_EQ(*client.lookup(hashes), 6u);
  std::vector<std::vector<std::byte>> blocks(8, std::vector<std::byte>(kBytes));
  const std::vector<std::byte*> to = addresses<std::byte>(blocks);
  const auto load = [&](std::size_t first, std::size_t count) {
    return *client.load(std::span(hashes).subspan(first, count), std::span(to).first(count));
  };
  EXPECT_EQ(load(0, 4), 4u);
  EXPECT_EQ(load(4, 2), 1u);
  expect(3, 11);
}

TEST_P(OpaqueClientTest, ADamagedBlockIsDroppedOnceAndStoredAgain) {
  OpaqueClient client = attach();
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(4, 6 * kTokens));
  ASSERT_TRUE(store(client, hashes));
  damage(hashes[2]);
  std::size_t shown = 0;
  const auto look = [&] {
    shown = 0;
    return client.load_in_place(hashes, [&](std::size_t, std::span<const std::byte>) {
      ++shown;
      return OpaqueClient::Import::kTaken;
    });
  };
  EXPECT_FALSE(client.is_damaged(hashes[2]));
  for (int round = 0; round < 2; ++round) {
    const auto imported = look();
    ASSERT_TRUE(imported);
    EXPECT_EQ(imported->blocks, 2u);
    EXPECT_TRUE(imported->is_damaged);
    EXPECT_EQ(shown, 2u);  // wrong bytes are shown to no caller
  }
  EXPECT_EQ(client.statistics().damaged_blocks, 1u);
  EXPECT_TRUE(client.is_damaged(hashes[2]));
  EXPECT_FALSE(*client.drop_damaged(hashes[1]));  // a sound one stays
  EXPECT_EQ(*client.lookup(hashes), 6u);
  EXPECT_TRUE(*client.drop_damaged(hashes[2]));
  EXPECT_EQ(*client.lookup(hashes), 2u);
  EXPECT_FALSE(client.is_damaged(hashes[2]));
  EXPECT_EQ(store(client, hashes)->written, 4u);
  EXPECT_EQ(look()->blocks, 6u);
}

TEST_P(OpaqueClientTest, AStoreReplacesWhatItsClientFoundDamaged) {
  OpaqueClient writer = attach(), client = attach();
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(7, 6 * kTokens));
  ASSERT_TRUE(store(writer, hashes));
  damage(hashes[2]);
  EXPECT_EQ(store(client, hashes)->written, 0u);  // this client has not seen the damage
  std::vector<std::vector<std::byte>> blocks(6, std::vector<std::byte>(kBytes));
  EXPECT_EQ(*client.load(hashes, addresses<std::byte>(blocks)), 2u);
  EXPECT_EQ(store(client, hashes)->written, 4u);  // the damaged one, and those after it
  EXPECT_EQ(*writer.load(hashes, addresses<std::byte>(blocks)), 6u);
  EXPECT_TRUE(blocks == all_bytes(hashes));
}

TEST_P(OpaqueClientTest, AGoodBlockInTheDamagedOnesPlaceStays) {
  OpaqueClient client = attach(), other = attach();
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(5, kTokens));
  ASSERT_TRUE(store(client, hashes));
  damage(hashes[0]);
  const auto take = [](std::size_t, std::span<const std::byte>) {
    return OpaqueClient::Import::kTaken;
  };
  ASSERT_TRUE(client.load_in_place(hashes, take)->is_damaged);
  ASSERT_TRUE(other.load_in_place(hashes, take)->is_damaged);
  ASSERT_TRUE(*other.drop_damaged(hashes[0]));
  ASSERT_EQ(store(other, hashes)->written, 1u);
  EXPECT_FALSE(*client.drop_damaged(hashes[0]));
  EXPECT_EQ(client.load_in_place(hashes, take)->blocks, 1u);
}

TEST_P(OpaqueClientTest, AClaimKeepsOthersFromTheBlock) {
  OpaqueClient client = attach(), other = attach();
  const std::vector<BlockHash> hashes = client.hash_tokens(tokens_of(6, 4 * kTokens));
  Result<OpaqueClient::Claims> ours = client.open_claims(), theirs = other.open_claims();
  ASSERT_TRUE(ours && theirs);
  EXPECT_EQ(ours->claim(std::span(hashes).first(2)), 2u);
  EXPECT_EQ(theirs->claim(hashes), 0u);
  ours->release();
  EXPECT_EQ(theirs->claim(hashes), 1u);
  ours->release_all();
  EXPECT_EQ(ours->count(), 0u);
}

TEST_P(OpaqueClientTest, BadOptionsAndArgumentsAreNamed) {
  OpaqueOptions bad = options();
  bad.fingerprint.clear();
  const auto refusal = [](const OpaqueOptions& asked) {
    const Result<OpaqueClient> client = OpaqueClient::attach(asked);
    EXPECT_FALSE(client);
    return client ? std::string() : std::string(client.error().message);
  };
  EXPECT_NE(refusal(bad).find("fingerprint: is empty"), std::string::npos);
  bad = options();
  bad.block_bytes = 1025;
  EXPECT_NE(refusal(bad).find("block_bytes: 1025; the blocks of the pool " + cluster_.path() +
                              " have 1024: create a pool"),
            std::string::npos);
  bad = options();
  bad.grant_blocks = 0;
  EXPECT_NE(refusal(bad).find("grant_blocks: 0"), std::string::npos);

  OpaqueClient client = attach();
  const BlockHash hash{1, 2};
  const Result<std::size_t> loaded = client.load({&hash, 1}, {});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::kInvalidArgument);
  ASSERT_TRUE(client.detach());
  EXPECT_EQ(client.lookup({&hash, 1}).error().code, Code::kInvalidArgument);
  EXPECT_FALSE(client.is_attached());
}

INSTANTIATE_TEST_SUITE_P(Domains, OpaqueClientTest, ::testing::Values("coherent", "noncoherent"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace cachalot::client
