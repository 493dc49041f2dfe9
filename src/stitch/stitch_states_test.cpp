// Which state serves a request, and what it costs.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "device_memory/baseline/caching_allocator.h"
#include "testing/device_memory/faulty_backend.h"
#include "testing/stitch/stitching.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kChunk = 2 * kMiB;

// The talk's six requests: R1 and R2 allocate, R3 stitches them, R4 and R6 stitch and add what is
// missing, R5 uses R1's block again.
TEST(StitchStates, ServeTheSixRequestsOfTheTalk) {
  Stitching stitching;
  const device_memory::Address r1 = stitching.allocate(20 * kMiB),
                               r2 = stitching.allocate(30 * kMiB);
  EXPECT_EQ(stitching.states().created, 2u);
  EXPECT_EQ(stitching.reserved(), 50 * kMiB);
  stitching.free(r1);
  stitching.free(r2);

  const device_memory::CallCounts before_r3 = stitching.backend->counts();
  const device_memory::Address r3 = stitching.allocate(50 * kMiB);
  EXPECT_EQ(stitching.states().stitched, 1u);
  EXPECT_EQ(stitching.reserved(), 50 * kMiB) << "a stitch creates nothing";
  EXPECT_EQ(stitching.backend->counts() - before_r3,
            (device_memory::CallCounts{.reserve = 1, .map = 25, .set_access = 1}));
  stitching.free(r3);

  const device_memory::Address r4 = stitching.allocate(75 * kMiB);
  EXPECT_EQ(stitching.states().created_and_stitched, 1u);
  EXPECT_EQ(stitching.reserved(), 76 * kMiB) << "25 MiB are missing: thirteen chunks";
  stitching.free(r4);

  const device_memory::CallCounts before_r5 = stitching.backend->counts();
  const device_memory::Address r5 = stitching.allocate(20 * kMiB);
  EXPECT_EQ(stitching.states().exact_primitive, 1u);
  EXPECT_EQ(r5, r1);
  EXPECT_EQ(stitching.backend->counts(), before_r5) << "no driver call";

  stitching.allocate(80 * kMiB);
  EXPECT_EQ(stitching.states().created_and_stitched, 2u);
  EXPECT_EQ(stitching.reserved(), 100 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 3u);
}

TEST(StitchStates, TheCachingAllocatorNeedsASegmentForFiveOfTheSix) {
  const auto backend = *device_memory::ModelBackend::open();
  gpu::ImmediateEvents events;
  device_memory::CachingAllocator caching(*backend, events);
  const auto allocate = [&](std::uint64_t mib) { return *caching.allocate(mib * kMiB, 0); };
  const device_memory::Address r1 = allocate(20), r2 = allocate(30);
  ASSERT_TRUE(caching.free(r1));
  ASSERT_TRUE(caching.free(r2));
  ASSERT_TRUE(caching.free(allocate(50)));
  ASSERT_TRUE(caching.free(allocate(75)));
  EXPECT_EQ(allocate(20), r1);
  allocate(80);
  EXPECT_EQ(caching.stats().reserved_bytes, (20 + 30 + 50 + 76 + 80) * kMiB);
}

TEST(StitchStates, S2SplitsALargerPrimitiveBlockAndItMergesAgain) {
  Stitching stitching;
  stitching.free(stitching.allocate(40 * kMiB));
  const device_memory::CallCounts before = stitching.backend->counts();
  const device_memory::Address first = stitching.allocate(12 * kMiB),
                               second = stitching.allocate(28 * kMiB);
  EXPECT_EQ(stitching.states().split, 1u);
  EXPECT_EQ(stitching.states().exact_primitive, 1u);
  stitching.free(first);
  stitching.free(second);
  stitching.allocate(40 * kMiB);
  EXPECT_EQ(stitching.backend->counts(), before);
}

TEST(StitchStates, S1PrefersAnExactStitchedBlockToALargerPrimitiveOne) {
  Stitching stitching;
  stitching.make_two(20 * kMiB, 30 * kMiB);
  const device_memory::Address stitched = stitching.allocate(50 * kMiB);
  const device_memory::Address large = stitching.allocate(100 * kMiB);
  stitching.free(large);
  stitching.free(stitched);
  EXPECT_EQ(stitching.allocate(50 * kMiB), stitched);
  EXPECT_EQ(stitching.states().exact_stitched, 1u);
}

TEST(StitchStates, S2UsesPartOfALargerStitchedBlock) {
  Stitching stitching;
  stitching.make_two(20 * kMiB, 30 * kMiB);
  const device_memory::Address stitched = stitching.allocate(50 * kMiB);
  stitching.free(stitched);
  const device_memory::CallCounts before = stitching.backend->counts();
  EXPECT_EQ(stitching.allocate(44 * kMiB), stitched);
  EXPECT_EQ(stitching.states().window, 1u);
  EXPECT_EQ(stitching.backend->counts(), before);
  stitching.allocate(6 * kMiB);
  EXPECT_EQ(stitching.reserved(), 50 * kMiB) << "what the window left is free for others";
}

