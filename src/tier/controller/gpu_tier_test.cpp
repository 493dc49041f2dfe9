// A TieredCache whose L1 is on a fake GPU: bytes by all ways between the tiers, the order of copies and of the engine's
// work, and what happens after a failure. Random requests: tier_states_test.cpp.
#include <cachalot/tier.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "testing/client/tier_engine.h"

namespace cachalot::client {
namespace {

constexpr std::uint64_t kLongNs = 20'000'000'000;

Tokens prompt_of(std::uint64_t seed, std::size_t blocks) {
  return tokens_of(seed, blocks * 4 + 1);
}

TieredCacheOptions local_options(double host_ratio) {
  TieredCacheOptions options;
  options.shared.model = "test-model@1";
  options.shared.geometry = small_geometry();
  options.prefetch.threshold_tokens = 4;
  options.host_ratio = host_ratio;
  return options;
}
TieredCacheOptions pool_options(const Cluster& cluster, double host_ratio) {
  TieredCacheOptions options = local_options(host_ratio);
  options.shared = cluster.client_options();
  options.prefetch.stop = PrefetchStop::kWaitComplete;
  return options;
}

// After each test the fake GPU holds nothing and has seen no error.
class GpuTier : public ::testing::Test {
 protected:
  ~GpuTier() override {
    EXPECT_EQ(machine_.fake.faults + machine_.fake.refused, 0u);
    EXPECT_EQ(machine_.fake.of_another_device + machine_.fake.without_context, 0u);
    EXPECT_EQ(machine_.fake.registrations(), 0u);
    EXPECT_EQ(machine_.fake.allocations() + machine_.fake.events(), 0u);
    EXPECT_EQ(machine_.fake.modules + machine_.fake.contexts + machine_.fake.streams, 0);
  }
  // A cache of 4 blocks on device 0, which is not freed before the end.
  Error refusal(TieredCacheOptions options, const PagedCache& device) {
    options.device = device;
    const Result<TieredCache> made = tier::make(options, machine_.opener());
    EXPECT_FALSE(made);
    return made ? Error() : made.error();
  }

  GpuMachine machine_;
};

class GpuTierLayouts : public GpuTier, public ::testing::WithParamInterface<std::string> {};

TEST_P(GpuTierLayouts, WhatDeviceMemoryEvictedIsLoadedBackFromHostMemory) {
  for (const std::uint32_t pages_per_block : {1u, 2u}) {
    TieredCacheOptions options = local_options(4);
    options.host_layout = GetParam();
    TierEngine engine(options, 8, pages_per_block, &machine_);
    const Tokens prompt = prompt_of(1, 5);
    engine.serve(prompt);
    ASSERT_TRUE(engine.cache().flush(kLongNs));
    for (std::uint64_t other = 2; other < 5; ++other) engine.serve(prompt_of(other, 5));
    const TierStart again = engine.serve(prompt);  // checks the bytes
    EXPECT_EQ(again.cached_tokens, 20u);
    EXPECT_EQ(again.host_tokens, 20u);
    EXPECT_TRUE(engine.cache().flush(kLongNs));
    EXPECT_TRUE(engine.cache().is_valid());
  }
}
INSTANTIATE_TEST_SUITE_P(GpuTier, GpuTierLayouts, ::testing::ValuesIn(host_layout_names()));

// L2 is what an engine in this process's memory would have: the pool reads it, and writes it.
TEST_F(GpuTier, HostMemoryIsAsTheLayoutSays) {
  for (const std::string& layout : host_layout_names()) {
    Cluster cluster;
    TieredCacheOptions options = pool_options(cluster, 4);
    options.host_layout = layout;
    {
      TierEngine writer(options, 8, 1, &machine_);
      writer.serve(prompt_of(1, 5));  // L1 to L2, from there to the pool
      ASSERT_TRUE(writer.cache().flush(kLongNs));
      EXPECT_EQ(writer.cache().statistics().written_bytes, 5 * small_geometry().block_bytes());
    }
    TierEngine plain(options, 8);
    EXPECT_EQ(plain.serve(prompt_of(1, 5)).shared_tokens, 20u) << layout;
    TierEngine reader(options, 8, 1, &machine_);
    EXPECT_EQ(reader.serve(prompt_of(1, 5)).shared_tokens, 20u) << layout;
  }
}

TEST_F(GpuTier, WithoutHostMemoryBlocksGoBetweenDeviceMemoryAndThePool) {
  Cluster cluster;
  TierEngine writer(pool_options(cluster, 0), 8, 1, &machine_);
  writer.serve(prompt_of(1, 5));
  ASSERT_TRUE(writer.cache().flush(kLongNs));
  TierEngine reader(pool_options(cluster, 0), 8, 1, &machine_);
  EXPECT_EQ(reader.serve(prompt_of(1, 5)).shared_tokens, 20u);
}

TEST_F(GpuTier, WhatIsEvictedIsCopiedAfterTheWorkThatComputesIt) {
  TieredCacheOptions options = local_options(4);
  options.writes = TierWrites::kBack;
  TierEngine engine(options, 8, 1, &machine_);
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t prompt = 1; prompt <= 4; ++prompt) {
      EXPECT_EQ(engine.serve(prompt_of(prompt, 5)).cached_tokens, round == 0 ? 0u : 20u);
    }
  }
  EXPECT_EQ(engine.cache().statistics().demoted_blocks, 20u);
}

