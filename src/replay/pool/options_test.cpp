#include "replay/pool/options.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace cachalot::replay {
namespace {

ReplayOptions good() {
  ReplayOptions options;
  options.trace = "t";
  return options;
}

void expect_refused(const ReplayOptions& options, const std::string& named) {
  const Status status = check_options(options);
  ASSERT_FALSE(status) << named;
  EXPECT_EQ(status.error().code, Code::kInvalidArgument) << status.error().message;
  EXPECT_NE(std::string(status.error().message).find(named), std::string::npos)
      << status.error().message;
}

TEST(ReplayOptions, ThatAreInRangeAreTaken) {
  EXPECT_TRUE(check_options(good()));
}

TEST(ReplayOptions, OutOfRangeAreRefusedByName) {
  ReplayOptions options = good();
  options.engines = 0;
  expect_refused(options, "engines: 0");
  options.engines = kMaxEngines + 1;
  expect_refused(options, "engines: 65");
  options = good();
  options.capacity_blocks = 0;
  expect_refused(options, "capacity_blocks: 0");
  options.capacity_blocks = std::uint64_t{1} << 63;
  expect_refused(options, "capacity_blocks: 9223372036854775808");
  options = good();
  options.block_bytes = 100;
  expect_refused(options, "block_bytes: 100");
  options.block_bytes = 0;
  expect_refused(options, "block_bytes: 0");
  options = good();
  options.block_tokens = 0;
  expect_refused(options, "block_tokens: 0");
  options = good();
  options.policy = "worst";
  expect_refused(options, "worst");
  options = good();
  options.trace = "";
  expect_refused(options, "trace");
  options = good();
  options.speed = -1;
  expect_refused(options, "speed: -1");
  options.speed = std::numeric_limits<double>::infinity();
  expect_refused(options, "speed: inf");
  options = good();
  options.passes = 0;
  expect_refused(options, "passes: 0");
  options.passes = kMaxPasses + 1;
  expect_refused(options, "passes: 9");
  options = good();
  options.devices = 0;
  EXPECT_FALSE(check_options(options));
}

TEST(ReplayOptions, ThatNoMemoryCouldHoldAreRefusedWithoutOverflow) {
  ReplayOptions options = good();
  options.block_bytes = std::uint64_t{1} << 62;
  EXPECT_FALSE(check_options(options));
  options.capacity_blocks = std::uint64_t{1} << 31;
  EXPECT_FALSE(check_options(options));
}

TEST(ReplayOptions, LeaveRoomForWhatAllEnginesMayHoldBesideTheCapacity) {
  ReplayOptions options = good();
  options.engines = 3;
  options.capacity_blocks = 10;
  for (const std::uint64_t bytes : {64u, 65536u, 1u << 20, 1u << 26}) {
    options.block_bytes = bytes;
    const Result<pool::Geometry> geometry = pool_geometry(options);
    ASSERT_TRUE(geometry) << geometry.error().message;
    EXPECT_EQ(geometry->capacity_blocks, 10u);
    EXPECT_GE(geometry->blocks, 10u + 3 * 2 * grant_target(bytes));
  }
  EXPECT_LT(grant_target(1u << 26), grant_target(64));
}

TEST(ReplayOptions, WhichChangeWhatABlockHoldsChangeTheFingerprint) {
  ReplayOptions options = good();
  const std::string before = fingerprint(options);
  options.seed = 2;
  EXPECT_NE(fingerprint(options), before);
  options = good();
  options.model = "some model";
  EXPECT_NE(fingerprint(options), before);
  options = good();
  options.capacity_blocks = 5;
  EXPECT_EQ(fingerprint(options), before);
}

}  // namespace
}  // namespace cachalot::replay