TEST(StitchStates, NothingIsRoundedUpToChunks) {
  Stitching stitching;
  for (int i = 0; i < 40; ++i) stitching.allocate(5 * kMiB);
  EXPECT_EQ(stitching.reserved(), 200 * kMiB);
}

TEST(StitchStates, RequestsThatAreNoWholeChunksGrowOneSegment) {
  Stitching stitching;
  stitching.allocate(11 * kMiB);
  EXPECT_EQ(stitching.reserved(), 12 * kMiB);
  stitching.allocate(11 * kMiB);
  EXPECT_EQ(stitching.reserved(), 22 * kMiB);
  EXPECT_EQ(stitching.states().created, 2u);
}

// Half a chunk is missing to 41 MiB of whole chunks; a half is free where a used block ends.
TEST(StitchStates, ACornerServesWhatExceedsWholeChunks) {
  Stitching stitching;
  stitching.allocate(11 * kMiB);
  stitching.make_two(20 * kMiB, 20 * kMiB);
  const std::uint64_t reserved = stitching.reserved();
  stitching.allocate(41 * kMiB);
  EXPECT_EQ(stitching.reserved(), reserved);
  EXPECT_EQ(stitching.states().stitched, 1u);
}

// 64 GiB of addresses are used up: the next request begins a segment.
TEST(StitchStates, AGrowingSegmentThatIsFullIsFollowedByAnother) {
  Stitching stitching;
  for (const std::uint64_t gib : {40, 20, 9, 40}) {
    stitching.allocate((gib << 30) + 512);
    stitching.allocate(3 * kMiB);
  }
  EXPECT_EQ(stitching.allocator->stats().stitches, 0u);
}

// A chunk is not worth a stitch to 100 chunks of new memory.
TEST(StitchStates, LittleFreeMemoryIsLeftForOthers) {
  Stitching stitching;
  for (int i = 0; i < 10; ++i) stitching.allocate(200 * kMiB);
  stitching.free(stitching.allocate(4 * kMiB));
  stitching.allocate(200 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 0u);
  stitching.allocate(4 * kMiB);
  EXPECT_EQ(stitching.reserved(), 2204 * kMiB);
}

TEST(StitchStates, SmallRequestsShareAChunkThatComesBack) {
  Stitching stitching;
  std::vector<device_memory::Address> small;
  for (int i = 0; i < 128; ++i) small.push_back(stitching.allocate(64 << 10));
  EXPECT_EQ(stitching.reserved(), 4 * kChunk);
  EXPECT_EQ(stitching.states().slabs, 4u);
  for (const device_memory::Address address : small) stitching.free(address);
  stitching.allocate(3 * kChunk);
  EXPECT_EQ(stitching.reserved(), 4 * kChunk) << "one chunk stays for the next small request";
}

TEST(StitchStates, TheFragLimitHoldsUntilMemoryIsOut) {
  StitchOptions options;
  options.frag_limit_bytes = 512 * kMiB;
  Stitching stitching(options, 100 * kMiB);
  stitching.make_two(20 * kMiB, 30 * kMiB);
  stitching.allocate(50 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 0u);
  EXPECT_EQ(stitching.reserved(), 100 * kMiB);
  stitching.allocate(50 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 1u) << "else it would have been refused";
}

TEST(StitchStates, TheFragLimitHoldsForNewMemory) {
  StitchOptions options;
  options.frag_limit_bytes = 16 * kMiB;
  Stitching stitching(options);
  const device_memory::Address first = stitching.allocate(6 * kMiB);
  stitching.allocate(2 * kMiB);
  stitching.free(stitching.allocate(6 * kMiB));
  stitching.free(first);
  stitching.allocate(14 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 0u);
  EXPECT_EQ(stitching.reserved(), 28 * kMiB);
}

// The addresses, or the kernel's mappings, are used up.
TEST(StitchStates, WhereNothingCanBeMappedALargerBlockIsSplit) {
  device_memory::FaultyBackend backend(2 * kMiB);
  device_memory::FakeEvents events;
  const auto allocator = *StitchAllocator::create(backend, events);
  const auto allocate = [&](std::uint64_t mib) {
    const Result<device_memory::Address> address = allocator->allocate(mib * kMiB, 0);
    EXPECT_TRUE(address) << address.error().message;
    return *address;
  };
  allocate(3);
  const device_memory::Address smaller = allocate(3);
  allocate(4);
  const device_memory::Address larger = allocate(4);
  allocate(2);
  EXPECT_TRUE(allocator->free(smaller));
  allocate(2);
  EXPECT_TRUE(allocator->free(larger));
  const std::uint64_t reserved = allocator->stats().reserved_bytes;
  backend.fail("reserve", 1, 100, Code::kNoSpace);
  EXPECT_EQ(allocate(3), larger) << "else a stitch, which saves a chunk";
  EXPECT_EQ(allocator->stats().reserved_bytes, reserved);
  EXPECT_TRUE(allocator->check());
  backend.heal();
}