// Work of the engine's stream that still reads or writes a page when its request is closed.
TEST_F(GpuTier, ALoadFollowsTheWorkThatHadThePagesBefore) {
  TierEngine engine(local_options(4), 8, 1, &machine_);
  const Tokens first = prompt_of(1, 5), second = prompt_of(2, 5);
  engine.serve(first);
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  engine.serve(second);
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  // Computes into all pages, and does not commit.
  const Tokens third = prompt_of(3, 7);
  const Result<RequestId> request = engine.cache().open(third);
  const Result<TierStart> start = engine.cache().start(*request);
  ASSERT_TRUE(start);
  engine.compute(third, start->pages, 0);
  ASSERT_TRUE(engine.cache().close(*request));
  EXPECT_EQ(engine.serve(first).host_tokens, 20u);
}

// The copies wait for work of the engine's, and the copier's thread for the copies: meanwhile the engine goes on, and what
// its stream does then comes after each layer.
TEST_F(GpuTier, TheStreamFollowsALayerAndTheThreadDoesNotWaitForIt) {
  TierEngine engine(local_options(4), 8, 1, &machine_);
  const Tokens prompt = prompt_of(1, 5);
  engine.serve(prompt);
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  engine.serve(prompt_of(2, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  std::promise<void> may_go_on;
  std::atomic<bool> was_late = false;
  machine_.fake.on_wait = [&was_late, future = may_go_on.get_future().share()] {
    if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) was_late = true;
  };
  machine_.fake.begin(reinterpret_cast<std::uintptr_t>(engine.stream()));
  const Result<RequestId> request = engine.cache().open(prompt);
  const Result<TierStart> start = engine.cache().start(*request);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->host_tokens, 20u);
  for (std::uint32_t layer = 0; layer < engine.geometry().layers; ++layer)
    EXPECT_TRUE(engine.cache().wait_layer(*request, layer));
  EXPECT_FALSE(was_late);
  for (std::uint32_t layer = 0; layer < engine.geometry().layers; ++layer)
    EXPECT_TRUE(engine.holds(prompt, start->pages, start->cached_tokens, layer)) << layer;
  may_go_on.set_value();
  EXPECT_TRUE(engine.cache().close(*request));
  EXPECT_TRUE(engine.cache().flush(kLongNs));
  machine_.fake.on_wait = nullptr;
}

