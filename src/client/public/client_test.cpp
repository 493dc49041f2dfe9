#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "client/fingerprint.h"
#include "os/file_lock.h"
#include "pool/making.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

class ClientTest : public ::testing::Test {
 protected:
  std::vector<PageId> pages(std::size_t count, PageId first = 0) {
    std::vector<PageId> all(count);
    std::iota(all.begin(), all.end(), first);
    return all;
  }
  // Stores a prompt of `blocks` blocks, starting with page 0.
  std::vector<BlockHash> store(Engine& engine, std::uint64_t prompt, std::size_t blocks) {
    const std::vector<BlockHash> hashes = engine.client.hash_tokens(tokens_of(prompt, blocks * 4));
    for (std::size_t i = 0; i < blocks; ++i) engine.compute(hashes[i], static_cast<PageId>(i));
    const Result<Stored> stored = engine.client.store(engine.cache, nullptr, hashes, pages(blocks));
    EXPECT_TRUE(stored) << (stored ? "" : stored.error().message);
    EXPECT_EQ(stored ? stored->blocks : 0, blocks);
    return hashes;
  }

  Cluster cluster_;
};

TEST_F(ClientTest, WhatOneEngineStoresAnotherLoadsIntoOtherPagesOfAnotherLayout) {
  Engine writer(cluster_.client_options()), reader(cluster_.client_options(), "vllm_bnhkc");
  const auto hashes = store(writer, 1, 5);
  ASSERT_EQ(hashes.size(), 5u);
  EXPECT_EQ(*reader.client.lookup(hashes), 5u);
  const std::vector<PageId> to = {9, 3, 11, 0, 7};
  ASSERT_EQ(*reader.client.load(reader.cache, hashes, to), 5u);
  // Through the pool again into the first layout: the bytes are equal.
  Engine third(cluster_.client_options());
  ASSERT_EQ(*third.client.load(third.cache, hashes, to), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(third.holds(hashes[i], to[i])) << i;
  EXPECT_FALSE(reader.holds(hashes[0], to[0]));  // its layout has another order
  const Statistics statistics = third.client.statistics();
  EXPECT_EQ(statistics.loaded_blocks, 5u);
  EXPECT_EQ(statistics.loaded_bytes, 5u * 3072);
}

// As `serve --create &` and an engine right after it.
TEST_F(ClientTest, APoolThatIsBeingMadeIsWaitedFor) {
  ClientOptions options = cluster_.client_options();
  options.pool = {cluster_.path() + ".begun"};
  const std::string& begun = options.pool.front();
  const os::FileDescriptor file(open(begun.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(file.get(), 4 << 20), 0);
  std::optional<os::FileLock> maker(*pool::lock_as_maker(file.get()));
  options.keeper_timeout_ns = 1;
  const Result<Client> early = Client::attach(options);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::kBusy) << early.error().message;

  options.keeper_timeout_ns = 60'000'000'000;
  std::atomic<bool> has_ended = false;
  std::thread engine([&] {
    const Result<Client> client = Client::attach(options);
    EXPECT_TRUE(client) << client.error().message;
    has_ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it asks several times
  EXPECT_FALSE(has_ended);
  ASSERT_EQ(unlink(begun.c_str()), 0);
  ASSERT_EQ(link(cluster_.path().c_str(), begun.c_str()), 0);
  maker.reset();
  engine.join();
  unlink(begun.c_str());
}

TEST_F(ClientTest, WhatIsThereIsNotWrittenAgainAndChainsGoOnFromTheirParent) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 2, 6);
  const Result<Stored> again = engine.client.store(engine.cache, nullptr, hashes, pages(6));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->blocks, 6u);
  EXPECT_EQ(again->written, 0u);
  const auto longer = engine.client.hash_tokens(tokens_of(2, 8 * 4));
  ASSERT_EQ(std::vector(longer.begin(), longer.begin() + 6), hashes);
  const std::span tail = std::span(longer).subspan(6);
  const Result<Stored> rest = engine.client.store(engine.cache, &hashes[5], tail, pages(2, 6));
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->written, 2u);
  EXPECT_EQ(*engine.client.lookup(longer), 8u);
  const BlockHash nowhere{1, 2};
  const BlockHash orphan{3, 4};
  const Result<Stored> lost = engine.client.store(engine.cache, &nowhere, {&orphan, 1}, pages(1));
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->blocks, 0u);
  EXPECT_EQ(lost->reason, Code::kRefused);
}