TEST(StitchStates, S5MeetsALimitExactlyAndRefusesMore) {
  Stitching stitching({}, 64 * kMiB);
  const device_memory::Address a = stitching.allocate(24 * kMiB), b = stitching.allocate(40 * kMiB);
  const Result<device_memory::Address> more = stitching.allocator->allocate(512, 0);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kNoSpace);
  EXPECT_EQ(stitching.backend->physical_bytes(), 64 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().out_of_memory, 1u);
  stitching.free(a);
  stitching.free(b);
  stitching.allocate(64 * kMiB);
}

// Three tensors of a chunk and a half, of which the middle one and then the first are replaced by one of a
// chunk: what stays free is the end of one chunk and the beginning of another.
TEST(StitchStates, BothEndsOfAStitchedBlockMayLieInChunksOfOthers) {
  Stitching stitching;
  const device_memory::Address first = stitching.allocate(3 * kMiB),
                               second = stitching.allocate(3 * kMiB);
  stitching.allocate(3 * kMiB);
  for (const device_memory::Address each : {second, first}) {
    stitching.free(each);
    stitching.allocate(2 * kMiB);
  }
  const std::uint64_t before = stitching.reserved();
  stitching.allocate(2 * kMiB);
  EXPECT_EQ(stitching.states().stitched, 1u);
  EXPECT_EQ(stitching.reserved(), before);
}

TEST(StitchStates, AStitchThatSavesAChunkComesBeforeASplit) {
  Stitching stitching;
  stitching.allocate(3 * kMiB);
  const device_memory::Address smaller = stitching.allocate(3 * kMiB);
  stitching.allocate(4 * kMiB);
  const device_memory::Address larger = stitching.allocate(4 * kMiB);
  stitching.allocate(2 * kMiB);
  stitching.free(smaller);
  stitching.allocate(2 * kMiB);  // leaves the end of a chunk
  stitching.free(larger);
  const StitchStates before = stitching.states();
  stitching.allocate(3 * kMiB);
  EXPECT_EQ(stitching.states().stitched, before.stitched + 1);
  const device_memory::CallCounts calls = stitching.backend->counts();
  stitching.allocate(2 * kMiB);
  EXPECT_EQ(stitching.backend->counts(), calls) << "a whole chunk of the larger block is free";
}

// A transformer of width 768 with 32 layers: weights, activations, and gradients while activations go. Each
// gradient lacks a chunk, and what it could save is little beside the heap.
TEST(StitchStates, FreeMemoryDoesNotPileUpInPartsOfChunks) {
  constexpr std::uint64_t kWidth = 768, kTokens = 990;
  Stitching stitching;
  std::uint64_t live = 0, most = 0;
  const auto allocate = [&](std::uint64_t bytes) {
    most = std::max(most, live += bytes);
    return std::pair(stitching.allocate(bytes), bytes);
  };
  const auto free = [&](std::pair<device_memory::Address, std::uint64_t> each) {
    stitching.free(each.first);
    live -= each.second;
  };
  std::vector<std::pair<device_memory::Address, std::uint64_t>> activations, gradients;
  for (int layer = 0; layer < 32; ++layer) {
    for (const std::uint64_t part : {3, 1, 4, 4}) allocate(part * kWidth * kWidth * 2);
  }
  for (int layer = 0; layer < 32; ++layer) {
    for (const std::uint64_t part : {1, 3, 1, 4}) {
      activations.push_back(allocate(part * kTokens * kWidth * 2));
      free(allocate(kTokens * kWidth * 2));
    }
  }
  for (std::size_t i = 0; !activations.empty(); ++i) {
    gradients.push_back(allocate(std::array{4, 4, 1, 3}[i % 4] * kWidth * kWidth * 2));
    free(activations.back());
    activations.pop_back();
  }
  EXPECT_LT(stitching.reserved(), most + most / 20);
}

class StitchPrograms : public testing::TestWithParam<int> {};

TEST_P(StitchPrograms, ThatRepeatThemselvesMakeNoDriverCalls) {
  Stitching stitching;
  const auto streams = static_cast<std::uint64_t>(GetParam());
  for (gpu::StreamId stream = 0; stream < streams; ++stream)
    stitching.events.set_idle(stream, true);
  const auto iterate = [&] {
    std::vector<device_memory::Address> kept;
    base::Rng rng(5);
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t bytes = (1 + rng.below(60)) * 3 * kMiB / 2 + 512 * rng.below(3);
      kept.push_back(stitching.allocate(bytes, rng.below(streams)));
      if (!rng.chance(0.6)) continue;
      std::swap(kept[rng.below(kept.size())], kept.back());
      stitching.free(kept.back());
      kept.pop_back();
    }
    for (const device_memory::Address each : kept) stitching.free(each);
  };
  for (int i = 0; i < 4; ++i) iterate();
  const device_memory::CallCounts before = stitching.backend->counts();
  const std::uint64_t repeated = stitching.states().repeated;
  iterate();
  EXPECT_EQ(stitching.backend->counts(), before);
  EXPECT_GT(stitching.states().repeated - repeated, 250u);
}

INSTANTIATE_TEST_SUITE_P(Streams, StitchPrograms, testing::Values(1, 2, 4));

}  // namespace
}  // namespace cachalot::stitch
