#include "stitch/corners.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kChunk = 1024;

// Free memory of one chunk each, whose other bytes are used.
class CornersTest : public ::testing::Test {
 protected:
  void free_head(std::uint64_t bytes) { use(kChunk - bytes, 0); }
  void free_tail(std::uint64_t bytes) { use(kChunk - bytes, bytes); }
  // Both sides of a border.
  void free_across(std::uint64_t before, std::uint64_t behind) {
    base_ += 1 << 20;
    device_memory::Segment* const segment = heap_.add_segment(base_, 2 * kChunk, 0, nullptr);
    heap_.take(segment->first, base_, kChunk - before, nullptr);
    heap_.take(segment->last, base_ + kChunk + behind, kChunk - behind, nullptr);
  }

  Corners find(std::uint64_t bytes) { return find_corners(heap_.pool(0), kChunk, bytes); }
  static std::uint64_t head_of(const Corners& corners) {
    return corners.head == nullptr ? 0 : corners.head->head.bytes;
  }
  static std::uint64_t tail_of(const Corners& corners) {
    return corners.tail == nullptr ? 0 : corners.tail->tail.bytes;
  }

 private:
  void use(std::uint64_t bytes, std::uint64_t skip) {
    base_ += 1 << 20;
    device_memory::Segment* const segment = heap_.add_segment(base_, kChunk, 0, nullptr);
    heap_.take(segment->first, base_ + skip, bytes, nullptr);
  }

  device_memory::BlockHeap heap_{kChunk, device_memory::BlockHeap::Parts::kKnown};
  device_memory::Address base_ = 0;
};

TEST_F(CornersTest, ThereAreNoneWhereNothingIsFreeInParts) {
  EXPECT_EQ(find(1500).bytes(), 0u);
}

TEST_F(CornersTest, TheOneThatIsExactlyTheRestIsTaken) {
  free_head(476);
  free_head(900);
  free_tail(900);
  const Corners corners = find(kChunk + 476);
  EXPECT_EQ(head_of(corners), 476u);
  EXPECT_EQ(corners.tail, nullptr);
  EXPECT_EQ(corners.bytes(), 476u);
}

TEST_F(CornersTest, TwoSaveAChunk) {
  free_head(600);
  free_head(1000);
  free_tail(700);
  free_tail(950);
  const Corners corners = find(2 * kChunk + 300);
  EXPECT_EQ(corners.bytes(), kChunk + 300);
  EXPECT_EQ(head_of(corners), 600u) << "600 and 950 leave 226, 1000 and 700 leave 376";
  EXPECT_EQ(tail_of(corners), 950u);
  EXPECT_EQ(corners.head_bytes, 600u);
  EXPECT_EQ(corners.tail_bytes, kChunk + 300 - 600);
}

TEST_F(CornersTest, WholeChunksMayComeFromTwoCorners) {
  free_head(600);
  free_tail(500);
  EXPECT_EQ(find(3 * kChunk).bytes(), kChunk);
  EXPECT_EQ(find(kChunk).bytes(), kChunk);
}

TEST_F(CornersTest, OneHoldsTheRestWithLittleLeft) {
  free_head(500);
  free_tail(400);
  free_tail(450);
  const Corners corners = find(kChunk + 401);
  EXPECT_EQ(tail_of(corners), 450u);
  EXPECT_EQ(corners.tail_bytes, 401u);
  EXPECT_EQ(corners.head, nullptr);
}

TEST_F(CornersTest, TwoHoldTheRestTogether) {
  free_head(300);
  free_tail(100);
  const Corners corners = find(kChunk + 390);
  EXPECT_EQ(corners.head_bytes, 300u);
  EXPECT_EQ(corners.tail_bytes, 90u);
}

TEST_F(CornersTest, OfTooSmallOnesTheLargestHeadIsTaken) {
  free_head(300);
  free_head(200);
  EXPECT_EQ(find(kChunk + 900).bytes(), 300u);
  EXPECT_EQ(find(kChunk).bytes(), 0u) << "there is no rest";
}

TEST_F(CornersTest, ABlocksOwnEndsAreNoPair) {
  free_across(600, 700);
  EXPECT_EQ(find(kChunk + 200).bytes(), 200u) << "one of them, not 1,224 of both";
  free_tail(650);
  const Corners corners = find(kChunk + 200);
  EXPECT_EQ(corners.bytes(), kChunk + 200);
  EXPECT_EQ(tail_of(corners), 650u);
}

TEST_F(CornersTest, NoneIsMoreThanTheRequest) {
  free_head(1000);
  free_tail(1000);
  for (std::uint64_t bytes = 1; bytes < 3 * kChunk; ++bytes) {
    const Corners corners = find(bytes);
    EXPECT_LE(corners.bytes(), bytes);
    EXPECT_LE(corners.head_bytes, head_of(corners));
    EXPECT_LE(corners.tail_bytes, tail_of(corners));
  }
}

}  // namespace
}  // namespace cachalot::stitch
