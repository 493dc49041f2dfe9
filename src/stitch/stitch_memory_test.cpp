// What the allocator remembers is believed only as far as it is still true.

#include <gtest/gtest.h>

#include "testing/stitch/stitching.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr int kRounds = 12;  // more than the sizes by which a place in the history is known

TEST(StitchMemory, APlaceInASegmentThatWasGivenBackIsNotUsed) {
  Stitching stitching;
  for (int round = 0; round < kRounds; ++round) stitching.free(stitching.allocate(40 * kMiB));
  const device_memory::Address before = stitching.allocate(40 * kMiB);
  stitching.free(before);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.backend->physical_bytes(), 0u);
  EXPECT_NE(stitching.allocate(40 * kMiB), before) << "addresses of the model never come again";
  EXPECT_EQ(stitching.backend->physical_bytes(), 40 * kMiB);
}

TEST(StitchMemory, APlaceInAStitchedBlockThatWasDroppedIsNotUsed) {
  Stitching stitching;
  stitching.make_two(20 * kMiB, 30 * kMiB);
  for (int round = 0; round < kRounds; ++round) stitching.free(stitching.allocate(50 * kMiB));
  const device_memory::Address before = stitching.allocate(50 * kMiB);
  stitching.free(before);
  // Keeps the memory, so that the pieces of the dropped block are free again.
  const device_memory::Address kept = stitching.allocate(2 * kMiB);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.allocator->stitched_range_bytes(), 0u);
  EXPECT_NE(stitching.allocate(50 * kMiB), before);
  stitching.free(kept);
}

// In each round both streams have the memory once; in the last one stream 2 still works on it.
TEST(StitchMemory, APlaceThatAnotherStreamFreedIsNotUsedBeforeItIsDone) {
  Stitching stitching;
  for (const gpu::StreamId stream : {1, 2}) stitching.events.set_idle(stream, true);
  device_memory::Address second = 0;
  for (int round = 0; round < kRounds; ++round) {
    const device_memory::Address first = stitching.allocate(40 * kMiB, 1);
    stitching.free(first);
    second = stitching.allocate(40 * kMiB, 2);
    EXPECT_EQ(second, first);
    stitching.events.set_idle(2, round + 1 < kRounds);
    stitching.free(second);
  }
  EXPECT_NE(stitching.allocate(40 * kMiB, 1), second);
}

TEST(StitchMemory, AStitchedBlockIsNotAvailableBeforeItsLastStreamIsDone) {
  for (const int rounds : {1, kRounds}) {
    Stitching stitching;
    const device_memory::Address a = stitching.allocate(20 * kMiB, 1),
                                 b = stitching.allocate(30 * kMiB, 1);
    stitching.free(a);
    stitching.free(b);
    for (const gpu::StreamId stream : {1, 2}) stitching.events.set_idle(stream, true);
    device_memory::Address second = 0;
    for (int round = 0; round < rounds; ++round) {
      const device_memory::Address first = stitching.allocate(50 * kMiB, 1);
      stitching.free(first);
      second = stitching.allocate(50 * kMiB, 2);
      EXPECT_EQ(second, first);
      stitching.events.set_idle(2, round + 1 < rounds);
      stitching.free(second);
    }
    EXPECT_NE(stitching.allocate(50 * kMiB, 1), second);
    const device_memory::Address part = stitching.allocate(44 * kMiB, 1);
    EXPECT_TRUE(part < second || part >= second + 50 * kMiB) << "nor a window of it";
  }
}

}  // namespace
}  // namespace cachalot::stitch
