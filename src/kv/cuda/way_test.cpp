// Which way is chosen, and how much of a GPU it takes.
#include "kv/cuda/way.h"

#include <gtest/gtest.h>

namespace cachalot::kv {
namespace {

Way chosen(const WayFacts& facts, Way wanted = Way::kChoose) {
  return choose_way(facts, wanted);
}

TEST(Ways, AreChosenByTheSizeOfFragments) {
  constexpr std::uint64_t kKiB = 1024;
  const auto of = [](std::uint64_t bytes, bool can_batch) {
    return chosen(
        {.shortest_bytes = bytes, .aligned = true, .has_bulk = true, .can_batch = can_batch});
  };
  for (const std::uint64_t bytes : {std::uint64_t{16}, 8 * kKiB - 1}) {
    EXPECT_EQ(of(bytes, true), Way::kThreads) << bytes;
    EXPECT_EQ(of(bytes, false), Way::kThreads) << bytes;
  }
  for (const std::uint64_t bytes : {8 * kKiB, 256 * kKiB - 1}) {
    EXPECT_EQ(of(bytes, true), Way::kBulk) << bytes;
    EXPECT_EQ(of(bytes, false), Way::kBulk) << bytes;
  }
  for (const std::uint64_t bytes : {256 * kKiB, 1024 * kKiB - 1}) {
    EXPECT_EQ(of(bytes, true), Way::kBatch) << bytes;
    EXPECT_EQ(of(bytes, false), Way::kBulk) << bytes;
  }
  EXPECT_EQ(of(4096 * kKiB, true), Way::kBatch);
  EXPECT_EQ(of(4096 * kKiB, false), Way::kCopyEngine);
}

TEST(Ways, AreThreadsWhereBulkTransfersCannotBe) {
  WayFacts facts{.shortest_bytes = 32 << 10, .aligned = false, .has_bulk = true};
  EXPECT_EQ(chosen(facts), Way::kThreads);
  facts.aligned = true;
  facts.has_bulk = false;
  EXPECT_EQ(chosen(facts), Way::kThreads);
}

TEST(Ways, AreTheWantedOnesWhereTheyCanBe) {
  const WayFacts able{.shortest_bytes = 100, .aligned = true, .has_bulk = true, .can_batch = true};
  for (const Way way : {Way::kThreads, Way::kBulk, Way::kBatch, Way::kCopyEngine}) {
    EXPECT_EQ(chosen(able, way), way);
  }
  WayFacts facts = able;
  facts.can_batch = false;
  EXPECT_EQ(chosen(facts, Way::kBatch), Way::kCopyEngine);
  facts.aligned = false;
  EXPECT_EQ(chosen(facts, Way::kBulk), Way::kThreads);
}

TEST(Ways, KeepSmallCopiesOfTheDriverAwayFromUncachedMemory) {
  WayFacts facts{.shortest_bytes = 20 << 10,
                 .aligned = true,
                 .has_bulk = true,
                 .can_batch = true,
                 .bypasses_caches = true};
  for (const Way way : {Way::kChoose, Way::kBatch, Way::kCopyEngine}) {
    EXPECT_EQ(chosen(facts, way), Way::kBulk);
  }
  facts.has_bulk = false;
  EXPECT_EQ(chosen(facts, Way::kBatch), Way::kThreads);
  facts.shortest_bytes = 24 << 10;
  EXPECT_EQ(chosen(facts, Way::kBatch), Way::kBatch);
  facts.can_batch = false;
  facts.shortest_bytes = 4 << 20;
  EXPECT_EQ(chosen(facts), Way::kCopyEngine);
}

TEST(Ways, TakeFewMultiprocessors) {
  EXPECT_EQ(default_thread_blocks(Way::kThreads, 132), 8u);
  EXPECT_EQ(default_thread_blocks(Way::kThreads, 108), 6u);
  EXPECT_EQ(default_thread_blocks(Way::kThreads, 1), 1u);
  EXPECT_EQ(default_thread_blocks(Way::kBulk, 148), 4u);
  EXPECT_EQ(default_thread_blocks(Way::kBulk, 70), 2u);
  EXPECT_EQ(default_thread_blocks(Way::kBulk, 24), 1u);
}

}  // namespace
}  // namespace cachalot::kv