TEST_F(ClientTest, AChainThatIsLargerThanThePoolIsCountedAsFarAsItIsThere) {
  Cluster cluster(small_geometry().block_bytes(), 40);
  Engine engine(cluster.client_options(), "vllm_bknhc", 64);
  for (std::uint64_t round = 0; round < 5; ++round) {
    const auto hashes = engine.client.hash_tokens(tokens_of(1000 + round, 64 * 4));
    const Result<Stored> stored = engine.client.store(engine.cache, nullptr, hashes, pages(64));
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_EQ(stored->blocks, 40u);
    EXPECT_EQ(stored->written, 40u);
    EXPECT_EQ(stored->reason, Code::kNoSpace);
    EXPECT_EQ(*engine.client.lookup(hashes), 40u);
  }
}

TEST_F(ClientTest, InASmallPoolTwoClientsStoreLongChainsInTurn) {
  Cluster cluster(small_geometry().block_bytes(), 40);
  ClientOptions other = cluster.client_options();
  other.model = "another";
  Engine first(cluster.client_options(), "vllm_bknhc", 40), second(other, "vllm_bknhc", 40);
  for (std::uint64_t round = 0; round < 20; ++round) {
    Engine& engine = round % 2 == 0 ? first : second;
    const auto hashes = engine.client.hash_tokens(tokens_of(1000 + round, 40 * 4));
    const Result<Stored> stored = engine.client.store(engine.cache, nullptr, hashes, pages(40));
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_EQ(stored->blocks, 40u) << round;
    EXPECT_EQ(*engine.client.lookup(hashes), 40u) << round;
  }
}

// Each chain needs several commits, and all together do not fit into the pool. No store loses the beginning of
// the chain that it is adding to.
TEST_F(ClientTest, InASmallPoolTwoClientsThatStoreAtOnceSpareEachOther) {
  constexpr std::size_t kBlocks = 24;
  Cluster cluster(small_geometry().block_bytes(), 2 * kBlocks + 2);
  std::atomic<int> short_ones = 0, miscounted = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      ClientOptions options = cluster.client_options();
      options.salt = std::to_string(t);
      Engine engine(options, "vllm_bknhc", kBlocks);
      for (std::uint64_t round = 0; round < 200; ++round) {
        const auto hashes = engine.client.hash_tokens(tokens_of(1000 * t + round, kBlocks * 4));
        const Result<Stored> stored =
            engine.client.store(engine.cache, nullptr, hashes, pages(kBlocks));
        short_ones += !stored || stored->blocks != kBlocks;
        miscounted += !stored || stored->written > stored->blocks;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(short_ones, 0);
  EXPECT_EQ(miscounted, 0);
}

TEST_F(ClientTest, AStoreThatGoesOnFromAnOldPrefixIsAUseOfIt) {
  for (const bool has_parent : {false, true}) {
    Cluster cluster(small_geometry().block_bytes(), 20);
    Engine engine(cluster.client_options(), "vllm_bknhc", 20);
    const auto hashes = engine.client.hash_tokens(tokens_of(1, 12 * 4));
    const std::span all(hashes);
    ASSERT_EQ(engine.client.store(engine.cache, nullptr, all.first(8), pages(8))->blocks, 8u);
    const auto others = engine.client.hash_tokens(tokens_of(2, 12 * 4));
    ASSERT_EQ(engine.client.store(engine.cache, nullptr, others, pages(12))->blocks, 12u);
    const Result<Stored> longer =
        has_parent ? engine.client.store(engine.cache, &all[7], all.subspan(8), pages(4))
                   : engine.client.store(engine.cache, nullptr, all, pages(12));
    ASSERT_TRUE(longer) << longer.error().message;
    EXPECT_EQ(longer->written, 4u);
    // Now the other blocks are the least recently used ones.
    const auto third = engine.client.hash_tokens(tokens_of(3, 8 * 4));
    ASSERT_EQ(engine.client.store(engine.cache, nullptr, third, pages(8))->blocks, 8u);
    EXPECT_EQ(*engine.client.lookup(all), 12u) << has_parent;
  }
}

TEST_F(ClientTest, ModelsDtypesRanksSaltsAndOrdersNeverMeet) {
  std::vector<ClientOptions> all(8, cluster_.client_options());
  all[1].model = "test-model@2";
  all[2].geometry.dtype = DType::kF16;
  all[3].geometry.tp_size = 2;
  all[4].geometry.tp_size = all[5].geometry.tp_size = 2;
  all[5].geometry.tp_rank = 1;
  all[4].salt = "lora-7";
  all[6].block_order = "page_first_direct";
  all[7].hash = HashAlgorithm::kSha256Cbor;
  std::set<std::string> texts;
  std::vector<std::unique_ptr<Engine>> engines;
  for (const ClientOptions& options : all) {
    texts.insert(fingerprint_of(options));
    engines.push_back(std::make_unique<Engine>(options));
  }
  EXPECT_EQ(texts.size(), all.size());
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const auto hashes = store(*engines[i], 3, 2);
    for (std::size_t j = 0; j < engines.size(); ++j) {
      // Even with the same hash: entries contain the namespace, not only hashes.
      EXPECT_EQ(*engines[j]->client.lookup(hashes), i == j ? 2u : 0u) << i << " " << j;
    }
  }
}

