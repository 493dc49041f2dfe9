#include "device_memory/heap/start_map.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "device_memory/heap/block.h"

namespace cachalot::device_memory {
namespace {

TEST(StartMap, KeepsWhatItKnowsWhenALevelIsAdded) {
  StartMap starts;
  Block first, second;
  starts.grow(1);
  starts.set(0, &first);
  for (const std::uint64_t units : {64u, 65u, 4096u, 4097u, 300'000u}) {
    starts.grow(units);
    EXPECT_EQ(starts.last_up_to(units - 1), &first) << units;
  }
  starts.set(299'999, &second);
  EXPECT_EQ(starts.last_up_to(299'998), &first);
  EXPECT_EQ(starts.last_up_to(299'999), &second);
}

RC_GTEST_PROP(StartMap, FindsWhatAnOrderedMapFinds, ()) {
  const auto units = *rc::gen::inRange<std::uint64_t>(1, 10'000);
  StartMap starts;
  starts.grow(*rc::gen::inRange<std::uint64_t>(1, units + 1));
  std::map<std::uint64_t, Block*> naive;
  std::vector<Block> blocks(32);
  const auto steps = *rc::gen::inRange(0, 200);
  for (int i = 0; i < steps; ++i) {
    if (*rc::gen::inRange(0, 20) == 0) starts.grow(units);
    const auto unit = *rc::gen::inRange<std::uint64_t>(0, starts.units());
    const bool sets = *rc::gen::arbitrary<bool>();
    Block* const block = sets ? &blocks[*rc::gen::inRange<std::size_t>(0, blocks.size())] : nullptr;
    starts.set(unit, block);
    if (block != nullptr) naive[unit] = block;
    if (block == nullptr) naive.erase(unit);
    const auto asked = *rc::gen::inRange<std::uint64_t>(0, starts.units());
    auto found = naive.upper_bound(asked);
    Block* const expected = found == naive.begin() ? nullptr : std::prev(found)->second;
    RC_ASSERT(starts.last_up_to(asked) == expected);
  }
}

}  // namespace
}  // namespace cachalot::device_memory
