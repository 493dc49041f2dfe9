// A GPU that fails in a copy may store later: its blocks are not reused before the process ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "pool/pool.h"
#include "testing/client/test_gpu.h"

namespace cachalot::client {
namespace {

constexpr int kLaunchFailed = 719;

// Searches the pool's file for the bytes.
bool has_bytes(const std::string& path, std::span<const std::byte> bytes) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  return all.find(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())) !=
         std::string::npos;
}

class GpuLossTest : public ::testing::Test {
 protected:
  ClientOptions options() const {
    ClientOptions options = cluster_.client_options();
    options.grant_blocks = 4;
    return options;
  }
  // A new engine stores into every block that the pool can grant.
  struct Fill {
    std::unique_ptr<Engine> engine;
    std::vector<BlockHash> hashes;
  };
  Fill fill(std::uint64_t prompt) {
    constexpr std::size_t kBlocks = 64;
    Fill fill{std::make_unique<Engine>(options(), "vllm_bknhc", kBlocks), {}};
    fill.hashes = fill.engine->client.hash_tokens(tokens_of(prompt, kBlocks * 4));
    for (PageId i = 0; i < kBlocks; ++i) fill.engine->compute(fill.hashes[i], i);
    const Result<Stored> stored =
        fill.engine->client.store(fill.engine->cache, nullptr, fill.hashes, pages_from(0, kBlocks));
    EXPECT_TRUE(stored && stored->blocks == kBlocks);
    return fill;
  }
  void expect_whole(Fill& fill) {
    fill.engine->clear();
    const std::size_t blocks = fill.hashes.size();
    EXPECT_EQ(*fill.engine->client.load(fill.engine->cache, fill.hashes, pages_from(0, blocks)),
              blocks);
    for (PageId i = 0; i < blocks; ++i) EXPECT_TRUE(fill.engine->holds(fill.hashes[i], i)) << i;
  }

  Cluster cluster_{small_geometry().block_bytes(), 64, "coherent"};
  GpuMachine machine_;
};

TEST_F(GpuLossTest, WhatItMayStillStoreIntoIsNobodysEvenAfterItsClientHasLeft) {
  GpuEngine lost(machine_, options());
  const auto hashes = lost.client.hash_tokens(tokens_of(1, 3 * 4));
  for (PageId i = 0; i < 3; ++i) lost.compute(hashes[i], i);
  machine_.fake.fail_waits(kLaunchFailed);
  const Result<Stored> failed = lost.client.store(lost.cache, nullptr, hashes, pages_from(0, 3));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kIo);
  machine_.fake.failing.clear();
  EXPECT_EQ(*lost.client.lookup(hashes), 0u);
  // The client does not use the GPU any more.
  const std::uint64_t launches = machine_.fake.launches_and_batches();
  const Result<Stored> again = lost.client.store(lost.cache, nullptr, hashes, pages_from(0, 3));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kIo);
  EXPECT_NE(std::string(again.error().message).find("failed in an earlier copy"),
            std::string::npos);
  EXPECT_EQ(lost.client.load(lost.cache, hashes, pages_from(0, 3)).error().code, Code::kIo);
  EXPECT_EQ(machine_.fake.launches_and_batches(), launches);
  // The client continues with other memory and other blocks.
  std::vector<std::vector<std::byte>> here(3, std::vector<std::byte>(16 * 1024));
  PagedCache description{.layout = "vllm_bknhc", .pages = 16};
  for (auto& tensor : here) description.tensors.push_back({tensor.data(), tensor.size()});
  const CacheId in_memory = *lost.client.register_cache(description);
  const auto others = lost.client.hash_tokens(tokens_of(2, 16 * 4));
  EXPECT_EQ(lost.client.store(in_memory, nullptr, others, pages_from(0, 16))->blocks, 16u);
  const Fill before = fill(3);
  const Status left = lost.client.detach();
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().code, Code::kIo);
  EXPECT_NE(std::string(left.error().message).find("may still store"), std::string::npos)
      << left.error().message;
  Fill after = fill(4);
  ASSERT_FALSE(has_bytes(cluster_.path(), lost.computed(hashes[2], 1)));
  machine_.enter();
  machine_.finish(lost.stream);
  ASSERT_TRUE(has_bytes(cluster_.path(), lost.computed(hashes[2], 1))) << "it stored late";
  expect_whole(after);
}

