#include "storage/catalogue.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

namespace cachalot::storage {
namespace {

constexpr BlockHash kSpace{1, 1};

ObjectHead head_of(std::uint64_t block, std::uint64_t parent, std::uint64_t bytes = 100) {
  ObjectHead head;
  head.key = {kSpace, {block, 7}};
  if (parent != 0) head.parent = {parent, 7};
  head.payload_bytes = bytes;
  return head;
}
ObjectKey key_of(std::uint64_t block) {
  return {kSpace, {block, 7}};
}

TEST(CatalogueTest, AnObjectWithoutItsParentIsNotTaken) {
  Catalogue catalogue(Limits{});
  EXPECT_FALSE(catalogue.add(head_of(2, 1)));
  EXPECT_TRUE(catalogue.add(head_of(1, 0)));
  EXPECT_TRUE(catalogue.add(head_of(2, 1)));
  EXPECT_TRUE(catalogue.is_valid());
}

TEST(CatalogueTest, AnObjectMayBeAddedWithoutItsParentAndTakesAlongWhatIsBelow) {
  Catalogue catalogue(Limits{});
  EXPECT_TRUE(catalogue.add_detached(head_of(5, 4)));
  EXPECT_FALSE(catalogue.add_detached(head_of(5, 4)));
  EXPECT_TRUE(catalogue.add(head_of(6, 5)));
  EXPECT_TRUE(catalogue.add(head_of(1, 0)));
  EXPECT_TRUE(catalogue.add_detached(head_of(2, 1)));
  EXPECT_TRUE(catalogue.is_valid());
  EXPECT_EQ(catalogue.remove(key_of(5)), (std::vector<ObjectKey>{key_of(6), key_of(5)}));
  EXPECT_EQ(catalogue.remove(key_of(1)), (std::vector<ObjectKey>{key_of(2), key_of(1)}));
  EXPECT_TRUE(catalogue.is_valid());
}

TEST(CatalogueTest, TheColdestAreForgottenBeyondANumber) {
  Catalogue catalogue(Limits{});
  for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_TRUE(catalogue.add(head_of(i, i - 1)));
  EXPECT_TRUE(catalogue.add(head_of(9, 0)));
  catalogue.forget_coldest(3);
  EXPECT_EQ(catalogue.objects(), 3u);
  EXPECT_TRUE(catalogue.contains(key_of(9)) && catalogue.contains(key_of(2)));
  EXPECT_TRUE(catalogue.is_valid());
}

TEST(CatalogueTest, AChainIsCountedUpToTheFirstAbsentBlock) {
  Catalogue catalogue(Limits{});
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(catalogue.add(head_of(i, i - 1)));
  const BlockHash chain[] = {{1, 7}, {2, 7}, {3, 7}, {4, 7}};
  EXPECT_EQ(catalogue.count_prefix(kSpace, chain), 3u);
  EXPECT_EQ(catalogue.count_prefix({2, 2}, chain), 0u);
}

TEST(CatalogueTest, ASpaceIsKnownAsLongAsItHasAnObject) {
  Catalogue catalogue(Limits{});
  EXPECT_FALSE(catalogue.has_space(kSpace));
  EXPECT_TRUE(catalogue.add(head_of(1, 0)));
  EXPECT_TRUE(catalogue.add(head_of(2, 1)));
  EXPECT_TRUE(catalogue.add(head_of(2, 1)));  // a use
  (void)catalogue.remove(key_of(2));
  EXPECT_TRUE(catalogue.has_space(kSpace));
  EXPECT_FALSE(catalogue.has_space({2, 2}));
  (void)catalogue.remove(key_of(1));
  EXPECT_FALSE(catalogue.has_space(kSpace));
}

TEST(CatalogueTest, VictimsAreTheLeastRecentlyUsedLeavesOffThePath) {
  Catalogue catalogue({.bytes = ~0ull, .objects = 4});
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(catalogue.add(head_of(i, i - 1)));
  EXPECT_TRUE(catalogue.add(head_of(9, 0)));
  EXPECT_TRUE(catalogue.touch(key_of(3)));
  bool fits = false;
  EXPECT_EQ(catalogue.take_victims(100, 1, nullptr, fits), std::vector<ObjectKey>{key_of(9)});
  EXPECT_TRUE(fits);
  const ObjectKey tail = key_of(3);
  EXPECT_TRUE(catalogue.take_victims(100, 2, &tail, fits).empty());
  EXPECT_FALSE(fits);
}

TEST(CatalogueTest, WhatCouldNotFitAtAllRemovesNothing) {
  Catalogue catalogue({.bytes = 300});
  EXPECT_TRUE(catalogue.add(head_of(1, 0)));
  bool fits = true;
  EXPECT_TRUE(catalogue.take_victims(301, 1, nullptr, fits).empty());
  EXPECT_FALSE(fits);
  EXPECT_EQ(catalogue.objects(), 1u);
}

TEST(CatalogueTest, TheColdestGoUntilSoManyBytesAreGone) {
  Catalogue catalogue(Limits{});
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(catalogue.add(head_of(i, 0)));
  const ObjectKey spared = key_of(1);
  EXPECT_EQ(catalogue.take_coldest(150, &spared), (std::vector<ObjectKey>{key_of(2), key_of(3)}));
  EXPECT_EQ(catalogue.take_coldest(1000, nullptr).size(), 2u);
  EXPECT_TRUE(catalogue.is_valid());
}

TEST(CatalogueTest, ARemovedObjectTakesAllBelowItAlong) {
  Catalogue catalogue(Limits{});
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(catalogue.add(head_of(i, i - 1)));
  EXPECT_TRUE(catalogue.add(head_of(8, 2)));
  EXPECT_EQ(catalogue.remove(key_of(2)).size(), 4u);
  EXPECT_EQ(catalogue.objects(), 1u);
  EXPECT_EQ(catalogue.bytes(), 100u);
  EXPECT_TRUE(catalogue.is_valid());
}

TEST(CatalogueTest, WhatWasAddedAgainAfterTheMarkStays) {
  Catalogue catalogue(Limits{});
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(catalogue.add(head_of(i, i - 1)));
  const std::uint64_t mark = catalogue.additions();
  EXPECT_EQ(catalogue.remove(key_of(1), mark).size(), 4u);
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(catalogue.add(head_of(i, i - 1)));
  EXPECT_TRUE(catalogue.remove(key_of(2), mark).empty());
  EXPECT_EQ(catalogue.objects(), 4u);
  EXPECT_EQ(catalogue.remove(key_of(2)).size(), 3u);
}

TEST(CatalogueTest, KeysComeWithParentsFirst) {
  Catalogue catalogue(Limits{});
  std::vector<ObjectKey> keys;
  for (std::uint64_t i = 100; i >= 1; --i) {
    EXPECT_TRUE(catalogue.add(head_of(i, i == 100 ? 0 : i + 1)));
    keys.push_back(key_of(i));
  }
  EXPECT_TRUE(catalogue.touch(key_of(100)));
  EXPECT_EQ(catalogue.keys(), keys);
}

RC_GTEST_PROP(CatalogueTest, StaysValidUnderAnyCalls, ()) {
  Catalogue catalogue({.bytes = 3000, .objects = 25});
  const int steps = *rc::gen::inRange(1, 300);
  for (int i = 0; i < steps; ++i) {
    const auto block = *rc::gen::inRange<std::uint64_t>(1, 60);
    switch (*rc::gen::inRange(0, 4)) {
      case 0: {
        const auto parent = *rc::gen::inRange<std::uint64_t>(0, block);
        const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 300);
        const ObjectKey path = key_of(parent);
        bool fits = false;
        (void)catalogue.take_victims(bytes, 1, parent == 0 ? nullptr : &path, fits);
        if (!fits) break;
        const int then = *rc::gen::inRange(0, 8);
        if (then <= 1) {
          catalogue.release(bytes, 1);
          if (then == 1) (void)catalogue.add_detached(head_of(block, parent, bytes));
        } else {
          (void)catalogue.add_reserved(head_of(block, parent, bytes));
        }
        break;
      }
      case 1:
        (void)catalogue.touch(key_of(block));
        break;
      case 2:
        (void)catalogue.remove(key_of(block));
        break;
      default:
        break;
    }
    RC_ASSERT(catalogue.is_valid());
    RC_ASSERT(catalogue.bytes() <= 3000u && catalogue.objects() <= 25u);
  }
}

}  // namespace
}  // namespace cachalot::storage