TEST_F(ClientTest, LatentRanksOfOneModelShareTheirBlocks) {
  Cluster cluster(16384);
  ClientOptions options = cluster.client_options();
  options.geometry = {};
  options.geometry.layers = 2;
  options.geometry.attention = Attention::kLatent;
  options.geometry.kv_lora_rank = 64;
  options.geometry.qk_rope_head_dim = 32;
  options.geometry.block_tokens = 4;
  options.geometry.tp_size = 2;
  Engine first(options, "mla_joint");
  options.geometry.tp_rank = 1;
  Engine second(options, "mla_joint");
  const auto hashes = store(first, 4, 3);
  EXPECT_EQ(*second.client.load(second.cache, hashes, pages(3)), 3u);
}

TEST_F(ClientTest, SomeTokensAndSomeLayersAlone) {
  Engine writer(cluster_.client_options()), reader(cluster_.client_options());
  const auto hashes = store(writer, 5, 2);
  reader.clear();
  CopyOptions second;
  second.first_layer = 1;
  second.layers = 1;
  ASSERT_EQ(*reader.client.load(reader.cache, hashes, pages(2), second), 2u);
  EXPECT_TRUE(reader.holds(hashes[1], 1, 1, 1));
  EXPECT_EQ(reader.memory[0], std::vector<std::byte>(reader.memory[0].size()));
  reader.clear();
  const TokenRange chosen[] = {{1, 3}};
  const std::vector<std::span<const TokenRange>> tokens = {chosen, chosen};
  ASSERT_EQ(*reader.client.load_tokens(reader.cache, hashes, pages(2), tokens), 2u);
  // vllm_bknhc: K then V, tokens inside, 128 bytes a token.
  const std::size_t row = 128, page = reader.page_bytes();
  for (std::size_t token = 0; token < 4; ++token) {
    const bool is_chosen = token == 1 || token == 2;
    EXPECT_EQ(std::memcmp(&reader.memory[2][page + token * row],
                          &writer.memory[2][page + token * row], row) == 0,
              is_chosen);
  }
  // One layer of two blocks, and two of four tokens of three layers: 1,024 bytes a layer of a block.
  const Statistics now = reader.client.statistics();
  EXPECT_EQ(now.loaded_blocks, 4u);
  EXPECT_EQ(now.loaded_bytes, 2u * 1024 + 2 * 3 * 512);
  EXPECT_EQ(now.copied_bytes, now.loaded_bytes);
  const std::vector<std::span<const TokenRange>> whole_second = {chosen, {}};
  ASSERT_EQ(*reader.client.load_tokens(reader.cache, hashes, pages(2), whole_second), 2u);
  EXPECT_EQ(reader.client.statistics().loaded_bytes - now.loaded_bytes, 3u * (512 + 1024));
}

