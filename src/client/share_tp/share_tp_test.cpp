// Engines of different tensor parallelism in one pool (ClientOptions::share_tp).
#include <gtest/gtest.h>

#include <set>

#include "block_hash/block_hash.h"
#include "pool/reader/published_blocks.h"
#include "testing/client/tp_rank.h"
#include "testing/kv/conformance.h"

namespace cachalot::client {
namespace {

constexpr std::uint32_t kSizes[] = {1, 2, 4, 8};

// --- Every writer, every reader ---------------------------------------------------------------------

struct Pairs {
  const char* name;
  std::uint32_t heads;
};

class ShareTpPairs : public ::testing::TestWithParam<Pairs> {
 protected:
  static constexpr std::size_t kBlocks = 5;

  std::vector<PageId> any_page_ids(const TpRank& rank, const TpPages& pages) {
    return kv::some_pages(pages.pages, static_cast<std::uint32_t>(kBlocks * rank.pages_per_block()),
                          rng_);
  }

  void write(const TpModel& model, std::uint32_t tp_size, const ClientOptions& base) {
    for (std::uint32_t r = 0; r < tp_size; ++r) {
      ClientOptions options = base;
      options.geometry = model.of_rank(r, tp_size);
      if (!options.geometry.is_first_replica()) continue;
      const TpPages how = any_pages(model, rng_);
      SCOPED_TRACE(std::string("rank ") + std::to_string(r) + ", " + how.layout);
      TpRank rank(model, options, how);
      const auto hashes = prompt_of(rank, 1, kBlocks);
      const auto pages = any_page_ids(rank, how);
      rank.compute(hashes, pages);
      const Result<Stored> stored = rank.client.store(rank.cache, nullptr, hashes, pages);
      ASSERT_TRUE(stored) << stored.error().message;
      EXPECT_EQ(stored->blocks, kBlocks);
      EXPECT_EQ(stored->written, kBlocks);
    }
  }
  void read(const TpModel& model, std::uint32_t tp_size, const ClientOptions& base) {
    for (std::uint32_t r = 0; r < tp_size; ++r) {
      ClientOptions options = base;
      options.geometry = model.of_rank(r, tp_size);
      const TpPages how = any_pages(model, rng_);
      SCOPED_TRACE(std::string("rank ") + std::to_string(r) + ", " + how.layout);
      TpRank rank(model, options, how);
      const auto hashes = prompt_of(rank, 1, kBlocks);
      const auto pages = any_page_ids(rank, how);
      rank.remember();
      EXPECT_EQ(*rank.client.lookup(hashes), kBlocks);
      const Result<std::size_t> loaded = rank.client.load(rank.cache, hashes, pages);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ(*loaded, kBlocks);
      EXPECT_TRUE(rank.is_changed_by(hashes, pages, kBlocks));
    }
  }