// The failed GPU may still store into the pool, which another GPU has registered for both.
TEST_F(GpuLossTest, ThePoolStaysRegisteredWhereOneOfTwoGpusFailed) {
  const PagedCache other = machine_.cache_on(1, options().geometry, 4);
  {
    GpuEngine engine(machine_, options());
    const Result<CacheId> lost = engine.client.register_cache(other);
    ASSERT_TRUE(lost);
    const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
    machine_.fake.fail_waits(kLaunchFailed);
    EXPECT_EQ(engine.client.store(*lost, nullptr, hashes, pages_from(0, 2)).error().code,
              Code::kIo);
    machine_.fake.failing.clear();
  }
  EXPECT_EQ(machine_.fake.registrations(), 1u);
  EXPECT_EQ(machine_.fake.contexts, 2);
  EXPECT_EQ(machine_.fake.refused, 0u);
}

// Another client of this process in the same slot would vouch that its blocks are safe, which is not true.
TEST_F(GpuLossTest, ItsSlotIsNobodysUntilTheProcessHasEnded) {
  ClientOptions same = options();
  same.slot = 2;
  {
    GpuEngine lost(machine_, same);
    const auto hashes = lost.client.hash_tokens(tokens_of(1, 3 * 4));
    machine_.fake.fail_waits(kLaunchFailed);
    EXPECT_EQ(lost.client.store(lost.cache, nullptr, hashes, pages_from(0, 3)).error().code,
              Code::kIo);
    machine_.fake.failing.clear();
    EXPECT_FALSE(lost.client.detach());
  }
  const Result<Client> refused = Client::attach(same);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  // Rejected by the slot's lock, before the slot's line was read.
  EXPECT_EQ(std::string(refused.error().message).find("is held"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(Client::attach(options())) << "another slot does";
  // A client that detached normally frees its slot.
  same.slot = 3;
  { const Engine orderly(same); }
  EXPECT_TRUE(Client::attach(same));
}

TEST_F(GpuLossTest, ALoadThatItFailedInWithholdsNothing) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 3);
  machine_.fake.fail_waits(kLaunchFailed);
  EXPECT_EQ(engine.client.load(engine.cache, hashes, pages_from(4, 3)).error().code, Code::kIo);
  machine_.fake.failing.clear();
  // Because of the tensors, not of the blocks
  EXPECT_EQ(engine.client.detach().error().code, Code::kIo);
  ClientOptions same = options();
  same.slot = 0;
  EXPECT_TRUE(Client::attach(same)) << "its slot is free";
  const pool::Pool pool = *pool::Pool::open({cluster_.path()});
  pool::KeeperCounters now;
  ASSERT_TRUE(pool.state().read_keeper_counters(now));
  EXPECT_EQ(now[pool::KeeperCounter::kQuarantined], 0u);
}

// The library keeps its own memory. It says that the tensors must be kept, even if a call reported the failure.
TEST(GpuLoss, WhatALoadMayStillWriteToIsKeptUntilTheProcessHasEnded) {
  enum class Was { kCalled, kGoingOn, kStarted, kDropped };
  for (const Was was : {Was::kCalled, Was::kGoingOn, Was::kStarted, Was::kDropped}) {
    SCOPED_TRACE(static_cast<int>(was));
    const Cluster cluster(small_geometry().block_bytes(), 64, "coherent");
    GpuMachine machine;
    GpuEngine engine(machine, cluster.client_options());
    const auto hashes = engine.store(1, 3);
    engine.clear();
    std::optional<Client::LayerLoad> load;
    if (was == Was::kStarted || was == Was::kDropped) {
      load.emplace(*engine.client.begin_load(engine.cache, hashes, pages_from(4, 3)));
      ASSERT_TRUE(load->start_layer(0));
    }
    machine.fake.fail_waits(kLaunchFailed);
    if (was == Was::kCalled) {
      EXPECT_EQ(engine.client.load(engine.cache, hashes, pages_from(4, 3)).error().code, Code::kIo);
    } else if (was == Was::kGoingOn) {
      EXPECT_TRUE(engine.client.load_async(engine.cache, hashes, pages_from(4, 3)));
    } else if (was == Was::kStarted) {
      EXPECT_EQ(load->load_layer(0).error().code, Code::kIo);
    }
    load.reset();
    const Status unregistered = engine.client.unregister_cache(engine.cache);
    machine.fake.failing.clear();
    ASSERT_FALSE(unregistered);
    EXPECT_EQ(unregistered.error().code, Code::kIo);
    EXPECT_NE(std::string(unregistered.error().message).find("keep the memory of all caches on it"),
              std::string::npos)
        << unregistered.error().message;
    EXPECT_EQ(engine.client.unregister_cache(engine.cache).error().code, Code::kNotFound);
    const std::uint64_t allocations = machine.fake.allocations(), events = machine.fake.events();
    EXPECT_EQ(engine.client.detach().error().code, Code::kIo);
    EXPECT_EQ(engine.client.detach().error().code, Code::kIo) << "it is so still";
    { const Client gone = std::move(engine.client); }
    // The GPU is not used any more, and the pool is still mapped.
    EXPECT_EQ(machine.fake.registrations(), 1u);
    EXPECT_EQ(machine.fake.contexts + machine.fake.modules, 2);
    EXPECT_EQ(machine.fake.allocations(), allocations);
    EXPECT_EQ(machine.fake.events(), events);
    EXPECT_EQ(machine.fake.refused, 0u);
    EXPECT_FALSE(engine.holds(hashes[0], 4, 0));
    machine.enter();
    EXPECT_EQ(machine.driver.context_synchronize(), gpu::kSuccess);
    EXPECT_TRUE(engine.holds(hashes[0], 4, 0)) << "it wrote late";
  }
}