TEST_F(ClientTest, BadCallsAreRefusedWithAWord) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 6, 2);
  Client& client = engine.client;
  const auto code = [](const auto& result) {
    return result ? Code::kInternal : result.error().code;
  };
  EXPECT_EQ(code(client.load(engine.cache, hashes, pages(3))), Code::kInvalidArgument);
  // page 16
  EXPECT_EQ(code(client.load(engine.cache, hashes, pages(2, 15))), Code::kInvalidArgument);
  EXPECT_EQ(code(client.load(CacheId{77}, hashes, pages(2))), Code::kNotFound);
  EXPECT_EQ(code(client.load(engine.cache, hashes, pages(2), {.first_layer = 3})),
            Code::kInvalidArgument);
  EXPECT_EQ(code(client.load(engine.cache, hashes, pages(2), {.timeout_ns = 0})), Code::kTimeout);
  EXPECT_EQ(code(client.store(engine.cache, nullptr, hashes, pages(2), {.timeout_ns = 0})),
            Code::kTimeout);
  EXPECT_EQ(code(client.register_cache({.layout = "none"})), Code::kInvalidArgument);
  EXPECT_EQ(
      code(client.register_cache({.layout = "mla_joint", .tensors = {{}, {}, {}}, .pages = 1})),
      Code::kUnsupported);
  EXPECT_EQ(code(client.register_cache(
                {.layout = "vllm_bknhc", .tensors = {{engine.memory[0].data(), 100}}, .pages = 1})),
            Code::kInvalidArgument);
  ASSERT_TRUE(client.unregister_cache(engine.cache));
  EXPECT_EQ(code(client.load(engine.cache, hashes, pages(2))), Code::kNotFound);
}

TEST_F(ClientTest, APageTwiceInOneLoadIsRefusedByItsNumbers) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 6, 5);
  Client& client = engine.client;
  const std::vector<PageId> twice = {9, 3, 7, 3, 8};
  const auto expect_refused = [](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(result.error().message).find("number 1 and number 3 are both page 3"),
              std::string::npos)
        << result.error().message;
  };
  engine.clear();
  expect_refused(client.load(engine.cache, hashes, twice));
  expect_refused(client.begin_load(engine.cache, hashes, twice));
  expect_refused(client.load_async(engine.cache, hashes, twice));
  // no byte was copied
  EXPECT_EQ(engine.memory[0], std::vector<std::byte>(engine.memory[0].size()));
  const std::vector<PageId> mixed = {9, 3, 7, 15, 0};
  EXPECT_EQ(*client.load(engine.cache, hashes, mixed), 5u);
  // A store may read a page twice.
  const auto others = client.hash_tokens(tokens_of(66, 5 * 4));
  EXPECT_EQ(client.store(engine.cache, nullptr, others, twice)->blocks, 5u);
}

