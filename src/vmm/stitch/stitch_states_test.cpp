// Which state serves a request, and what it costs.

#include <gtest/gtest.h>

#include "base/rng.h"
#include "vmm/baseline/caching_allocator.h"
#include "vmm/stitch/stitching.h"

namespace cachalot::vmm {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kChunk = 2 * kMiB;

// The talk's six requests: R1 and R2 allocate, R3 stitches them, R4 and R6 stitch and add what is
// missing, R5 uses R1's block again.
TEST(StitchStates, ServeTheSixRequestsOfTheTalk) {
  Stitching stitching;
  const Address r1 = stitching.allocate(20 * kMiB), r2 = stitching.allocate(30 * kMiB);
  EXPECT_EQ(stitching.states().created, 2u);
  EXPECT_EQ(stitching.reserved(), 50 * kMiB);
  stitching.free(r1);
  stitching.free(r2);

  const CallCounts before_r3 = stitching.backend->counts();
  const Address r3 = stitching.allocate(50 * kMiB);
  EXPECT_EQ(stitching.states().stitched, 1u);
  EXPECT_EQ(stitching.reserved(), 50 * kMiB) << "a stitch creates nothing";
  EXPECT_EQ(stitching.backend->counts() - before_r3,
            (CallCounts{.reserve = 1, .map = 25, .set_access = 1}));
  stitching.free(r3);

  const Address r4 = stitching.allocate(75 * kMiB);
  EXPECT_EQ(stitching.states().created_and_stitched, 1u);
  EXPECT_EQ(stitching.reserved(), 76 * kMiB) << "25 MiB are missing: thirteen chunks";
  stitching.free(r4);

  const CallCounts before_r5 = stitching.backend->counts();
  const Address r5 = stitching.allocate(20 * kMiB);
  EXPECT_EQ(stitching.states().exact_primitive, 1u);
  EXPECT_EQ(r5, r1);
  EXPECT_EQ(stitching.backend->counts(), before_r5) << "no driver call";

  stitching.allocate(80 * kMiB);
  EXPECT_EQ(stitching.states().created_and_stitched, 2u);
  EXPECT_EQ(stitching.reserved(), 100 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().stitches, 3u);
}

TEST(StitchStates, TheCachingAllocatorNeedsASegmentForFiveOfTheSix) {
  const auto backend = *ModelBackend::open();
  ImmediateEvents events;
  CachingAllocator caching(*backend, events);
  const auto allocate = [&](std::uint64_t mib) { return *caching.allocate(mib * kMiB, 0); };
  const Address r1 = allocate(20), r2 = allocate(30);
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
  const CallCounts before = stitching.backend->counts();
  const Address first = stitching.allocate(12 * kMiB), second = stitching.allocate(28 * kMiB);
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
  const Address stitched = stitching.allocate(50 * kMiB);
  const Address large = stitching.allocate(100 * kMiB);
  stitching.free(large);
  stitching.free(stitched);
  EXPECT_EQ(stitching.allocate(50 * kMiB), stitched);
  EXPECT_EQ(stitching.states().exact_stitched, 1u);
}

TEST(StitchStates, S2UsesPartOfALargerStitchedBlock) {
  Stitching stitching;
  stitching.make_two(20 * kMiB, 30 * kMiB);
  const Address stitched = stitching.allocate(50 * kMiB);
  stitching.free(stitched);
  const CallCounts before = stitching.backend->counts();
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

// 11 MiB leave half a chunk; the next one's half is taken from there and stitched to whole chunks.
TEST(StitchStates, CornersServeWhatExceedsWholeChunks) {
  Stitching stitching;
  stitching.allocate(11 * kMiB);
  EXPECT_EQ(stitching.reserved(), 12 * kMiB);
  stitching.allocate(11 * kMiB);
  EXPECT_EQ(stitching.reserved(), 22 * kMiB);
  EXPECT_EQ(stitching.states().created_and_stitched, 1u);
}

TEST(StitchStates, SmallRequestsShareAChunkThatComesBack) {
  Stitching stitching;
  std::vector<Address> small;
  for (int i = 0; i < 16; ++i) small.push_back(stitching.allocate(512 << 10));
  EXPECT_EQ(stitching.reserved(), 4 * kChunk);
  EXPECT_EQ(stitching.states().slabs, 4u);
  for (const Address address : small) stitching.free(address);
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

TEST(StitchStates, S5MeetsALimitExactlyAndRefusesMore) {
  Stitching stitching({}, 64 * kMiB);
  const Address a = stitching.allocate(24 * kMiB), b = stitching.allocate(40 * kMiB);
  const Result<Address> more = stitching.allocator->allocate(512, 0);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kNoSpace);
  EXPECT_EQ(stitching.backend->physical_bytes(), 64 * kMiB);
  EXPECT_EQ(stitching.allocator->stats().out_of_memory, 1u);
  stitching.free(a);
  stitching.free(b);
  stitching.allocate(64 * kMiB);
}

TEST(StitchStates, ARepeatedProgramMakesNoDriverCalls) {
  Stitching stitching;
  const auto iterate = [&] {
    std::vector<Address> kept;
    base::Rng rng(5);
    for (int i = 0; i < 300; ++i) {
      kept.push_back(stitching.allocate((1 + rng.below(60)) * 3 * kMiB / 2 + 512 * rng.below(3)));
      if (!rng.chance(0.6)) continue;
      std::swap(kept[rng.below(kept.size())], kept.back());
      stitching.free(kept.back());
      kept.pop_back();
    }
    for (const Address each : kept) stitching.free(each);
  };
  iterate();
  iterate();
  const CallCounts before = stitching.backend->counts();
  iterate();
  EXPECT_EQ(stitching.backend->counts(), before);
  EXPECT_GT(stitching.states().repeated, 250u);
}

}  // namespace
}  // namespace cachalot::vmm