  base::Rng rng_{42};
};

TEST_P(ShareTpPairs, WhatAnyTpStoresAnyOtherTpLoadsByteForByte) {
  for (const std::uint32_t writer : kSizes) {
    for (const std::uint32_t reader : kSizes) {
      for (const std::uint32_t pp_size : {1u, 2u}) {
        TpModel model;
        model.heads = GetParam().heads;
        model.block_tokens = 8;
        // As few groups as the two allow, or as many as there are heads.
        const std::uint32_t shards = std::min(std::max(writer, reader), model.heads);
        const std::uint32_t share_tp = model.heads == 0   ? 1
                                       : rng_.chance(0.5) ? model.heads
                                                          : shards;
        const kv::BlockOrder& order = kv::block_orders()[rng_.below(kv::block_orders().size())];
        SCOPED_TRACE("TP " + std::to_string(writer) + " to " + std::to_string(reader) + ", PP " +
                     std::to_string(pp_size) + ", share_tp " + std::to_string(share_tp) + ", " +
                     order.name);
        Cluster cluster(1 << 15, 1024, rng_.chance(0.5) ? "coherent" : "noncoherent");
        ClientOptions base = cluster.client_options();
        base.share_tp = share_tp;
        base.block_order = order.name;
        base.checksums = true;
        base.copy_threads = 1 + static_cast<std::uint32_t>(rng_.below(2));
        for (std::uint32_t stage = 0; stage < pp_size; ++stage) {
          model.pp_rank = stage;
          model.pp_size = pp_size;
          model.layers = 1 + static_cast<std::uint32_t>(rng_.below(3));
          write(model, writer, base);
          read(model, reader, base);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShareTpPairs,
                         ::testing::Values(Pairs{"EightHeads", 8}, Pairs{"FourHeads", 4},
                                           Pairs{"Latent", 0}),
                         [](const auto& param) { return param.param.name; });

// --- What else is true ------------------------------------------------------------------------------

class ShareTpTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 6;

  // Eight heads of 8 numbers, 4 tokens, 2 layers: 2,048 bytes a block of all heads.
  TpRank rank(std::uint32_t number, std::uint32_t tp_size, std::uint32_t share_tp = 8) {
    return {model_, options_of(cluster_, model_, number, tp_size, share_tp)};
  }
  // Computes and stores the first blocks of a prompt.
  Result<Stored> store(TpRank& rank, std::uint64_t seed, std::size_t blocks = kBlocks) {
    const auto hashes = prompt_of(rank, seed, blocks);
    const auto pages = rank.first_pages(blocks);
    rank.compute(hashes, pages);
    return rank.client.store(rank.cache, nullptr, hashes, pages);
  }
  std::size_t found(const TpRank& rank, std::uint64_t seed) {
    return *rank.client.lookup(prompt_of(rank, seed, kBlocks));
  }
  // Loads a prompt and checks the bytes. @return blocks
  std::size_t load(TpRank& rank, std::uint64_t seed) {
    const auto hashes = prompt_of(rank, seed, kBlocks);
    const auto pages = rank.first_pages(kBlocks);
    rank.remember();
    const Result<std::size_t> loaded = rank.client.load(rank.cache, hashes, pages);
    EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().message);
    EXPECT_TRUE(rank.is_changed_by(hashes, pages, loaded ? *loaded : 0));
    return loaded ? *loaded : 0;
  }
  ClientOptions options(std::uint32_t number, std::uint32_t tp_size, std::uint32_t share_tp = 8) {
    return options_of(cluster_, model_, number, tp_size, share_tp);
  }

  TpModel model_;
  Cluster cluster_{4096, 256};
};

TEST_F(ShareTpTest, TheNamespaceNamesTheModelAndTheGroupsAndNotTheRank) {
  std::set<std::string> same, different;
  for (const std::uint32_t tp_size : kSizes) {
    for (std::uint32_t r = 0; r < tp_size; ++r) {
      same.insert(fingerprint_of(options(r, tp_size)));
      different.insert(fingerprint_of(options(r, tp_size, 0)));
    }
  }
  EXPECT_EQ(same.size(), 1u);
  EXPECT_EQ(different.size(), 15u);
  different.insert(*same.begin());
  different.insert(fingerprint_of(options(0, 1, 4)));
  different.insert(fingerprint_of(options(0, 1, 1)));
  EXPECT_EQ(different.size(), 18u);
}

TEST_F(ShareTpTest, WithoutShareTpAndWithOtherGroupsNothingIsFound) {
  TpRank cut = rank(0, 1);
  ASSERT_TRUE(store(cut, 1));
  for (const std::uint32_t share_tp : {0u, 1u, 2u, 4u}) {
    TpRank other = rank(0, 1, share_tp);
    EXPECT_EQ(found(other, 1), 0u) << share_tp;
    // Nor with the names of the other.
    EXPECT_EQ(*other.client.lookup(prompt_of(cut, 1, kBlocks)), 0u) << share_tp;
    ASSERT_TRUE(store(other, 1));
    EXPECT_EQ(load(other, 1), kBlocks) << share_tp;
  }
  EXPECT_EQ(load(cut, 1), kBlocks);
}

TEST_F(ShareTpTest, ALatentIsSharedByAllRanksWithAndWithoutShareTp) {
  model_.heads = 0;
  TpPages pages;
  pages.layout = "mla_joint";
  TpRank writer(model_, options(0, 2, 0), pages), reader(model_, options(3, 4, 1), pages);
  ASSERT_EQ(store(writer, 1)->written, kBlocks);
  EXPECT_EQ(load(reader, 1), kBlocks);
  EXPECT_EQ(store(reader, 1)->written, 0u);
}

TEST_F(ShareTpTest, AHitIsTheShortestRunOverTheGroupsOfTheRank) {
  TpRank quarter = rank(1, 4), half = rank(0, 2), other_half = rank(1, 2), whole = rank(0, 1);
  ASSERT_EQ(store(half, 1)->blocks, kBlocks);
  EXPECT_EQ(load(quarter, 1), kBlocks);
  EXPECT_EQ(found(other_half, 1), 0u);
  EXPECT_EQ(found(whole, 1), 0u);
  ASSERT_EQ(store(other_half, 1, 4)->blocks, 4u);
  EXPECT_EQ(load(whole, 1), 4u);
  // It writes what is missing only, and then all is there.
  const Result<Stored> rest = store(whole, 1);
  ASSERT_TRUE(rest) << rest.error().message;
  EXPECT_EQ(rest->blocks, kBlocks);
  EXPECT_EQ(rest->written, 2u);
  EXPECT_EQ(whole.client.statistics().stored_blocks, 2u * 4);
  EXPECT_EQ(load(other_half, 1), kBlocks);
  EXPECT_EQ(load(whole, 1), kBlocks);
}

TEST_F(ShareTpTest, EvictingOneGroupShortensTheHitsOfItsRanksOnly) {
  TpRank whole = rank(0, 1), first = rank(0, 2), second = rank(1, 2), third = rank(2, 4);
  ASSERT_TRUE(store(whole, 1));
  const auto hashes = prompt_of(whole, 1, kBlocks);
  evict(options(0, 1), block_hash::hash_head_group(hashes[3], 5));  // of ranks 1/2 and 2/4
  EXPECT_EQ(load(whole, 1), 3u);
  EXPECT_EQ(whole.client.statistics().hit_blocks, 3u * 8);
  EXPECT_EQ(load(first, 1), kBlocks);
  EXPECT_EQ(load(second, 1), 3u);
  EXPECT_EQ(load(third, 1), 3u);
  const Result<Stored> again = store(third, 1);
  EXPECT_EQ(again->blocks, kBlocks);
  EXPECT_EQ(again->written, 3u);
  EXPECT_EQ(third.client.statistics().stored_blocks, 3u);  // of group 5
  EXPECT_EQ(third.client.statistics().duplicate_blocks, 3u + kBlocks);
  EXPECT_EQ(load(whole, 1), kBlocks);
}

TEST_F(ShareTpTest, AStoreGoesOnFromItsParentInEachGroup) {
  TpRank half = rank(1, 2);
  ASSERT_TRUE(store(half, 1, 3));
  const auto hashes = prompt_of(half, 1, kBlocks);
  const auto pages = half.first_pages(kBlocks);
  half.compute(hashes, pages);
  const auto rest = [&](const BlockHash* parent) {
    return half.client.store(half.cache, parent, std::span(hashes).subspan(3),
                             std::span(pages).subspan(3));
  };
  EXPECT_EQ(rest(&hashes[2])->written, 3u);
  EXPECT_EQ(load(half, 1), kBlocks);
  evict(options(1, 2), block_hash::hash_head_group(hashes[2], 6));
  const Result<Stored> orphan = rest(&hashes[2]);
  ASSERT_TRUE(orphan);
  EXPECT_EQ(orphan->blocks, 0u);
  EXPECT_EQ(orphan->reason, Code::kRefused);
}

TEST_F(ShareTpTest, AllReplicasMayStoreButTheFirstOneIsEnough) {
  model_.heads = 2;
  std::uint64_t written = 0;
  for (std::uint32_t r = 0; r < 8; ++r) {
    TpRank replica = rank(r, 8, 2);
    EXPECT_EQ(replica.client.geometry().is_first_replica(), r % 4 == 0);
    const Result<Stored> stored = store(replica, 1);
    EXPECT_EQ(stored->blocks, kBlocks);
    EXPECT_EQ(stored->written, r % 4 == 0 ? kBlocks : 0) << r;
    written += replica.client.statistics().stored_blocks;
  }
  EXPECT_EQ(written, 2 * kBlocks);
  TpRank whole = rank(0, 1, 2);
  EXPECT_EQ(load(whole, 1), kBlocks);
}

TEST_F(ShareTpTest, BlockBytesAreThoseOfAGroupAndThePoolMustHaveRoomForIt) {
  EXPECT_EQ(rank(0, 1).client.block_bytes(), 2048u / 8);
  EXPECT_EQ(rank(3, 4).client.block_bytes(), 2048u / 8);
  EXPECT_EQ(rank(0, 1, 2).client.block_bytes(), 2048u / 2);
  Cluster small(512, 64);
  EXPECT_TRUE(Client::attach(options_of(small, model_, 0, 1, 4)));
  const Result<Client> large = Client::attach(options_of(small, model_, 0, 1, 2));
  ASSERT_FALSE(large);
  EXPECT_NE(std::string(large.error().message).find("1024"), std::string::npos)
      << large.error().message;
}

TEST_F(ShareTpTest, GroupsThatDoNotFitTheHeadsAreNamed) {
  const auto message_of = [&](std::uint32_t tp_size, std::uint32_t share_tp) -> std::string {
    const Result<Client> client = Client::attach(options(0, tp_size, share_tp));
    EXPECT_FALSE(client);
    EXPECT_EQ(client.error().code, Code::kInvalidArgument);
    return client.error().message;
  };
  EXPECT_NE(message_of(2, 3).find("share_tp: is 3, expected a divisor of the 8 KV heads"),
            std::string::npos);
  EXPECT_NE(message_of(4, 16).find("expected a divisor of the 8 KV heads"), std::string::npos);
  EXPECT_NE(message_of(4, 2).find("share_tp: is 2, expected a multiple of 4"), std::string::npos);
  model_.heads = 0;
  EXPECT_NE(message_of(1, 2).find("a latent counts as one"), std::string::npos);
}

TEST_F(ShareTpTest, AChainThatIsLargerThanThePoolIsCountedAsFarAsAllGroupsAreThere) {
  Cluster cluster(256, 100);
  TpPages pages;
  pages.pages = 32;
  TpRank whole(model_, options_of(cluster, model_, 0, 1, 8), pages);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto hashes = prompt_of(whole, seed, 32);
    const Result<Stored> stored =
        whole.client.store(whole.cache, nullptr, hashes, whole.first_pages(32));
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_EQ(stored->reason, Code::kNoSpace);
    EXPECT_EQ(stored->blocks, 12u);  // of each group
    EXPECT_EQ(stored->written, stored->blocks);
    EXPECT_EQ(*whole.client.lookup(hashes), stored->blocks);
  }
}

TEST_F(ShareTpTest, ACallThatIsCancelledCountsBlocksOfAllGroups) {
  constexpr std::size_t kMany = 120;
  Cluster cluster(4096, 4096);
  TpPages how;
  how.pages = kMany;
  TpRank whole(model_, options_of(cluster, model_, 0, 1, 8), how);
  const auto hashes = prompt_of(whole, 1, kMany);
  const auto pages = whole.first_pages(kMany);
  whole.compute(hashes, pages);
  ASSERT_EQ(whole.client.store(whole.cache, nullptr, hashes, pages)->blocks, kMany);
  std::uint64_t counted = 0;
  for (int round = 0; round < 20; ++round) {
    whole.compute(prompt_of(whole, 2, kMany), pages);
    whole.remember();
    const std::uint64_t before = whole.client.statistics().copied_bytes;
    const Result<Token> token = whole.client.load_async(whole.cache, hashes, pages);
    ASSERT_TRUE(token);
    while (round % 2 != 0 && whole.client.statistics().copied_bytes == before) {
    }
    ASSERT_TRUE(whole.client.cancel(*token));
    const Result<Completion> done = whole.client.wait(*token);
    ASSERT_TRUE(done);
    EXPECT_LE(done->blocks, kMany);
    EXPECT_TRUE(whole.is_changed_by(hashes, pages, std::min(done->blocks, kMany)));
    counted += done->blocks;
    EXPECT_EQ(whole.client.statistics().loaded_blocks, 8 * counted);
  }
}

TEST_F(ShareTpTest, ADamagedGroupEndsTheHitAndAStoreReplacesIt) {
  ClientOptions with = options(0, 1);
  with.checksums = true;
  TpRank whole(model_, with);
  ASSERT_TRUE(store(whole, 1));
  const auto hashes = prompt_of(whole, 1, kBlocks);
  const BlockHash damaged = block_hash::hash_head_group(hashes[2], 7);
  Result<pool::Pool> pool = pool::Pool::open({cluster_.path()});
  ASSERT_TRUE(pool);
  pool::for_each_published(pool->access(), [&](const pool::Entry& entry) {
    if (entry.hash_low != damaged.low) return;
    pool->access().for_each_extent(entry.block, 64,
                                   [](std::byte* at, std::uint64_t) { *at ^= std::byte{1}; });
  });
  EXPECT_EQ(load(whole, 1), 2u);
  EXPECT_EQ(whole.client.statistics().damaged_blocks, 1u);
  const Result<Stored> stored = store(whole, 1);
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->blocks, kBlocks);
  EXPECT_EQ(stored->written, 4u);
  EXPECT_EQ(whole.client.statistics().stored_blocks, 8 * kBlocks + 4);
  EXPECT_EQ(load(whole, 1), kBlocks);
}

TEST_F(ShareTpTest, LayersGoAndComeInGroups) {
  model_.head_dim = 16;  // a layer of a group fills whole lines
  Cluster cluster(4096, 256);
  ClientOptions with = options_of(cluster, model_, 1, 2, 8);
  with.checksums = true;
  TpRank writer(model_, with);
  const auto hashes = prompt_of(writer, 1, kBlocks);
  const auto pages = writer.first_pages(kBlocks);
  writer.compute(hashes, pages);
  // One of its groups is there already in part.
  with.geometry = model_.of_rank(5, 8);
  TpRank eighth(model_, with);
  ASSERT_EQ(store(eighth, 1, 2)->written, 2u);
  Result<Client::LayerStore> layers =
      writer.client.begin_store(writer.cache, nullptr, hashes, pages);
  ASSERT_TRUE(layers) << layers.error().message;
  for (std::uint32_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(layers->store_layer(layer));
  EXPECT_EQ(*writer.client.lookup(hashes), 0u);
  const Result<Stored> stored = layers->finish();
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->blocks, kBlocks);
  EXPECT_EQ(stored->written, kBlocks);
  EXPECT_EQ(writer.client.statistics().stored_blocks, 4 * kBlocks - 2);
  // The bytes of each, read layer by layer in any order.
  with.geometry = model_.of_rank(2, 4);
  TpRank reader(model_, with);
  for (const bool in_order : {true, false}) {
    reader.remember();
    Result<Client::LayerLoad> load = reader.client.begin_load(reader.cache, hashes, pages);
    ASSERT_TRUE(load);
    EXPECT_EQ(load->blocks(), kBlocks);
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      EXPECT_EQ(*load->load_layer(in_order ? layer : 1 - layer), kBlocks);
    EXPECT_TRUE(reader.is_changed_by(hashes, pages, kBlocks));
    reader.compute(prompt_of(reader, 2, kBlocks), pages);
  }
  EXPECT_EQ(reader.client.statistics().damaged_blocks, 0u);
}

TEST_F(ShareTpTest, ALayerLoadEndsWhereAGroupIsEvictedMeanwhile) {
  TpRank whole = rank(0, 1);
  ASSERT_TRUE(store(whole, 1));
  const auto hashes = prompt_of(whole, 1, kBlocks);
  Result<Client::LayerLoad> load =
      whole.client.begin_load(whole.cache, hashes, whole.first_pages(kBlocks));
  ASSERT_TRUE(load);
  EXPECT_EQ(*load->load_layer(0), kBlocks);
  evict(options(0, 1), block_hash::hash_head_group(hashes[4], 3));
  EXPECT_EQ(*load->load_layer(1), 4u);
  EXPECT_EQ(load->blocks(), 4u);
}

TEST_F(ShareTpTest, ALayerStoreOfManyGroupsIsShorter) {
  model_.head_dim = 16;
  model_.heads = 64;
  Cluster cluster(4096, 1024);
  TpRank whole(model_, options_of(cluster, model_, 0, 1, 64));
  const auto hashes = prompt_of(whole, 1, 3);
  const Result<Client::LayerStore> three =
      whole.client.begin_store(whole.cache, nullptr, hashes, whole.first_pages(3));
  ASSERT_FALSE(three);
  EXPECT_NE(
      std::string(three.error().message).find("64 head groups layer by layer, expected at most 2"),
      std::string::npos)
      << three.error().message;
  EXPECT_TRUE(whole.client.begin_store(whole.cache, nullptr, std::span(hashes).first(2),
                                       whole.first_pages(2)));
}

TEST_F(ShareTpTest, ObjectsAreRefusedBecauseRanksWouldTakeEachOthers) {
  TpRank half = rank(0, 2);
  std::vector<std::byte> bytes(64);
  ASSERT_TRUE(half.client.register_buffer(bytes.data(), bytes.size()));
  const Buffer part{bytes.data(), bytes.size()};
  bool present = false;
  const std::string_view key = "key";
  for (const Code code : {half.client.put(key, {&part, 1}).error().code,
                          half.client.get(key, {&part, 1}).error().code,
                          half.client.exists({&key, 1}, {&present, 1}).error().code}) {
    EXPECT_EQ(code, Code::kUnsupported);
  }
}

}  // namespace
}  // namespace cachalot::client