TEST_F(ClientTest, AfterDetachingEveryCallSaysSo) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 6, 2);
  Client& client = engine.client;
  auto loading =
      std::make_unique<Client::LayerLoad>(*client.begin_load(engine.cache, hashes, pages(2)));
  const auto others = client.hash_tokens(tokens_of(66, 8));
  auto storing = std::make_unique<Client::LayerStore>(
      *client.begin_store(engine.cache, nullptr, others, pages(2)));
  ASSERT_TRUE(storing->store_layer(0));
  const Token token = *client.load_async(engine.cache, hashes, pages(2));
  std::vector<std::byte> memory(512);
  ASSERT_TRUE(client.register_buffer(memory.data(), memory.size()));
  ASSERT_TRUE(client.detach());
  ASSERT_TRUE(client.detach());
  const auto expect_refused = [](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(result.error().message).find("detached"), std::string::npos)
        << result.error().message;
  };
  const Buffer part{memory.data(), 8};
  const std::string_view key = "key";
  bool present = false;
  expect_refused(client.lookup(hashes));
  expect_refused(client.load(engine.cache, hashes, pages(2)));
  expect_refused(client.load(CacheId{77}, hashes, pages(2), {.first_layer = 9}));
  expect_refused(client.load_tokens(engine.cache, hashes, pages(2), {}));
  expect_refused(client.store(engine.cache, nullptr, hashes, pages(2)));
  expect_refused(client.begin_load(engine.cache, hashes, pages(2)));
  expect_refused(client.begin_store(engine.cache, nullptr, hashes, pages(2)));
  expect_refused(client.load_async(engine.cache, hashes, pages(2)));
  expect_refused(client.store_async(engine.cache, nullptr, hashes, pages(2)));
  expect_refused(client.register_cache({.layout = "none"}));
  expect_refused(client.unregister_cache(engine.cache));
  expect_refused(client.register_buffer(memory.data(), 8));
  expect_refused(client.unregister_buffer(memory.data()));
  expect_refused(client.exists({&key, 1}, {&present, 1}));
  expect_refused(client.put(key, {&part, 1}));
  expect_refused(client.get(key, {&part, 1}));
  expect_refused(loading->load_layer(0));
  expect_refused(storing->store_layer(1));
  expect_refused(storing->finish());
  EXPECT_TRUE(client.wait(token));
  EXPECT_EQ(client.statistics().stored_blocks, 2u);
  EXPECT_EQ(client.hash_tokens(tokens_of(66, 8)), others);
  { const Client gone = std::move(client); }
  expect_refused(loading->load_layer(0));  // the load keeps the session
  expect_refused(storing->finish());
}

TEST_F(ClientTest, WhoHasDetachedHoldsNoSlotHoweverLongItLives) {
  std::vector<std::unique_ptr<Engine>> gone;
  std::vector<std::unique_ptr<Client::LayerLoad>> loads;
  for (std::uint32_t i = 0; i < 16; ++i) {  // a pool's default number of slots
    gone.push_back(std::make_unique<Engine>(cluster_.client_options()));
    const auto hashes = store(*gone.back(), 7, 2);
    loads.push_back(std::make_unique<Client::LayerLoad>(
        *gone.back()->client.begin_load(gone.back()->cache, hashes, pages(2))));
    ASSERT_TRUE(gone.back()->client.detach());
  }
  EXPECT_TRUE(Client::attach(cluster_.client_options()));
  gone.clear();
  const Result<Client> last = Client::attach(cluster_.client_options());
  ASSERT_TRUE(last) << last.error().message;  // a layer load shares its client's session
  EXPECT_EQ(*last->lookup(last->hash_tokens(tokens_of(7, 8))), 2u);
}

