// What holds whichever state serves: errors, limits, giving back, streams, threads.

#include "stitch/stitch_allocator.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/rng.h"
#include "testing/stitch/stitching.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(StitchAllocator, RefusesWhatNoDeviceHas) {
  Stitching stitching;
  for (const std::uint64_t bytes : {std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
    const Result<device_memory::Address> address = stitching.allocator->allocate(bytes, 0);
    ASSERT_FALSE(address);
    EXPECT_EQ(address.error().code, Code::kNoSpace);
  }
}

TEST(StitchAllocator, GivesNoBytesAnAddressOfItsOwn) {
  Stitching stitching;
  const device_memory::Address a = stitching.allocate(0), b = stitching.allocate(0);
  EXPECT_NE(a, b);
  stitching.free(a);
  stitching.free(b);
}

TEST(StitchAllocator, AFreeThatIsNoneIsAnErrorAndNoMore) {
  Stitching stitching;
  const device_memory::Address a = stitching.allocate(10 * kMiB);
  EXPECT_EQ(stitching.allocator->free(a + 512).error().code, Code::kInvalidArgument);
  EXPECT_EQ(stitching.allocator->free(0).error().code, Code::kInvalidArgument);
  EXPECT_FALSE(stitching.allocator->use_on(a + 512, 2));
  stitching.free(a);
  EXPECT_EQ(stitching.allocator->free(a).error().code, Code::kInvalidArgument) << "twice";
  EXPECT_EQ(stitching.fault(), "");
}

TEST(StitchAllocator, OptionsAreChecked) {
  const auto backend = *device_memory::ModelBackend::open();
  gpu::ImmediateEvents events;
  StitchOptions options;
  options.chunk_bytes = 3 * kMiB;
  const auto made = StitchAllocator::create(*backend, events, options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(made.error().message).find("chunk_bytes: 3145728"), std::string::npos);
}

TEST(StitchAllocator, OptionsThatDivideAreNotZero) {
  const auto backend = *device_memory::ModelBackend::open();
  gpu::ImmediateEvents events;
  const std::pair<const char*, std::uint64_t StitchOptions::*> divisors[] = {
      {"free_stitch_requests", &StitchOptions::free_stitch_requests},
      {"growth_divisor", &StitchOptions::growth_divisor},
      {"growth_piece_divisor", &StitchOptions::growth_piece_divisor}};
  for (const auto& [name, divisor] : divisors) {
    StitchOptions options;
    options.*divisor = 0;
    const auto made = StitchAllocator::create(*backend, events, options);
    ASSERT_FALSE(made) << name;
    EXPECT_NE(std::string(made.error().message).find(std::string(name) + ": 0"), std::string::npos);
  }
}

TEST(StitchAllocator, WorksInLargerChunks) {
  StitchOptions options;
  options.chunk_bytes = 32 * kMiB;
  Stitching stitching(options);
  stitching.make_two(64 * kMiB, 96 * kMiB);
  stitching.allocate(160 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 1u);
  EXPECT_EQ(stitching.reserved(), 160 * kMiB);
}

TEST(StitchAllocator, DropsStitchedBlocksBeyondTheirLimit) {
  StitchOptions options;
  options.stitched_limit_bytes = 120 * kMiB;
  Stitching stitching(options);
  stitching.make_two(30 * kMiB, 50 * kMiB);
  for (const std::uint64_t mib : {60, 64, 68, 72, 76, 80}) {
    stitching.free(stitching.allocate(mib * kMiB));
    EXPECT_LE(stitching.allocator->stitched_range_bytes(), 120 * kMiB);
    stitching.events.finish(0);
  }
  EXPECT_EQ(stitching.reserved(), 80 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 6u);
}

TEST(StitchAllocator, KeepsMoreStitchedBlocksWhereTheHeapIsLarge) {
  Stitching stitching;
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  stitching.make_two(30 * kGiB, 50 * kGiB);
  for (const std::uint64_t gib : {60, 64, 68, 72, 76, 80}) {
    stitching.free(stitching.allocate(gib * kGiB));
    stitching.events.finish(0);
  }
  EXPECT_EQ(stitching.allocator->stitched_range_bytes(), 420 * kGiB) << "of 640";
  EXPECT_EQ(stitching.reserved(), 80 * kGiB);
}

