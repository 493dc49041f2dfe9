#include "device_memory/heap/block_heap.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kUnit = 64;  // small, so that borders are met often
constexpr Address kBase = 1 << 20;

std::string fault_of(const BlockHeap& heap) {
  const Status status = heap.check();
  return status ? "" : status.error().message;
}

TEST(BlockHeap, SplitsAndMergesBack) {
  BlockHeap heap(kUnit);
  Segment* const segment = heap.add_segment(kBase, 1000, 0, nullptr);
  Block* const a = heap.take(heap.best_fit(0, 300), 300, nullptr);
  Block* const b = heap.take(heap.best_fit(0, 300), 300, nullptr);
  EXPECT_EQ(a->address, kBase);
  EXPECT_EQ(b->address, kBase + 300);
  EXPECT_EQ(heap.pool(0).free_bytes, 400u);
  heap.free(a);
  EXPECT_EQ(heap.pool(0).blocks.size(), 2u);
  EXPECT_EQ(heap.free(b)->bytes, 1000u);
  EXPECT_EQ(segment->first, segment->last);
  EXPECT_EQ(fault_of(heap), "");
}

TEST(BlockHeap, BestFitTakesTheSmallestThatFits) {
  BlockHeap heap(kUnit);
  for (const std::uint64_t bytes : {500u, 200u, 300u})
    heap.add_segment(kBase + bytes * 1000, bytes, 0, nullptr);
  EXPECT_EQ(heap.best_fit(0, 201)->bytes, 300u);
  EXPECT_EQ(heap.best_fit(0, 200)->bytes, 200u);
  EXPECT_EQ(heap.best_fit(0, 501), nullptr);
  EXPECT_EQ(heap.best_fit(1, 1), nullptr) << "what another stream freed is not for this one";
}

TEST(BlockHeap, NeighboursOfTwoStreamsDoNotMerge) {
  BlockHeap heap(kUnit);
  heap.add_segment(kBase, 200, 0, nullptr);
  Block* const first = heap.take(heap.best_fit(0, 100), 100, nullptr);
  Block* const mine = heap.free(first);
  EXPECT_EQ(mine->bytes, 200u);
  Block* const taken = heap.take(mine, 100, nullptr);
  Block* const other = heap.give(heap.best_fit(0, 100), 7);
  EXPECT_EQ(heap.free(taken)->bytes, 100u);
  EXPECT_EQ(fault_of(heap), "");
  EXPECT_EQ(heap.give(other, 0)->bytes, 200u);
  EXPECT_EQ(fault_of(heap), "");
}

TEST(BlockHeap, KnowsWholeUnitsAndTheHeadsAndTailsBesideThem) {
  BlockHeap heap(kUnit, BlockHeap::Parts::kKnown);
  heap.add_segment(kBase, 4 * kUnit, 0, nullptr);
  EXPECT_EQ(heap.pool(0).whole_bytes, 4 * kUnit);
  // [0, 10) used: what follows begins inside the first unit.
  heap.take(heap.best_fit(0, 10), 10, nullptr);
  EXPECT_EQ(heap.pool(0).whole_bytes, 3 * kUnit);
  ASSERT_NE(heap.pool(0).heads.at_least(1), nullptr);
  EXPECT_TRUE(heap.pool(0).tails.is_empty());
  // [unit, end) used: what stays is a head.
  Block* const rest = heap.best_fit(0, 3 * kUnit);
  heap.take(rest, kBase + kUnit, 3 * kUnit, nullptr);
  EXPECT_EQ(heap.pool(0).whole_bytes, 0u);
  ASSERT_NE(heap.pool(0).heads.at_least(1), nullptr);
  EXPECT_EQ(heap.pool(0).heads.at_least(1)->head.bytes, kUnit - 10);
  EXPECT_TRUE(heap.pool(0).tails.is_empty());
  EXPECT_EQ(fault_of(heap), "");
}

TEST(BlockHeap, APartIsAHeadATailBothOrNeither) {
  struct Case {
    std::uint64_t begin, end, head, tail;
  };
  for (const Case each : {Case{10, 20, 0, 0},
                          {10, kUnit, kUnit - 10, 0},
                          {0, 20, 0, 20},
                          {10, kUnit + 20, kUnit - 10, 20},
                          {0, kUnit, 0, 0},
                          {10, 3 * kUnit + 20, kUnit - 10, 20}}) {
    BlockHeap heap(kUnit, BlockHeap::Parts::kKnown);
    Segment* const segment = heap.add_segment(kBase, 4 * kUnit, 0, nullptr);
    Block* const all = heap.take(heap.best_fit(0, 4 * kUnit), 4 * kUnit, nullptr);
    heap.free(all);
    heap.take(heap.find(segment, kBase + each.end), kBase + each.end, 4 * kUnit - each.end,
              nullptr);
    if (each.begin != 0) heap.take(heap.find(segment, kBase), each.begin, nullptr);
    const Block* const rest = heap.find(segment, kBase + each.begin);
    EXPECT_EQ(rest->head.bytes, each.head) << each.begin << " " << each.end;
    EXPECT_EQ(rest->tail.bytes, each.tail) << each.begin << " " << each.end;
    EXPECT_EQ(heap.pool(0).heads.is_empty(), each.head == 0);
    EXPECT_EQ(heap.pool(0).tails.is_empty(), each.tail == 0);
    EXPECT_EQ(fault_of(heap), "");
  }
}