TEST_F(ClientTest, WhoIsAssignedToDetachesFirstAlsoWhereALayerStoreIsOpen) {
  ClientOptions first = cluster_.client_options(), second = first;
  first.slot = 1;
  second.slot = 2;
  Engine engine(first);
  Client& client = engine.client;
  const auto hashes = client.hash_tokens(tokens_of(70, 8));
  Result<Client::LayerStore> storing = client.begin_store(engine.cache, nullptr, hashes, pages(2));
  ASSERT_TRUE(storing);
  client = Engine::attach(second);
  EXPECT_EQ(storing->store_layer(0).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(Client::attach(first)) << "its slot is free";
  EXPECT_EQ(Client::attach(second).error().code, Code::kBusy);
  EXPECT_EQ(*client.lookup(hashes), 0u);
}

TEST_F(ClientTest, NumbersBeyondReasonAreRefusedWithTheirBound) {
  const auto refusal = [](const ClientOptions& options) {
    const Result<Client> client = Client::attach(options);
    return client ? std::string() : std::string(client.error().message);
  };
  for (const std::uint32_t value : {0u, 257u, 1'000'000'000u}) {
    ClientOptions options = cluster_.client_options();
    options.copy_threads = value;
    EXPECT_EQ(refusal(options),
              "copy_threads: " + std::to_string(value) + " is not within 1 to 256");
    options = cluster_.client_options();
    options.workers = value;
    EXPECT_EQ(refusal(options), "workers: " + std::to_string(value) + " is not within 1 to 256");
    options = cluster_.client_options();
    options.grant_blocks = value;
    EXPECT_EQ(refusal(options),
              "grant_blocks: " + std::to_string(value) + " is not within 1 to 256");
  }
  ClientOptions patient = cluster_.client_options();
  patient.keeper_timeout_ns = patient.recovery_ns = kNoTimeout;
  EXPECT_EQ(refusal(patient), "");
}

std::uint64_t measure_ns(const std::function<void()>& call) {
  const std::uint64_t since_ns = base::SteadyClock::read();
  call();
  return base::SteadyClock::read() - since_ns;
}

// The only property of time that a test can check: the call ends long before the client's own limits.
TEST_F(ClientTest, ACallsTimeBoundsItsWaitForAKeeperThatIsGone) {
  Cluster cluster(small_geometry().block_bytes(), 64);
  ClientOptions options = cluster.client_options();
  options.recovery_ns = options.keeper_timeout_ns = 600'000'000'000;
  Engine engine(options);
  const auto hashes = engine.client.hash_tokens(tokens_of(3, 4 * 4));
  ASSERT_TRUE(cluster.keeper().stop());
  const std::uint64_t took_ns = measure_ns([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        const Result<Stored> stored = engine.client.store(engine.cache, nullptr, hashes, pages(4),
                                                          {.timeout_ns = 50'000'000});
        EXPECT_EQ(stored ? Code::kInternal : stored.error().code, Code::kTimeout)
            << (stored ? "" : stored.error().message);
      });
    }
    const Result<Token> token = engine.client.store_async(engine.cache, nullptr, hashes, pages(4),
                                                          {.timeout_ns = 50'000'000});
    ASSERT_TRUE(token);
    EXPECT_EQ(engine.client.wait(*token)->status.error().code, Code::kTimeout);
    EXPECT_EQ(*engine.client.load(engine.cache, hashes, pages(4), {.timeout_ns = 50'000'000}), 0u);
    EXPECT_EQ(engine.client.statistics().loads, 1u);  // does not wait
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_LT(took_ns, 60'000'000'000u);
}

TEST_F(ClientTest, AttachRefusesWhatCannotBeServed) {
  const auto code_of = [](const ClientOptions& options) {
    const Result<Client> client = Client::attach(options);
    return client ? Code::kInternal : client.error().code;
  };
  ClientOptions options = cluster_.client_options();
  options.model.clear();
  EXPECT_EQ(code_of(options), Code::kInvalidArgument);
  options = cluster_.client_options();
  options.geometry.layers = 4;  // does not fit
  EXPECT_EQ(code_of(options), Code::kInvalidArgument);
  options.geometry.layers = 0xffffffff;
  options.geometry.head_dim = options.geometry.block_tokens = 0xffffffff;
  EXPECT_EQ(code_of(options), Code::kInvalidArgument);
  options = cluster_.client_options();
  options.block_order = "sideways";
  EXPECT_EQ(code_of(options), Code::kInvalidArgument);
  options = cluster_.client_options();
  options.pool = {"/dev/shm/there is no such pool"};
  EXPECT_EQ(code_of(options), Code::kNotFound);
}

TEST_F(ClientTest, LayersThatAreNotThereAreNamedAsTheyWereGiven) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 5, 2);
  const auto message = [&](const CopyOptions& options) {
    const Result<std::size_t> loaded = engine.client.load(engine.cache, hashes, pages(2), options);
    EXPECT_FALSE(loaded);
    return std::string(loaded ? "" : loaded.error().message);
  };
  EXPECT_EQ(message({.first_layer = 3}), "layers: all from 3 on, of a rank that has 3");
  EXPECT_EQ(message({.first_layer = 2, .layers = 2}), "layers: 2 from 2 on, of a rank that has 3");
}

