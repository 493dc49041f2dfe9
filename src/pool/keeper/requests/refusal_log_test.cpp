#include "pool/keeper/requests/refusal_log.h"

#include <gtest/gtest.h>

#include <string>

#include "base/log.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

class RefusalLogTest : public testing::Test {
 protected:
  RefusalLogTest() { base::set_log_level(base::LogLevel::kWarn); }
  ~RefusalLogTest() override { base::set_log_level(base::LogLevel::kOff); }

  // What it says at this time, without the time of day.
  std::string told(std::uint64_t at_s) {
    testing::internal::CaptureStderr();
    log_.tell(counters_, at_s * kSecond);
    const std::string line = testing::internal::GetCapturedStderr();
    return line.empty() ? line : line.substr(line.find("refused"));
  }

  RefusalLog log_;
  KeeperCounters counters_;
};

TEST_F(RefusalLogTest, SaysWhatWasRefusedByReasonAtMostOnceAMinute) {
  EXPECT_EQ(told(1), "");
  counters_[KeeperCounter::kNoSpaceCommits] = 2;
  counters_[KeeperCounter::kCommits] = 7;
  EXPECT_EQ(told(2),
            "refused since the last such line: 2 blocks: no room, and no other block can be "
            "evicted (pins, stores in flight)\n");
  counters_[KeeperCounter::kNoSpaceCommits] = 5;
  counters_[KeeperCounter::kOverLimitGrants] = 1;
  EXPECT_EQ(told(61), "");
  EXPECT_EQ(told(62),
            "refused since the last such line: 3 blocks: no room, and no other block can be "
            "evicted (pins, stores in flight); 1 grants: the client holds as many as it may\n");
  EXPECT_EQ(told(200), "");
}

}  // namespace
}  // namespace cachalot::pool
