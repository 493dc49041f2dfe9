// What several threads do to vTensors at once; runs under ThreadSanitizer as well.

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <random>
#include <thread>

#include "base/rng.h"
#include "device_memory/memfd/memfd_backend.h"
#include "testing/device_memory/faulty_backend.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = device_memory::FaultyBackend::kGranule;

VTensorOptions small_options() {
  return {.shape = {.layers = 2, .part_bytes = {16, 16}},
          .layout = KvLayout::kPerLayer,
          .chunk_bytes = kChunk,
          .max_tokens = 64,
          .block_tokens = 3,
          .copy = [](device_memory::Address, device_memory::Address, std::uint64_t) {
            return Status();
          }};
}

// The computation of a step, which takes longer than the mapping.
void compute_until_ready(const VTensor& vtensor, std::uint64_t tokens) {
  while (vtensor.ready_tokens() < tokens) std::this_thread::yield();
}

TEST(VTensorThreads, DecodeNeverWaitsWhereAStepIsLongerThanItsMapping) {
  const auto backend = *device_memory::MemfdBackend::open();
  LocalBudget budget;
  const auto set = *VTensorSet::open(*backend, budget,
                                     {.shape = {.layers = 2, .part_bytes = {1 << 18, 1 << 18}},
                                      .layout = KvLayout::kPerLayer,
                                      .max_tokens = 64});
  VTensor* const vtensor = set->create(3, 64)->vtensor;
  for (std::uint64_t tokens = 4; tokens <= 64; ++tokens) {
    set->prepare(*vtensor, tokens);
    compute_until_ready(*vtensor, tokens);
    ASSERT_TRUE(set->wait_ready(*vtensor, tokens));
    // The last byte of the last layer's values, from the base alone.
    const RangeLayout::View view = set->layout().view(1, 1);
    auto* const row =
        reinterpret_cast<std::byte*>(vtensor->base() + view.offset + (tokens - 1) * view.stride);
    row[view.stride - 1] = std::byte{1};
  }
  EXPECT_EQ(set->stats().waits, 0u);
  EXPECT_EQ(set->stats().prepared, 7u);
}

TEST(VTensorThreads, NobodyElseWaitsWhileTheDeviceMapsForOne) {
  device_memory::FaultyBackend backend;
  LocalBudget budget;
  const auto set = *VTensorSet::open(backend, budget, small_options());
  VTensor* const slow = set->create(4, 64)->vtensor;
  std::latch is_mapping(1), may_go_on(1);
  std::atomic<bool> is_first = true;
  backend.inside = [&](const std::string& call) {
    if (call != "map" || !is_first.exchange(false)) return;
    is_mapping.count_down();
    may_go_on.wait();
  };
  set->prepare(*slow, 20);
  is_mapping.wait();
  const auto other = set->create(8, 64);
  ASSERT_TRUE(other);
  EXPECT_TRUE(set->extend(*other->vtensor, 30));
  set->release(other->vtensor);
  EXPECT_EQ(set->stats().live, 1u);
  EXPECT_LT(slow->ready_tokens(), 20u);
  may_go_on.count_down();
  EXPECT_TRUE(set->wait_ready(*slow, 20));
  EXPECT_GE(slow->ready_tokens(), 20u);
}

TEST(VTensorThreads, ReleaseWaitsForTheBackground) {
  device_memory::FaultyBackend backend;
  LocalBudget budget;
  const auto set = *VTensorSet::open(backend, budget, small_options());
  for (int round = 0; round < 200; ++round) {
    VTensor* const vtensor = set->create(4, 64)->vtensor;
    set->prepare(*vtensor, 8 + round % 50);
    set->release(vtensor);
  }
  EXPECT_EQ(set->stats().live, 0u);
}

// Requests of several threads, with prefixes, failures of the device, and too few chunks for all.
TEST(VTensorThreads, LoseNothingAmongEachOther) {
  const std::uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  device_memory::FaultyBackend backend;
  LocalBudget budget(120);
  VTensorOptions options = small_options();
  options.ready_chunks = 4;
  auto set = *VTensorSet::open(backend, budget, options);
  std::vector<std::thread> threads;
  for (std::uint64_t number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] {
      base::Rng rng(seed + number);
      for (int round = 0; round < 300; ++round) {
        std::vector<BlockHash> prompt;
        const std::uint64_t name = rng.below(4);
        for (std::uint64_t i = 1; i <= 1 + rng.below(6); ++i) prompt.push_back({name * 100 + i, i});
        const std::uint64_t tokens = prompt.size() * 3 + rng.below(4);
        if (rng.chance(0.05))
          backend.fail(rng.chance(0.5) ? "map" : "set_access", 1 + rng.below(3));
        const auto created = set->create(tokens, 64, prompt);
        backend.heal();
        if (!created) continue;
        for (std::uint64_t more = tokens; more < std::min<std::uint64_t>(tokens + 12, 64); ++more) {
          set->prepare(*created->vtensor, more + 1);
          if (!set->wait_ready(*created->vtensor, more)) break;
        }
        if (rng.chance(0.5)) static_cast<void>(set->record(*created->vtensor, prompt));
        set->release(created->vtensor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The background may still be unmapping what was released.
  while (set->stats().chunks.references != set->stats().stuck_chunks) set->reclaim(1000);
  EXPECT_EQ(set->stats().live, 0u);
  EXPECT_EQ(set->stats().recorded_blocks, 0u);
  EXPECT_EQ(set->stats().borrowed_chunks, 0u);
  set.reset();
  EXPECT_EQ(backend.physical_bytes(), 0u);
  EXPECT_EQ(backend.reserved_bytes(), 0u);
  EXPECT_EQ(budget.take(1000), 120u);
}

}  // namespace
}  // namespace cachalot::vtensor
