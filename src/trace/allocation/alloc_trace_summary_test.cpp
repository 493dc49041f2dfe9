#include "trace/allocation/alloc_trace_summary.h"

#include <gtest/gtest.h>

#include <string>

#include "trace/allocation/alloc_trace.h"

namespace cachalot::trace {
namespace {

AllocTraceSummary summary_of(const std::string& name) {
  Result<AllocTrace> trace = AllocTrace::open(CACHALOT_TEST_ASSETS "/alloc/" + name);
  EXPECT_TRUE(trace) << trace.error().message;
  AllocTraceSummary summary;
  AllocEvent event;
  while (*trace->next(event)) EXPECT_TRUE(summary.add(event));
  EXPECT_EQ(summary.live_bytes(), trace->live_bytes());
  EXPECT_EQ(summary.live_blocks(), trace->live_blocks());
  return summary;
}

AllocEvent allocation(std::uint64_t id, std::uint64_t bytes) {
  return {.kind = AllocKind::kAllocate, .id = id, .bytes = bytes};
}

TEST(AllocTraceSummary, FindsThePeaksThatAnotherProgramFound) {
  EXPECT_EQ(summary_of("real_cs336_medium_128_training.trace.gz").peak_live_bytes(), 7013335044u);
  EXPECT_EQ(summary_of("real_cs336_medium_256_training.trace.gz").peak_live_bytes(), 9103544320u);
  EXPECT_EQ(summary_of("real_cs336_medium_128_inference.trace.gz").peak_live_bytes(), 1736962048u);
  EXPECT_EQ(summary_of("real_cs336_medium_1024_inference.trace.gz").peak_live_bytes(), 2877435904u);
  EXPECT_EQ(summary_of("gen_opt1.3b_LR_b112.trace.gz").peak_live_bytes(), 54872847872u);
}

TEST(AllocTraceSummary, CountsEventsSizesAndWhatLives) {
  AllocTraceSummary summary;
  EXPECT_TRUE(summary.add({.kind = AllocKind::kMark, .text = "iteration 1"}));
  EXPECT_TRUE(summary.add(allocation(1, 1)));
  EXPECT_TRUE(summary.add(allocation(2, 1023)));
  EXPECT_TRUE(summary.add({.kind = AllocKind::kFree, .id = 2, .bytes = 1023}));
  EXPECT_TRUE(summary.add(allocation(3, 1023)));
  EXPECT_TRUE(summary.add(allocation(4, 1024)));
  EXPECT_EQ(summary.events(), 6u);
  EXPECT_EQ(summary.allocations(), 4u);
  EXPECT_EQ(summary.frees(), 1u);
  EXPECT_EQ(summary.iterations(), 1u);
  EXPECT_EQ(summary.streams(), 1u);
  EXPECT_EQ(summary.live_bytes(), 2048u);
  EXPECT_EQ(summary.live_blocks(), 3u);
  EXPECT_EQ(summary.peak_live_bytes(), 2048u);
  EXPECT_EQ(summary.peak_live_blocks(), 3u);
  EXPECT_EQ(summary.distinct_sizes(), 3u);
  EXPECT_EQ(summary.largest_bytes(), 1024u);
  EXPECT_EQ(summary.size_classes()[0].allocations, 1u);
  EXPECT_EQ(summary.size_classes()[9].allocations, 2u);
  EXPECT_EQ(summary.size_classes()[9].bytes, 2046u);
  EXPECT_EQ(summary.size_classes()[10].allocations, 1u);
}

TEST(AllocTraceSummary, ThePeakIsNotTheEnd) {
  AllocTraceSummary summary;
  EXPECT_TRUE(summary.add(allocation(1, 100)));
  EXPECT_TRUE(summary.add({.kind = AllocKind::kFree, .id = 1, .bytes = 100}));
  EXPECT_TRUE(summary.add(allocation(2, 10)));
  EXPECT_EQ(summary.peak_live_bytes(), 100u);
  EXPECT_EQ(summary.live_bytes(), 10u);
}

TEST(AllocTraceSummary, TheShareOfLargeRequestsBeginsAt64MiB) {
  AllocTraceSummary summary;
  EXPECT_EQ(summary.large_share(), 0);
  EXPECT_TRUE(summary.add(allocation(1, AllocTraceSummary::kLargeBytes)));
  EXPECT_TRUE(summary.add(allocation(2, AllocTraceSummary::kLargeBytes - 1)));
  EXPECT_NEAR(summary.large_share(), 0.5, 1e-6);
  EXPECT_GT(summary.large_share(), 0.5);
}

TEST(AllocTraceSummary, RefusesBytesThatDoNotAddUp) {
  AllocTraceSummary summary;
  EXPECT_TRUE(summary.add(allocation(1, kMaxAllocBytes)));
  EXPECT_TRUE(summary.add({.kind = AllocKind::kFree, .id = 1, .bytes = kMaxAllocBytes}));
  const Status refused = summary.add(allocation(2, kMaxAllocBytes));
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().message, "its allocations exceed 2^64 bytes");
}

}  // namespace
}  // namespace cachalot::trace