TEST(BlockHeap, ExtendingJoinsTheFreeEnd) {
  BlockHeap heap(kUnit);
  Segment* const segment = heap.add_segment(kBase, 0, 0, nullptr);
  heap.take(heap.extend(segment, 100, 0), 60, nullptr);
  Block* const end = heap.extend(segment, 100, 0);
  EXPECT_EQ(end->address, kBase + 60);
  EXPECT_EQ(end->bytes, 140u);
  EXPECT_EQ(fault_of(heap), "");
}

TEST(BlockHeap, AbsentMemoryNeverComesBack) {
  BlockHeap heap(kUnit);
  Segment* const segment = heap.add_segment(kBase, 4 * kUnit, 0, nullptr);
  heap.remove_memory(heap.best_fit(0, 1), kBase + kUnit, kUnit);
  EXPECT_EQ(heap.pool(0).free_bytes, 3 * kUnit);
  EXPECT_EQ(heap.find(segment, kBase + kUnit)->state, BlockState::kAbsent);
  Block* const front = heap.take(heap.find(segment, kBase), kUnit, nullptr);
  heap.free(front);
  EXPECT_EQ(heap.best_fit(0, 2 * kUnit)->address, kBase + 2 * kUnit);
  EXPECT_EQ(fault_of(heap), "");
  heap.remove_segment(segment);
  EXPECT_EQ(heap.pool(0).free_bytes, 0u);
  EXPECT_EQ(fault_of(heap), "");
}

// Beside the heap an owner for each byte: what every operation must leave behind.
class NaiveHeap {
 public:
  explicit NaiveHeap(std::uint64_t bytes) : owners_(bytes, -1) {}
  void set(std::uint64_t offset, std::uint64_t bytes, int owner) {
    for (std::uint64_t i = offset; i < offset + bytes; ++i) owners_[i] = owner;
  }
  bool is_all(std::uint64_t offset, std::uint64_t bytes, int owner) const {
    return std::all_of(owners_.begin() + static_cast<long>(offset),
                       owners_.begin() + static_cast<long>(offset + bytes),
                       [&](int each) { return each == owner; });
  }

 private:
  std::vector<int> owners_;  // -1: free
};

RC_GTEST_PROP(BlockHeap, RandomStepsKeepTheInvariantsAndGiveEachByteOnce, ()) {
  constexpr std::uint64_t kBytes = 20 * kUnit;
  BlockHeap heap(kUnit);
  Segment* const segment = heap.add_segment(kBase, kBytes, 0, nullptr);
  NaiveHeap naive(kBytes);
  std::vector<std::pair<Block*, int>> used;
  const auto steps = *rc::gen::inRange(1, 120);
  for (int step = 0; step < steps; ++step) {
    const int what = *rc::gen::inRange(0, 10);
    if (what < 5) {
      const auto stream = *rc::gen::inRange<gpu::StreamId>(0, 2);
      const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 3 * kUnit);
      Block* const found = heap.best_fit(stream, bytes);
      if (found == nullptr) continue;
      const auto skip = *rc::gen::inRange<std::uint64_t>(0, found->bytes - bytes + 1);
      Block* const block = heap.take(found, found->address + skip, bytes, nullptr);
      RC_ASSERT(block->bytes == bytes);
      RC_ASSERT(naive.is_all(block->address - kBase, bytes, -1));
      naive.set(block->address - kBase, bytes, step);
      used.emplace_back(block, step);
    } else if (what < 9) {
      if (used.empty()) continue;
      const auto which = *rc::gen::inRange<std::size_t>(0, used.size());
      const auto [block, owner] = used[which];
      RC_ASSERT(naive.is_all(block->address - kBase, block->bytes, owner));
      naive.set(block->address - kBase, block->bytes, -1);
      heap.free(block);
      used.erase(used.begin() + static_cast<long>(which));
    } else {
      const auto stream = *rc::gen::inRange<gpu::StreamId>(0, 2);
      if (Block* const block = heap.best_fit(stream, 1)) heap.give(block, 1 - stream);
    }
    RC_ASSERT(fault_of(heap) == "");
    const auto asked = kBase + *rc::gen::inRange<Address>(0, kBytes);
    const Block* const covers = heap.find(segment, asked);
    RC_ASSERT(covers->address <= asked && asked < covers->end());
  }
}

}  // namespace
}  // namespace cachalot::device_memory
