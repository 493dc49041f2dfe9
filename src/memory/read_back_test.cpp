#include "memory/read_back.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace cachalot::memory {
namespace {

constexpr std::uintptr_t kStripe = std::uintptr_t{2} << 20;

const void* at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}

std::set<const void*> drain(const ReadBack& list) {
  std::set<const void*> lines;
  while (const void* line = list.next()) EXPECT_TRUE(lines.insert(line).second);
  return lines;
}

TEST(ReadBack, KeepsTheLastLineOfEveryStripeAndForgetsWhatItGaveBack) {
  const ReadBack list;
  EXPECT_EQ(list.note(at(kStripe), 4096), nullptr);
  EXPECT_EQ(list.note(at(kStripe + 8192), 64), nullptr);
  EXPECT_EQ(list.note(at(3 * kStripe), 128), nullptr);
  EXPECT_EQ(list.note(at(5 * kStripe), 64), nullptr);
  EXPECT_EQ(list.note(at(7 * kStripe), 0), nullptr);
  EXPECT_EQ(drain(list), (std::set{at(kStripe + 8192), at(3 * kStripe + 64), at(5 * kStripe)}));
  EXPECT_EQ(drain(list), std::set<const void*>());
}

TEST(ReadBack, KeepsALineOfEveryStripeThatOneWriteReaches) {
  const ReadBack list;
  std::set<const void*> at_once;
  list.note_stripes(at(kStripe + 4096), 2 * kStripe,
                    [&](const void* line) { at_once.insert(line); });
  EXPECT_EQ(drain(list),
            (std::set{at(2 * kStripe - 64), at(3 * kStripe - 64), at(3 * kStripe + 4096 - 64)}));
  EXPECT_TRUE(at_once.empty());
  list.note_stripes(at(kStripe), 40 * kStripe, [&](const void* line) { at_once.insert(line); });
  EXPECT_FALSE(at_once.empty());
  EXPECT_EQ(drain(list).size() + at_once.size(), 40u);
}

TEST(ReadBack, GivesBackAtOnceWhatDoesNotFit) {
  const ReadBack list;
  std::size_t at_once = 0;
  for (std::uintptr_t i = 1; i <= 100; ++i) {
    const void* const line = list.note(at(i * kStripe), 64);
    if (line == nullptr) continue;
    EXPECT_EQ(line, at(i * kStripe));
    ++at_once;
  }
  EXPECT_GT(at_once, 0u);
  EXPECT_EQ(drain(list).size() + at_once, 100u);
}

TEST(ReadBack, KeepsDomainsAndThreadsApart) {
  const ReadBack one, two;
  one.note(at(kStripe), 64);
  two.note(at(kStripe), 128);
  one.note(at(2 * kStripe), 64);
  std::thread([&] {
    EXPECT_EQ(one.next(), nullptr);
    two.note(at(9 * kStripe), 64);
  }).join();
  EXPECT_EQ(drain(two), std::set{at(kStripe + 64)});
  EXPECT_EQ(drain(one), (std::set{at(kStripe), at(2 * kStripe)}));
}

}  // namespace
}  // namespace cachalot::memory
