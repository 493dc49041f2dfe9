#include "memory/devices.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "testing/os/shm_folder.h"

namespace cachalot::memory {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = 1u << 20;

class DeviceSetTest : public os::ShmFolder {};

TEST_F(DeviceSetTest, WhatOneProcessCreatesAnotherOpensInTheSameOrder) {
  const std::vector<std::string> paths = {path("b"), path("a"), path("c")};
  auto made = DeviceSet::create(paths, 4 * kMiB);
  ASSERT_TRUE(made) << made.error().message;
  for (std::uint32_t i = 0; i < 3; ++i) std::memset(made->base(i), static_cast<int>(i) + 1, 4096);
  const auto opened = DeviceSet::open(paths);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->count(), 3u);
  EXPECT_EQ(opened->bytes_each(), 4 * kMiB);
  const PoolView view = opened->view();
  ASSERT_EQ(view.bases.size(), 3u);
  EXPECT_EQ(view.bytes_each, 4 * kMiB);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(view.bases[i], opened->base(i));
    EXPECT_EQ(view.bases[i][4095], static_cast<std::byte>(i + 1));
    EXPECT_EQ(opened->file(i).path(), paths[i]);
  }
  EXPECT_TRUE(made->remove());
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(view.bases[2][0], std::byte{3});  // mappings live on
}

TEST_F(DeviceSetTest, AFailureAtTheThirdDeviceRemovesTheFirstTwo) {
  if (!mount_here("tmpfs", "size=10m")) GTEST_SKIP() << "not allowed to mount";
  const auto set = DeviceSet::create({path("a"), path("b"), path("c")}, 4 * kMiB);
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::kNoSpace);
  EXPECT_NE(std::string(set.error().message).find(path("c")), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DeviceSetTest, ABusyDeviceIsLeftAloneAndTheOthersAreRemoved) {
  ASSERT_TRUE(DeviceSet::create({path("b")}, 2 * kMiB));
  const auto set = DeviceSet::create({path("a"), path("b")}, 2 * kMiB);
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::kBusy);
  EXPECT_FALSE(fs::exists(path("a")));
  EXPECT_TRUE(fs::exists(path("b")));
}