TEST_F(ClientTest, CallsThatDoNotWaitCompleteOnce) {
  Engine writer(cluster_.client_options()), reader(cluster_.client_options());
  const auto hashes = writer.client.hash_tokens(tokens_of(7, 24));
  for (std::size_t i = 0; i < 6; ++i) writer.compute(hashes[i], static_cast<PageId>(i));
  const Result<Token> storing = writer.client.store_async(writer.cache, nullptr, hashes, pages(6));
  ASSERT_TRUE(storing);
  Result<Completion> stored = writer.client.wait(*storing);
  ASSERT_TRUE(stored);
  EXPECT_TRUE(stored->status);
  EXPECT_EQ(stored->blocks, 6u);
  EXPECT_EQ(writer.client.poll(*storing).error().code, Code::kNotFound);
  const Result<Token> loading = reader.client.load_async(reader.cache, hashes, pages(6, 4));
  ASSERT_TRUE(loading);
  for (;;) {
    const Result<Completion> completion = reader.client.poll(*loading);
    ASSERT_TRUE(completion);
    if (!completion->is_done) continue;
    EXPECT_EQ(completion->blocks, 6u);
    break;
  }
  EXPECT_TRUE(reader.holds(hashes[5], 9));
  EXPECT_EQ(reader.client.wait(Token{99}).error().code, Code::kNotFound);
  EXPECT_EQ(reader.client.cancel(Token{99}).error().code, Code::kNotFound);
  EXPECT_FALSE(reader.client.load_async(reader.cache, hashes, pages(1)));  // rejected immediately
}

TEST_F(ClientTest, AStoreThatGoesOnByItselfSaysWhyItIsShort) {
  Engine engine(cluster_.client_options());
  const auto hashes = engine.client.hash_tokens(tokens_of(12, 12));
  const auto stored = [&](const BlockHash* parent, std::size_t first) {
    const Result<Token> token = engine.client.store_async(
        engine.cache, parent, std::span(hashes).subspan(first), pages(3 - first));
    return *engine.client.wait(*token);
  };
  const Completion orphan = stored(&hashes[0], 1);
  EXPECT_TRUE(orphan.status);
  EXPECT_EQ(orphan.blocks, 0u);
  EXPECT_EQ(orphan.reason, Code::kRefused);
  const Completion whole = stored(nullptr, 0);
  EXPECT_EQ(whole.blocks, 3u);
  EXPECT_FALSE(whole.reason);
}

TEST_F(ClientTest, WhatIsCancelledSaysSo) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 8, 12);
  int cancelled = 0;
  for (int i = 0; i < 200 && cancelled == 0; ++i) {
    std::vector<Token> tokens;
    for (int j = 0; j < 8; ++j)
      tokens.push_back(*engine.client.load_async(engine.cache, hashes, pages(12)));
    ASSERT_TRUE(engine.client.cancel(tokens.back()));
    for (const Token token : tokens) {
      const Result<Completion> done = engine.client.wait(token);
      ASSERT_TRUE(done);
      if (done->status) continue;
      EXPECT_EQ(done->status.error().code, Code::kCancelled);
      ++cancelled;
    }
  }
  EXPECT_GT(cancelled, 0);
}

TEST_F(ClientTest, DetachingCarriesOutWhatIsQueued) {
  Cluster cluster(small_geometry().block_bytes(), 512);
  Engine engine(cluster.client_options()), reader(cluster.client_options());
  std::vector<Token> tokens;
  std::vector<std::vector<BlockHash>> prompts;
  for (std::uint64_t prompt = 0; prompt < 60; ++prompt) {
    prompts.push_back(engine.client.hash_tokens(tokens_of(prompt, 4 * 4)));
    const Result<Token> token =
        engine.client.store_async(engine.cache, nullptr, prompts.back(), pages(4));
    ASSERT_TRUE(token) << token.error().message;
    tokens.push_back(*token);
  }
  ASSERT_TRUE(engine.client.detach());
  for (const Token token : tokens) {
    const Result<Completion> done = engine.client.wait(token, 0);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_TRUE(done->status) << done->status.error().message;
    EXPECT_EQ(done->blocks, 4u);
  }
  for (const auto& hashes : prompts) EXPECT_EQ(*reader.client.lookup(hashes), 4u);
  EXPECT_EQ(engine.client.store_async(engine.cache, nullptr, prompts[0], pages(4)).error().code,
            Code::kInvalidArgument);
}