TEST_F(GpuLossTest, ACopyThatWasRefusedWithholdsNothingAndTheNextOneWorks) {
  // Of a kernel. Batches, which larger fragments take: driver_copies_test.cpp.
  GpuEngine engine(machine_, options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
  // For every error code of the driver.
  constexpr int kInvalidHandle = 400, kOutOfResources = 701;
  for (const char* const call : {"event_create", "launch", "stream_is_capturing", "event_record"}) {
    for (const int result : {kInvalidHandle, kOutOfResources}) {
      SCOPED_TRACE(call);
      machine_.fake.failing[call] = result;
      EXPECT_EQ(engine.client.store(engine.cache, nullptr, hashes, pages_from(0, 2)).error().code,
                Code::kInternal);
      machine_.fake.failing.clear();
    }
  }
  machine_.fake.failing["launch"] = gpu::kOutOfMemory;
  EXPECT_EQ(engine.client.store(engine.cache, nullptr, hashes, pages_from(0, 2)).error().code,
            Code::kNoSpace);
  Result<Client::LayerStore> store =
      engine.client.begin_store(engine.cache, nullptr, hashes, pages_from(0, 2));
  ASSERT_TRUE(store);
  EXPECT_EQ(store->start_layer(0).error().code, Code::kNoSpace);
  EXPECT_EQ(store->store_layer(0).error().code, Code::kNoSpace);
  machine_.fake.failing.clear();
  for (std::uint32_t layer = 0; layer < 3; ++layer) EXPECT_TRUE(store->store_layer(layer));
  EXPECT_EQ(store->finish()->written, 2u);
  EXPECT_TRUE(engine.client.detach());
}

TEST_F(GpuLossTest, ALayerStoreThatItFailedInIsOverAndItsBlocksAreWithheld) {
  enum class Ends { kInStore, kInFinish, kInStart, kDropped };
  for (const Ends ends : {Ends::kInStore, Ends::kInFinish, Ends::kInStart, Ends::kDropped}) {
    SCOPED_TRACE(static_cast<int>(ends));
    GpuEngine engine(machine_, options());
    const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
    Result<Client::LayerStore> begun =
        engine.client.begin_store(engine.cache, nullptr, hashes, pages_from(0, 2));
    ASSERT_TRUE(begun);
    std::optional<Client::LayerStore> store(*std::move(begun));
    for (std::uint32_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(store->start_layer(layer));
    machine_.fake.fail_waits(kLaunchFailed);
    if (ends == Ends::kInStart) {
      for (const char* const call : {"launch", "copy_batch", "stream_synchronize"}) {
        machine_.fake.failing[call] = kLaunchFailed;
      }
      EXPECT_EQ(store->start_layer(2).error().code, Code::kIo);
    } else if (ends == Ends::kInStore) {
      EXPECT_EQ(store->store_layer(0).error().code, Code::kIo);
    } else if (ends == Ends::kInFinish) {
      EXPECT_EQ(store->finish().error().code, Code::kIo);
    } else {
      store.reset();
    }
    if (store) {
      EXPECT_EQ(store->store_layer(1).error().code, Code::kIo);
      EXPECT_EQ(store->finish().error().code, Code::kIo);
    }
    machine_.fake.failing.clear();
    EXPECT_EQ(engine.client.detach().error().code, Code::kIo);
    machine_.enter();
    machine_.finish(engine.stream);
  }
}

TEST_F(GpuLossTest, ACallThatGoesOnByItselfSaysIt) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
  machine_.fake.fail_waits(kLaunchFailed);
  const Result<Token> token =
      engine.client.store_async(engine.cache, nullptr, hashes, pages_from(0, 2));
  ASSERT_TRUE(token);
  const Result<Completion> done = engine.client.wait(*token);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status.error().code, Code::kIo);
  machine_.fake.failing.clear();
  EXPECT_EQ(engine.client.store_async(engine.cache, nullptr, hashes, pages_from(0, 2)).error().code,
            Code::kIo);
  EXPECT_EQ(engine.client.detach().error().code, Code::kIo);
}

