#include "stitch/stitch_brake.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "device_memory/baseline/expandable_allocator.h"
#include "testing/stitch/stitching.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

StitchOptions brake_options() {
  StitchOptions options;
  options.free_stitch_requests = 10;
  options.growth_divisor = 100;
  options.growth_piece_divisor = 50;
  return options;
}

// A twin that holds 2 GiB, and whose user has stitched so often.
struct Braked {
  explicit Braked(int stitches) {
    brake.served(2 * kGiB, 0, false);
    for (int i = 0; i < stitches; ++i) brake.freed(brake.served(4 * kMiB, 0, true));
  }
  StitchBrake brake{brake_options()};
};

TEST(StitchBrake, WhoHasNotStitchedMayNotBuy) {
  EXPECT_FALSE(Braked(0).brake.may_buy(2 * kMiB, kGiB));
  EXPECT_TRUE(Braked(2).brake.may_buy(2 * kMiB, kGiB));
}

TEST(StitchBrake, AStitchIsForgottenInTime) {
  StitchBrake brake(brake_options());
  brake.served(2 * kGiB, 0, true);
  EXPECT_EQ(brake.stitches(), 1u);
  brake.served(512, 0, false);
  EXPECT_EQ(brake.stitches(), 0u);
  EXPECT_FALSE(brake.may_buy(2 * kMiB, kGiB));
}

TEST(StitchBrake, EachStitchAllowsForOneShareMore) {
  Braked braked(7);  // each request takes a tenth of one back
  EXPECT_EQ(braked.brake.stitches(), 6u);
  const std::uint64_t share = kGiB / 100;
  EXPECT_TRUE(braked.brake.may_buy(share, kGiB));
  braked.brake.bought(6 * share - 2 * kMiB);
  EXPECT_TRUE(braked.brake.may_buy(2 * kMiB, kGiB));
  EXPECT_FALSE(braked.brake.may_buy(2 * kMiB + 1, kGiB));
  braked.brake.released();
  EXPECT_TRUE(braked.brake.may_buy(2 * kMiB + 1, kGiB - 512 * kMiB))
      << "what was bought may be gone";
}

TEST(StitchBrake, PiecesAreSmallUntilThereWereManyStitches) {
  const std::uint64_t piece = kGiB / 50;
  EXPECT_TRUE(Braked(40).brake.may_buy(piece, kGiB));
  EXPECT_FALSE(Braked(40).brake.may_buy(piece + kMiB, kGiB));
  EXPECT_TRUE(Braked(120).brake.may_buy(2 * piece, kGiB)) << "108 are twice 50";
}

TEST(StitchBrake, NothingIsBoughtBeyondWhatExpandableSegmentsHold) {
  Braked braked(40);
  const std::uint64_t twin = braked.brake.twin_bytes();
  EXPECT_EQ(twin, 103 * 20 * kMiB) << "2 GiB and 4 MiB in handles of 20 MiB";
  EXPECT_TRUE(braked.brake.may_buy(4 * kMiB, twin - 4 * kMiB));
  EXPECT_FALSE(braked.brake.may_buy(4 * kMiB, twin - 2 * kMiB));
}

TEST(StitchBrake, NothingIsBoughtWhereTheDeviceIsFullUntilSomethingIsReleased) {
  Braked braked(40);
  braked.brake.device_is_full();
  EXPECT_FALSE(braked.brake.may_buy(2 * kMiB, kGiB));
  braked.brake.released();
  EXPECT_TRUE(braked.brake.may_buy(2 * kMiB, kGiB));
}