TEST(StitchAllocator, ReleasingGivesBackWhatNobodyUses) {
  Stitching stitching;
  const device_memory::Address kept = stitching.allocate(10 * kMiB),
                               small = stitching.allocate(4096);
  stitching.make_two(20 * kMiB, 30 * kMiB);
  stitching.free(stitching.allocate(50 * kMiB));
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.fault(), "");
  EXPECT_EQ(stitching.reserved(), 12 * kMiB);
  EXPECT_EQ(stitching.backend->physical_bytes(), 12 * kMiB);
  EXPECT_EQ(stitching.allocator->stitched_range_bytes(), 0u);
  stitching.free(kept);
  stitching.free(small);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.backend->physical_bytes(), 0u);
  EXPECT_EQ(stitching.backend->reserved_bytes(), 0u);
  stitching.allocate(50 * kMiB);
}

// The block maps chunks that the request does not use: they are not given back, and not counted so.
TEST(StitchAllocator, ReleasingSparesWhatAWindowsBlockMaps) {
  Stitching stitching;
  stitching.make_two(20 * kMiB, 30 * kMiB);
  stitching.free(stitching.allocate(50 * kMiB));
  const device_memory::Address window = stitching.allocate(44 * kMiB);
  ASSERT_EQ(stitching.states().window, 1u);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.reserved(), 50 * kMiB);
  EXPECT_EQ(stitching.backend->physical_bytes(), 50 * kMiB);
  stitching.free(window);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.backend->physical_bytes(), 0u);
}

TEST(StitchAllocator, AnotherStreamGetsFreedMemoryOnlyWhenTheFirstHasComeThatFar) {
  Stitching stitching;
  const device_memory::Address mine = stitching.allocate(40 * kMiB, 1);
  stitching.free(mine);
  EXPECT_NE(stitching.allocate(40 * kMiB, 2), mine);
  EXPECT_EQ(stitching.reserved(), 80 * kMiB);
  stitching.events.finish(1);
  EXPECT_EQ(stitching.allocate(40 * kMiB, 2), mine);
  EXPECT_EQ(stitching.reserved(), 80 * kMiB);
}

TEST(StitchAllocator, TheSameStreamGetsItAtOnceAndWithoutAnEvent) {
  Stitching stitching;
  const device_memory::Address first = stitching.allocate(40 * kMiB, 1);
  stitching.free(first);
  EXPECT_EQ(stitching.allocate(40 * kMiB, 1), first);
  EXPECT_EQ(stitching.events.recorded(), 0u);
}

TEST(StitchAllocator, ReleasingGivesBackAChunkThatTwoStreamsFreed) {
  Stitching stitching;
  const device_memory::Address mine = stitching.allocate(5 * kMiB, 1);
  stitching.free(mine);
  stitching.events.finish(1);
  const device_memory::Address yours = stitching.allocate(2 * kMiB, 2);
  const device_memory::Address mine_again = stitching.allocate(3 * kMiB, 1);
  EXPECT_EQ(stitching.reserved(), 8 * kMiB);
  stitching.free(yours);
  stitching.free(mine_again);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.backend->physical_bytes(), 0u);
}

// A stitched block that two streams used a part of each is unmapped only when both have come that far.
TEST(StitchAllocator, UnmapsADroppedBlockAfterTheWorkOfAllThatUsedAPartOfIt) {
  StitchOptions options;
  options.stitched_limit_bytes = 100 * kMiB;
  Stitching stitching(options);
  std::vector<device_memory::Address> held;
  for (const std::uint64_t mib : {40, 30, 20, 10})
    held.push_back(stitching.allocate(mib * kMiB, 1));
  for (const device_memory::Address each : held) stitching.free(each);
  const device_memory::Address whole = stitching.allocate(100 * kMiB, 1);
  stitching.free(whole);
  stitching.events.set_idle(1, true);
  stitching.free(stitching.allocate(70 * kMiB, 2));  // takes over the first two pieces
  stitching.events.set_idle(1, false);
  ASSERT_EQ(stitching.states().window, 1u);
  const device_memory::Address end = stitching.allocate(30 * kMiB, 1);
  ASSERT_EQ(end, whole + 70 * kMiB);
  stitching.free(end);  // and its work goes on
  const device_memory::Address begin = stitching.allocate(70 * kMiB, 2);
  ASSERT_EQ(begin, whole);
  stitching.free(begin);

  stitching.make_two(40 * kMiB, 32 * kMiB, 3);
  stitching.allocate(72 * kMiB, 3);
  ASSERT_EQ(stitching.allocator->stitched_range_bytes(), 72 * kMiB) << "the other one was dropped";
  const std::uint64_t unmaps = stitching.backend->counts().unmap;
  stitching.events.finish(2);
  stitching.allocate(2 * kMiB, 3);
  EXPECT_EQ(stitching.backend->counts().unmap, unmaps) << "stream 1 may still write it";
  stitching.events.finish(1);
  stitching.allocate(2 * kMiB, 3);
  EXPECT_EQ(stitching.backend->counts().unmap, unmaps + 1);
}