TEST_F(GpuTier, AFailedCopyEndsTheTiersAndNothingOfItIsServed) {
  Cluster cluster;
  TierEngine engine(pool_options(cluster, 4), 8, 1, &machine_);
  engine.serve(prompt_of(1, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  const std::uint64_t written = engine.cache().statistics().written_bytes;
  const Tokens prompt = prompt_of(2, 5);
  const Result<RequestId> request = engine.cache().open(prompt);
  ASSERT_TRUE(engine.cache().wait_ready(*request, kLongNs));
  const Result<TierStart> start = engine.cache().start(*request);
  ASSERT_TRUE(start);
  engine.compute(prompt, start->pages, 0);
  machine_.fake.failing["launch"] = 700;
  machine_.fake.failing["copy_batch"] = 700;
  ASSERT_TRUE(engine.cache().commit(*request, prompt));  // its backup fails
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  machine_.fake.failing.clear();
  EXPECT_EQ(engine.cache().statistics().written_bytes, written);
  EXPECT_EQ(engine.cache().commit(*request, prompt).error().code, Code::kIo);
  EXPECT_TRUE(engine.cache().close(*request));
  const Result<RequestId> next = engine.cache().open(prompt_of(1, 5));
  ASSERT_TRUE(next);
  EXPECT_EQ(engine.cache().start(*next).error().code, Code::kIo);
  EXPECT_TRUE(engine.cache().close(*next));
}

TEST_F(GpuTier, ALoadThatFailsIsSaidByTheLayersThatDidNotArrive) {
  TierEngine engine(local_options(4), 8, 1, &machine_);
  engine.serve(prompt_of(1, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  engine.serve(prompt_of(2, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  machine_.fake.failing["launch"] = 700;
  machine_.fake.failing["copy_batch"] = 700;
  const Result<RequestId> request = engine.cache().open(prompt_of(1, 5));
  const Result<TierStart> start = engine.cache().start(*request);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->host_tokens, 20u);
  EXPECT_EQ(engine.cache().wait_layer(*request, 0).error().code, Code::kIo);
  EXPECT_TRUE(engine.cache().close(*request));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  machine_.fake.failing.clear();
  const Result<RequestId> next = engine.cache().open(prompt_of(1, 5));
  EXPECT_EQ(engine.cache().start(*next).error().code, Code::kIo);
  EXPECT_TRUE(engine.cache().close(*next));
}

TEST_F(GpuTier, WhatAGpuCannotHaveIsRefusedByName) {
  const KvGeometry geometry = small_geometry();
  PagedCache device = machine_.cache_on(0, geometry, 4);
  device.cuda_device = 1;
  EXPECT_NE(
      std::string(refusal(local_options(2), device).message).find("expected memory of device 1"),
      std::string::npos);
  device.cuda_device = 0;
  TieredCacheOptions strange = local_options(2);
  strange.host_layout = "by_row";
  EXPECT_EQ(refusal(strange, device).code, Code::kInvalidArgument);
  machine_.fake.failing["host_register"] = 2;
  EXPECT_EQ(refusal(local_options(2), device).code, Code::kNoSpace);
  machine_.fake.failing.clear();
  machine_.free(device);
  EXPECT_NE(std::string(refusal(local_options(2), device).message).find("nothing that CUDA knows"),
            std::string::npos);

  TieredCacheOptions odd = local_options(2);
  odd.shared.geometry.head_dim = 6;  // 3 layers of 192 bytes, of keys and of values 96
  odd.host_layout = "layer_first";
  const PagedCache of_odd = machine_.cache_on(0, odd.shared.geometry, 4);
  const Error refused = refusal(odd, of_odd);
  EXPECT_EQ(refused.code, Code::kInvalidArgument);
  EXPECT_NE(std::string(refused.message).find("96 bytes"), std::string::npos) << refused.message;
  machine_.free(of_odd);
}

TEST_F(GpuTier, AStreamThatIsBeingCapturedIsRefused) {
  const KvGeometry geometry = small_geometry();
  TieredCacheOptions options = local_options(2);
  options.device = machine_.cache_on(0, geometry, 4);
  const gpu::Stream stream = machine_.make_stream();
  options.device.cuda_stream = stream;
  {
    Result<TieredCache> cache = tier::make(options, machine_.opener());
    ASSERT_TRUE(cache);
    const Result<RequestId> request = cache->open(prompt_of(1, 2));
    machine_.fake.set_capturing(reinterpret_cast<std::uintptr_t>(stream), true);
    EXPECT_EQ(cache->start(*request).error().code, Code::kInvalidArgument);
    machine_.fake.set_capturing(reinterpret_cast<std::uintptr_t>(stream), false);
    EXPECT_TRUE(cache->start(*request));
    EXPECT_TRUE(cache->close(*request));
  }
  machine_.enter();
  machine_.driver.stream_destroy(stream);
  machine_.free(options.device);
}

}  // namespace
}  // namespace cachalot::client