TEST_F(ClientTest, ManyThreadsReadAndWriteThroughOneClient) {
  constexpr int kThreads = 4, kRounds = 60;
  Engine engine(cluster_.client_options(), "vllm_bknhc", 4 * kThreads);
  std::atomic<int> wrong = 0, failed = 0, hits = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto own = pages(4, static_cast<PageId>(4 * t));
      for (int round = 0; round < kRounds; ++round) {
        const auto hashes = engine.client.hash_tokens(tokens_of(100 + (round / 2 + t) % 40, 16));
        const Result<std::size_t> hit = engine.client.load(engine.cache, hashes, own);
        if (!hit) return void(++failed);
        hits += static_cast<int>(*hit);
        for (std::size_t i = 0; i < *hit; ++i) wrong += !engine.holds(hashes[i], own[i]);
        for (std::size_t i = *hit; i < 4; ++i) engine.compute(hashes[i], own[i]);
        failed += !engine.client.store(engine.cache, nullptr, hashes, own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_GT(hits, 0);
}

TEST_F(ClientTest, AForkedChildIsToldToAttachAgain) {
  Engine engine(cluster_.client_options());
  const auto hashes = store(engine, 11, 2);
  ASSERT_TRUE(engine.client.wait(*engine.client.load_async(engine.cache, hashes, pages(2))));
  Client nobody = Engine::attach(cluster_.client_options());
  { const Client gone = std::move(nobody); }
  const Result<Token> before = engine.client.load_async(engine.cache, hashes, pages(2));
  ASSERT_TRUE(before);
  EmbeddedKeeper moved_from = std::move(cluster_.keeper());
  cluster_.keeper() = std::move(moved_from);
  EXPECT_EQ(moved_from.stop().error().code, Code::kInvalidArgument);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const Result<std::size_t> hit = engine.client.lookup(hashes);
    const Result<Token> token = engine.client.load_async(engine.cache, hashes, pages(2));
    bool is_told = !hit && hit.error().code == Code::kUnsupported && !token;
    // The parent's threads do not exist here.
    is_told = is_told && engine.client.wait(*before).error().code == Code::kUnsupported;
    is_told = is_told && engine.client.poll(*before).error().code == Code::kUnsupported;
    is_told = is_told && engine.client.cancel(*before).error().code == Code::kUnsupported;
    is_told = is_told && engine.client.namespaces().empty();  // the pool is not mapped here
    engine.client = std::move(nobody);                        // its threads do not exist here
    cluster_.keeper() = std::move(moved_from);
    _exit(is_told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(*engine.client.lookup(hashes), 2u);
}

TEST_F(ClientTest, AForkedChildDoesNotWaitForACallOfItsParent) {
  ClientOptions options = cluster_.client_options();
  options.recovery_ns = options.keeper_timeout_ns = 60'000'000'000;
  Engine engine(options);
  const auto hashes = engine.client.hash_tokens(tokens_of(12, 4));
  ASSERT_TRUE(cluster_.keeper().stop());
  std::atomic<bool> is_over = false;
  std::thread storing([&] {  // holds the client's lock while it waits for the next keeper
    while (!is_over)
      (void)engine.client.store(engine.cache, nullptr, hashes, pages(1),
                                {.timeout_ns = 2'000'000'000});
  });
  const auto is_waited_for = [&] {
    const Result<Prefetched> found = engine.client.prefetch(hashes, 1);
    return !found && std::strstr(found.error().message, "another thread's call") != nullptr;
  };
  for (int tries = 0; tries < 100 && !is_waited_for(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the lock is not fair
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const auto is_refused = [](const auto& result) {
      return !result && result.error().code == Code::kUnsupported;
    };
    Client& client = engine.client;
    const bool is_told =
        is_refused(client.has_storage()) && is_refused(client.create_context(hashes[0], 9)) &&
        is_refused(client.renew_context(1, 9)) && is_refused(client.drop_context(1)) &&
        is_refused(client.retain("session", hashes[0], 9));
    _exit(is_told ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  is_over = true;
  storing.join();
}

}  // namespace
}  // namespace cachalot::client