TEST(StitchAllocator, WhatIsRefusedIsNoAllocationWithDriverCalls) {
  Stitching stitching({}, 40 * kMiB);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(stitching.allocator->allocate(60 * kMiB, 1));
  EXPECT_EQ(stitching.allocator->stats().driver_allocations, 0u);
  stitching.allocate(30 * kMiB, 1);
  EXPECT_EQ(stitching.allocator->stats().driver_allocations, 1u);
}

// Its size stands between those of the others in one iteration, and not in the next.
TEST(StitchAllocator, FindsItsPlacesAgainAfterARequestThatWasRefused) {
  Stitching stitching({}, 200 * kMiB);
  const auto iterate = [&] {
    std::vector<device_memory::Address> held;
    for (std::uint64_t i = 1; i <= 20; ++i) held.push_back(stitching.allocate(i % 7 * kMiB + kMiB));
    for (const device_memory::Address each : held) stitching.free(each);
  };
  iterate();
  EXPECT_FALSE(stitching.allocator->allocate(300 * kMiB, 0));
  for (int i = 0; i < 3; ++i) iterate();
  const std::uint64_t before = stitching.states().repeated;
  iterate();
  EXPECT_EQ(stitching.states().repeated, before + 20);
}

TEST(StitchAllocator, WaitsForOtherStreamsBeforeItGivesUp) {
  Stitching stitching({}, 40 * kMiB);
  stitching.free(stitching.allocate(40 * kMiB, 1));
  stitching.allocate(40 * kMiB, 2);
  EXPECT_EQ(stitching.events.waits(), 1);
  EXPECT_FALSE(stitching.allocator->allocate(2 * kMiB, 1));
}

TEST(StitchAllocator, ABlockThatOthersUseIsFreeWhenTheyAreDone) {
  Stitching stitching;
  const device_memory::Address shared = stitching.allocate(40 * kMiB, 1);
  ASSERT_TRUE(stitching.allocator->use_on(shared, 2));
  ASSERT_TRUE(stitching.allocator->use_on(shared, 2));
  stitching.free(shared);
  EXPECT_NE(stitching.allocate(40 * kMiB, 1), shared) << "stream 2 may still read it";
  stitching.events.finish(2);
  EXPECT_EQ(stitching.allocate(40 * kMiB, 1), shared);
  EXPECT_EQ(stitching.events.alive(), 0u);
}

TEST(StitchAllocator, ServesThreadsOfSeveralStreams) {
  const auto backend = *device_memory::ModelBackend::open();
  gpu::ImmediateEvents events;
  const auto allocator = *StitchAllocator::create(*backend, events);
  const auto work = [&](gpu::StreamId stream) {
    base::Rng rng(stream + 1);
    std::vector<device_memory::Address> held;
    for (int i = 0; i < 2000; ++i) {
      if (held.size() < 8 || rng.chance(0.5)) {
        const Result<device_memory::Address> address =
            allocator->allocate(1 + rng.below(24 * kMiB), stream);
        ASSERT_TRUE(address);
        if (rng.chance(0.1)) {
          ASSERT_TRUE(allocator->use_on(*address, rng.below(4)));
        }
        held.push_back(*address);
      } else {
        std::swap(held[rng.below(held.size())], held.back());
        ASSERT_TRUE(allocator->free(held.back()));
        held.pop_back();
      }
      if (i % 500 == 0) {
        ASSERT_TRUE(allocator->release_cached());
      }
    }
    for (const device_memory::Address each : held) ASSERT_TRUE(allocator->free(each));
  };
  std::vector<std::thread> threads;
  for (gpu::StreamId stream = 0; stream < 4; ++stream) threads.emplace_back(work, stream);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(allocator->check());
  EXPECT_EQ(allocator->stats().live_bytes, 0u);
  ASSERT_TRUE(allocator->release_cached());
  EXPECT_EQ(backend->physical_bytes(), 0u);
}

}  // namespace
}  // namespace cachalot::stitch