// Nothing failed: the call only came too early.
TEST_F(GpuLossTest, WhoCouldNotVouchForCopiesUnderWayDoesOnceTheyHaveEnded) {
  ClientOptions same = options();
  same.slot = 2;
  same.keeper_timeout_ns = 200'000'000;
  for (const bool asks_again : {true, false}) {
    SCOPED_TRACE(asks_again);
    auto engine = std::make_unique<GpuEngine>(machine_, same);
    const auto hashes = engine->client.hash_tokens(tokens_of(1, 2 * 4));
    std::optional<Client::LayerStore> store(
        *engine->client.begin_store(engine->cache, nullptr, hashes, pages_from(0, 2)));
    ASSERT_TRUE(store->start_layer(0));
    EXPECT_EQ(engine->client.detach().error().code, Code::kBusy);
    EXPECT_EQ(engine->client.detach().error().code, Code::kBusy) << "it still holds its slot";
    if (!asks_again) {
      const Client gone = std::move(engine->client);
    }
    EXPECT_EQ(Client::attach(same).error().code, Code::kBusy);
    EXPECT_EQ(store->store_layer(0).error().code, Code::kInvalidArgument);
    store.reset();
    if (asks_again) {
      EXPECT_TRUE(engine->client.detach());
    }
    const Result<Client> next = Client::attach(same);
    EXPECT_TRUE(next) << next.error().message;
  }
  const pool::Pool pool = *pool::Pool::open({cluster_.path()});
  pool::KeeperCounters now;
  ASSERT_TRUE(pool.state().read_keeper_counters(now));
  EXPECT_EQ(now[pool::KeeperCounter::kQuarantined], 0u);
}

// A process whose GPU failed detaches, continues for a while, and exits.
TEST(GpuLoss, TheBlocksAreFreeWhenTheProcessHasEnded) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a forked child may not start threads under ThreadSanitizer";
#endif
  const Cluster cluster(small_geometry().block_bytes(), 64, "coherent");
  int left[2], may_end[2];
  ASSERT_EQ(pipe(left), 0);
  ASSERT_EQ(pipe(may_end), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(left[0]);
    close(may_end[1]);
    auto* const machine = new GpuMachine;
    auto* const engine = new GpuEngine(*machine, cluster.client_options());
    const auto hashes = engine->client.hash_tokens(tokens_of(1, 3 * 4));
    machine->fake.fail_waits(kLaunchFailed);
    const bool failed = !engine->client.store(engine->cache, nullptr, hashes, pages_from(0, 3));
    const bool is_silent = !engine->client.detach();
    char byte = failed && is_silent ? 'y' : 'n';
    if (write(left[1], &byte, 1) != 1) _exit(1);
    (void)read(may_end[0], &byte, 1);  // blocks until the other end is closed
    _exit(0);
  }
  close(left[1]);
  close(may_end[0]);
  char byte = 0;
  ASSERT_EQ(read(left[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  const pool::Pool pool = *pool::Pool::open({cluster.path()});
  const auto held = [&] {
    pool::KeeperCounters now;
    EXPECT_TRUE(pool.state().read_keeper_counters(now));
    return now[pool::KeeperCounter::kGranted] + now[pool::KeeperCounter::kQuarantined];
  };
  // Another client attaches, so the keeper's answer is newer than the detach request would have been.
  { const Engine other(cluster.client_options()); }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto wait_for = [&](auto&& condition) {
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  };
  EXPECT_TRUE(wait_for([&] { return held() >= 3; }));
  close(may_end[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(wait_for([&] { return held() == 0; }));
  close(left[0]);
}

}  // namespace
}  // namespace cachalot::client
