#include "device_memory/model/model_backend.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// What 2 GiB cost from handles of this size, each mapped and opened by calls of its own.
std::uint64_t ns_of_two_gib(const CostTable& costs, std::uint64_t handle_bytes) {
  const auto model = *ModelBackend::open({.costs = costs});
  const Address range = *model->reserve(2 * kGiB);
  for (std::uint64_t at = 0; at < 2 * kGiB; at += handle_bytes) {
    EXPECT_TRUE(model->map(range + at, *model->create(handle_bytes)));
    EXPECT_TRUE(model->set_access(range + at, handle_bytes, Access::kReadWrite));
  }
  return model->charged_ns();
}

// GMLake, Table 1, last column; its own four columns add up to 115.6, 9.1 and 1.49.
TEST(ModelBackend, ChargesWhatGmlakePublished) {
  const CostTable& table = *find_cost_table("gmlake_table1");
  const auto units = [&](std::uint64_t handle_bytes) {
    return static_cast<double>(ns_of_two_gib(table, handle_bytes)) / kGmlakeUnitNs;
  };
  EXPECT_NEAR(units(2 * kMiB), 115.6, 0.05);
  EXPECT_NEAR(units(128 * kMiB), 9.1, 0.05);
  EXPECT_NEAR(units(kGiB), 1.49, 0.05);
}

TEST(ModelBackend, ChargesWhatVattentionPublished) {
  const auto model = *ModelBackend::open({.costs = *find_cost_table("vattention_table3")});
  std::uint64_t charged = 0;
  const auto expect_us = [&](double us) {
    EXPECT_NEAR(static_cast<double>(model->charged_ns() - charged), us * 1e3, 1);
    charged = model->charged_ns();
  };
  const Address range = *model->reserve(2 * kMiB);
  expect_us(2);
  const Handle handle = *model->create(2 * kMiB);
  expect_us(29);
  ASSERT_TRUE(model->map(range, handle));
  expect_us(2);
  ASSERT_TRUE(model->set_access(range, 2 * kMiB, Access::kReadWrite));
  expect_us(38);
  ASSERT_TRUE(model->unmap(range, 2 * kMiB));
  expect_us(34);
  ASSERT_TRUE(model->release(handle));
  expect_us(23);
  ASSERT_TRUE(model->free_range(range));
  expect_us(1);
}

TEST(ModelBackend, ChargesNothingForWhatIsRefused) {
  const auto model = *ModelBackend::open();
  EXPECT_FALSE(model->reserve(1));
  EXPECT_FALSE(model->create(0));
  EXPECT_FALSE(model->map(0, Handle{1}));
  EXPECT_EQ(model->charged_ns(), 0u);
}

TEST(ModelBackend, ChargesASpanByItsMappingsOrByItsBytes) {
  for (const Spanning spanning : {Spanning::kEachMapping, Spanning::kByBytes}) {
    CostTable costs = *find_cost_table("gmlake_table1");
    costs.spanning = spanning;
    const auto model = *ModelBackend::open({.costs = costs});
    const Address range = *model->reserve(128 * kMiB);
    for (std::uint64_t i = 0; i < 64; ++i) {
      ASSERT_TRUE(model->map(range + i * 2 * kMiB, *model->create(2 * kMiB)));
    }
    const std::uint64_t before = model->charged_ns();
    ASSERT_TRUE(model->set_access(range, 128 * kMiB, Access::kReadWrite));
    const double expected =
        spanning == Spanning::kByBytes ? costs.at[1].set_access : 64 * costs.at[0].set_access;
    EXPECT_NEAR(static_cast<double>(model->charged_ns() - before), expected, 64);
  }
}

TEST(CostTable, InterpolatesBetweenItsSizesAndGrowsInProportionAboveThem) {
  for (const CostTable& table : cost_tables()) {
    for (const auto call : {&CallCosts::create, &CallCosts::set_access, &CallCosts::unmap}) {
      for (std::size_t i = 0; i < table.at.size(); ++i) {
        EXPECT_NEAR(interpolate(table, call, CostTable::kBytes[i]), table.at[i].*call, 1e-6);
      }
      const double middle = interpolate(table, call, 16 * kMiB);  // half way from 2 to 128
      EXPECT_NEAR(middle * middle, table.at[0].*call * table.at[1].*call, 1e-3 * middle * middle);
      EXPECT_NEAR(interpolate(table, call, 4 * kGiB), 4 * (table.at[2].*call), 1e-6);
    }
  }
}

TEST(CostTable, HasANameAndASource) {
  for (const CostTable& table : cost_tables()) {
    EXPECT_EQ(find_cost_table(table.name), &table);
    EXPECT_STRNE(table.source, "");
  }
  EXPECT_EQ(find_cost_table("gmlake"), nullptr);
}

TEST(ModelBackend, NeverGivesAnAddressTwiceNorBesideAnother) {
  const auto model = *ModelBackend::open();
  const Address first = *model->reserve(4 * kMiB);
  ASSERT_TRUE(model->free_range(first));
  const Address second = *model->reserve(4 * kMiB);
  EXPECT_GT(second, first + 4 * kMiB);
}

TEST(ModelBackend, RunsOutOfAddressesWithAnError) {
  const auto model = *ModelBackend::open();
  const std::uint64_t most = AddressBook::kMaxRangePlaces * 2 * kMiB;
  EXPECT_EQ(model->reserve(most + 2 * kMiB).error().code, Code::kNoSpace);
  std::uint64_t ranges = 0;
  while (model->reserve(most)) ++ranges;
  EXPECT_EQ(ranges, 57343u);  // 2^63 - 2^60 bytes in ranges of 2^47, and a granule between two
  EXPECT_EQ(model->reserve(most).error().code, Code::kNoSpace);
  EXPECT_TRUE(model->reserve(kGiB));
}

TEST(ModelBackend, RefusesAGranularityThatIsNoPowerOfTwo) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, 3 * kMiB, std::uint64_t{1} << 61}) {
    const auto model = ModelBackend::open({.granularity_bytes = bytes});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, Code::kInvalidArgument);
  }
}

TEST(ModelBackend, AddsUpWhatManyThreadsDo) {
  const auto model = *ModelBackend::open({.costs = *find_cost_table("vattention_table3")});
  constexpr std::uint64_t kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  const Handle shared = *model->create(2 * kMiB);
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const Address range = *model->reserve(2 * kMiB);
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(model->map(range, shared));
        EXPECT_TRUE(model->unmap(range, 2 * kMiB));
      }
      EXPECT_TRUE(model->free_range(range));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(model->mapped_bytes(), 0u);
  EXPECT_EQ(model->counts().map, kThreads * kRounds);
  EXPECT_EQ(model->charged_ns(), 29'000 + kThreads * (2'000 + 1'000 + kRounds * (2'000 + 34'000)));
}

}  // namespace
}  // namespace cachalot::device_memory