TEST_F(DeviceSetTest, RefusesNoDevicesTwiceTheSameAndOddSizes) {
  EXPECT_EQ(DeviceSet::create({}, 2 * kMiB).error().code, Code::kInvalidArgument);
  EXPECT_EQ(DeviceSet::open({}).error().code, Code::kInvalidArgument);
  for (const std::uint64_t bytes : {std::uint64_t{0}, kMiB, 3 * kMiB, std::uint64_t{1} << 63}) {
    EXPECT_EQ(DeviceSet::create({path("a")}, bytes).error().code, Code::kInvalidArgument);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  ASSERT_TRUE(DeviceSet::create({path("a")}, 2 * kMiB));
  fs::create_symlink(path("a"), path("link"));
  EXPECT_EQ(DeviceSet::open({path("a"), path("link")}).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(os::SharedFile::create(path("small"), kMiB));
  EXPECT_EQ(DeviceSet::open({path("small")}).error().code, Code::kBadInput);
}

TEST_F(DeviceSetTest, ASmallerDeviceIsNamedWhenMoreIsRequired) {
  ASSERT_TRUE(DeviceSet::create({path("a")}, 4 * kMiB));
  ASSERT_TRUE(DeviceSet::create({path("b")}, 2 * kMiB));
  const auto set = DeviceSet::open({path("a"), path("b")});
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_EQ(set->bytes_each(), 2 * kMiB);
  EXPECT_TRUE(set->require_bytes(2 * kMiB));
  const Status status = set->require_bytes(4 * kMiB);
  ASSERT_FALSE(status);
  EXPECT_NE(std::string(status.error().message).find(path("b")), std::string::npos);
}

TEST_F(DeviceSetTest, OpensForReadingOnly) {
  ASSERT_TRUE(DeviceSet::create({path("a")}, 2 * kMiB));
  const auto set = DeviceSet::open({path("a")}, {.populate = true, .read_only = true});
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_EQ(set->base(0)[0], std::byte{0});
}

struct Extent {
  std::uint32_t device;
  std::uint64_t offset, bytes;
};

std::vector<Extent> extents(const Interleave& interleave, std::uint64_t at, std::uint64_t bytes) {
  std::vector<Extent> result;
  interleave.for_each_extent(at, bytes,
                             [&](std::uint32_t device, std::uint64_t offset, std::uint64_t length) {
                               result.push_back({device, offset, length});
                             });
  return result;
}

Interleave any_interleave() {
  const auto devices = *rc::gen::inRange<std::size_t>(1, 9);
  std::vector<std::uint64_t> starts;
  for (std::size_t i = 0; i < devices; ++i) {
    starts.push_back(*rc::gen::inRange<std::uint64_t>(0, 5) * kStripeBytes);
  }
  return *Interleave::make(starts, *rc::gen::inRange<std::uint64_t>(1, 20) * kStripeBytes);
}

RC_GTEST_PROP(Interleave, EveryByteIsWhereTheFormulaSays, ()) {
  const Interleave map = any_interleave();
  const auto at = *rc::gen::inRange<std::uint64_t>(0, map.total_bytes());
  const auto bytes = *rc::gen::inRange<std::uint64_t>(0, map.total_bytes() - at + 1);
  std::uint64_t logical = at;
  for (const Extent& extent : extents(map, at, bytes)) {
    RC_ASSERT(extent.bytes > 0u);
    // Inside an extent the offset and the address advance together: the ends suffice.
    for (const std::uint64_t within : {std::uint64_t{0}, extent.bytes - 1}) {
      const std::uint64_t a = logical + within, stripe = a / kStripeBytes;
      const auto device = static_cast<std::uint32_t>(stripe % map.devices());
      RC_ASSERT(extent.device == device);
      RC_ASSERT(extent.offset + within ==
                map.data_start(device) + stripe / map.devices() * kStripeBytes + a % kStripeBytes);
    }
    RC_ASSERT(extent.offset >= map.data_start(extent.device));
    RC_ASSERT(extent.offset + extent.bytes <=
              map.data_start(extent.device) + map.data_bytes_each());
    if (map.devices() > 1) RC_ASSERT(extent.bytes <= kStripeBytes);
    logical += extent.bytes;
  }
  RC_ASSERT(logical == at + bytes);
}

RC_GTEST_PROP(Interleave, CutAnyhowThePiecesFillEveryDataAreaExactlyOnce, ()) {
  const Interleave map = any_interleave();
  std::vector<std::map<std::uint64_t, std::uint64_t>> used(map.devices());  // offset -> end
  for (std::uint64_t at = 0; at < map.total_bytes();) {
    const std::uint64_t piece_bytes =
        kStripeBytes / 4 + *rc::gen::inRange<std::uint64_t>(1, 3 * kStripeBytes);
    const std::uint64_t bytes = std::min(map.total_bytes() - at, piece_bytes);
    for (const Extent& extent : extents(map, at, bytes)) {
      RC_ASSERT(used[extent.device].emplace(extent.offset, extent.offset + extent.bytes).second);
    }
    at += bytes;
  }
  for (std::uint32_t device = 0; device < map.devices(); ++device) {
    std::uint64_t end = map.data_start(device);
    for (const auto& [from, to] : used[device]) {
      RC_ASSERT(from == end);
      end = to;
    }
    RC_ASSERT(end == map.data_start(device) + map.data_bytes_each());
  }
}

TEST(Interleave, OneDeviceGivesOneExtent) {
  const auto map = Interleave::make({6 * kMiB}, 64 * kMiB);
  ASSERT_TRUE(map);
  const auto found = extents(*map, kMiB, 63 * kMiB);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].offset, 7 * kMiB);
  EXPECT_EQ(found[0].bytes, 63 * kMiB);
  EXPECT_TRUE(extents(*map, kMiB, 0).empty());
}

TEST(Interleave, KnowsWhatLiesInsideWithoutOverflow) {
  const auto map = Interleave::make({0, 2 * kMiB}, 4 * kMiB);
  ASSERT_TRUE(map);
  EXPECT_EQ(map->total_bytes(), 8 * kMiB);
  EXPECT_TRUE(map->contains(0, 8 * kMiB));
  EXPECT_TRUE(map->contains(8 * kMiB, 0));
  EXPECT_FALSE(map->contains(1, 8 * kMiB));
  EXPECT_FALSE(map->contains(~std::uint64_t{0}, 2));
  EXPECT_FALSE(map->contains(2, ~std::uint64_t{0}));
}

TEST(Interleave, RefusesWhatIsNotWholeStripesOrTooMuch) {
  const std::uint64_t half = std::uint64_t{1} << 61;
  EXPECT_FALSE(Interleave::make({}, 2 * kMiB));
  EXPECT_FALSE(Interleave::make({0}, 0));
  EXPECT_FALSE(Interleave::make({0}, 3 * kMiB));
  EXPECT_FALSE(Interleave::make({64}, 2 * kMiB));
  EXPECT_FALSE(Interleave::make({0, 0, 0}, half));
  EXPECT_FALSE(Interleave::make({0, 0, 0, 0, 0, 0, 0, 0, 0}, half));  // the product wraps
  EXPECT_FALSE(Interleave::make({std::uint64_t{1} << 63}, 2 * kMiB));
  EXPECT_TRUE(Interleave::make({0, 0}, half));
}

}  // namespace
}  // namespace cachalot::memory