RC_GTEST_PROP(StitchBrake, TheTwinHoldsWhatExpandableSegmentsDo, ()) {
  const auto backend = *device_memory::ModelBackend::open();
  device_memory::FakeEvents events;
  device_memory::ExpandableAllocator expandable(*backend, events);
  StitchBrake brake{StitchOptions{}};
  struct Held {
    device_memory::Address address;
    device_memory::Block* twin;
  };
  std::vector<Held> held;
  const auto steps = *rc::gen::inRange(1, 200);
  for (int step = 0; step < steps; ++step) {
    const int what = *rc::gen::inRange(0, 100);
    if (what < 55 || held.empty()) {
      const std::uint64_t bytes = *rc::gen::inRange<std::uint64_t>(1, 60'000) *
                                  *rc::gen::element<std::uint64_t>(512, 65'536);
      const gpu::StreamId stream = *rc::gen::inRange<gpu::StreamId>(0, 3);
      const Result<device_memory::Address> address = expandable.allocate(bytes, stream);
      RC_ASSERT(address.ok());
      held.push_back({*address, brake.served(bytes, stream, false)});
    } else {
      std::swap(held[*rc::gen::inRange<std::size_t>(0, held.size())], held.back());
      RC_ASSERT(expandable.free(held.back().address).ok());
      brake.freed(held.back().twin);
      held.pop_back();
    }
    RC_ASSERT(brake.twin_bytes() == expandable.stats().reserved_bytes);
    RC_ASSERT(brake.check().ok());
  }
  RC_ASSERT(expandable.release_cached().ok());
  brake.released();
  RC_ASSERT(brake.twin_bytes() == expandable.stats().reserved_bytes);
  RC_ASSERT(brake.check().ok());
}

TEST(StitchBrake, WhatTheTwinGaveBackCountsAgainWhenItHasToGrow) {
  StitchBrake brake(brake_options());
  device_memory::Block* const first = brake.served(100 * kMiB, 0, false);
  brake.served(100 * kMiB, 0, false);
  brake.freed(first);
  brake.released();
  EXPECT_EQ(brake.twin_bytes(), 100 * kMiB);
  brake.served(60 * kMiB, 0, false);
  EXPECT_EQ(brake.twin_bytes(), 200 * kMiB);
  EXPECT_TRUE(brake.check());
}

// Some programs release at every step.
TEST(StitchBrake, ReleasingOftenTakesNoMoreAddresses) {
  StitchBrake brake(brake_options());
  device_memory::Block* const kept = brake.served(3 * kMiB, 0, false);
  for (int step = 0; step < 100; ++step) {
    device_memory::Block* const large = brake.served(kGiB, 0, false);
    device_memory::Block* const larger = brake.served(2 * kGiB, 0, false);
    brake.freed(large);
    brake.released();
    brake.freed(larger);
    brake.released();
  }
  EXPECT_LE(brake.twin_range_bytes(), 3 * kGiB + 40 * kMiB);
  EXPECT_EQ(brake.twin_bytes(), 20 * kMiB);
  brake.freed(kept);
  EXPECT_TRUE(brake.check());
}

TEST(StitchBrake, NobodyHasStitchedSoOftenThatItIsNotForgotten) {
  StitchBrake brake(brake_options());
  for (int i = 0; i < 80'000; ++i) brake.freed(brake.served(4 * kMiB, 0, true));
  EXPECT_EQ(brake.stitches(), 65'536u) << "of 72,000";
}

// A hundred tensors, one of which makes room for another of random length at every step.
struct Outcome {
  std::uint64_t stitches, peak_reserved_bytes, out_of_memory;
};
Outcome run_random_lengths(device_memory::Allocator& allocator) {
  std::uint64_t random = 1;
  const auto below = [&](std::uint64_t bound) {
    random = random * 6'364'136'223'846'793'005 + 1'442'695'040'888'963'407;
    return (random >> 33) % bound;
  };
  std::vector<device_memory::Address> live;
  for (int step = 0; step < 4'000; ++step) {
    if (step >= 100) {
      std::swap(live[below(live.size())], live.back());
      EXPECT_TRUE(allocator.free(live.back()).ok());
      live.pop_back();
    }
    const Result<device_memory::Address> address =
        allocator.allocate(4 * kMiB + below(3'000) * 8'192, 0);
    if (address) live.push_back(*address);
  }
  EXPECT_TRUE(allocator.check().ok());
  const device_memory::AllocatorStats stats = allocator.stats();
  return {stats.stitches, stats.peak_reserved_bytes, stats.out_of_memory};
}

TEST(StitchAllocator, AProgramThatNeverRepeatsIsBrakedBelowExpandableSegments) {
  StitchOptions loose;
  loose.free_stitch_requests = 1;
  Stitching unbraked(loose), braked;
  const auto backend = *device_memory::ModelBackend::open();
  device_memory::FakeEvents events;
  device_memory::ExpandableAllocator expandable(*backend, events);
  const Outcome without = run_random_lengths(*unbraked.allocator);
  const Outcome with = run_random_lengths(*braked.allocator);
  const Outcome baseline = run_random_lengths(expandable);
  EXPECT_LT(with.stitches, without.stitches * 9 / 10);
  EXPECT_GT(with.peak_reserved_bytes, without.peak_reserved_bytes) << "else it shows nothing";
  EXPECT_LE(with.peak_reserved_bytes, baseline.peak_reserved_bytes);
}

TEST(StitchAllocator, WhatTheBrakeTakesIsBounded) {
  StitchOptions loose, dear;
  loose.free_stitch_requests = 1;
  dear.growth_divisor = 100'000;
  dear.growth_piece_divisor = 1;
  Stitching unbraked(loose), braked(dear);
  const Outcome without = run_random_lengths(*unbraked.allocator);
  const Outcome with = run_random_lengths(*braked.allocator);
  EXPECT_GT(with.peak_reserved_bytes, without.peak_reserved_bytes) << "else it shows nothing";
  // At most 4,000 stitches: 4 %.
  EXPECT_LT(with.peak_reserved_bytes, without.peak_reserved_bytes * 104 / 100);
}

TEST(StitchAllocator, TheTwinGivesBackWhenTheAllocatorDoes) {
  Stitching stitching;
  const device_memory::Address first = stitching.allocate(50 * kMiB);
  stitching.allocate(kMiB);
  stitching.free(first);
  EXPECT_EQ(stitching.allocator->twin_bytes(), 62 * kMiB);
  ASSERT_TRUE(stitching.allocator->release_cached());
  EXPECT_EQ(stitching.allocator->twin_bytes(), 2 * kMiB);
}

TEST(StitchAllocator, WhereTheDeviceIsFullTheBrakeGivesWay) {
  StitchOptions loose;
  loose.free_stitch_requests = 1;
  Stitching unbraked(loose);
  const Outcome without = run_random_lengths(*unbraked.allocator);
  // What was bought has borders of blocks in its chunks, too: a chunk more for each of some blocks.
  const std::uint64_t limit = without.peak_reserved_bytes + 64 * kMiB;
  Stitching braked({}, limit);
  const Outcome with = run_random_lengths(*braked.allocator);
  EXPECT_EQ(with.out_of_memory, 0u);
  EXPECT_GT(with.peak_reserved_bytes, limit - 8 * kMiB) << "else it shows nothing";
}

}  // namespace
}  // namespace cachalot::stitch
