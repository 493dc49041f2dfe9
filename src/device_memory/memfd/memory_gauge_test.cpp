#include "device_memory/memfd/memory_gauge.h"

#include <gtest/gtest.h>

#include <cstring>

namespace cachalot::device_memory {
namespace {

TEST(MemoryGauge, RefusesWhatTheMachineHasNotAndSaysWhatItHas) {
  MemoryGauge gauge(100, [] { return os::AvailableMemory{1000, "control group /jobs"}; });
  EXPECT_TRUE(gauge.begin(900));
  gauge.end(900);
  const Status refused = gauge.begin(901);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(refused.error().detail, 900u);
  for (const char* part : {"901 bytes", "control group /jobs", "1000 left", "100 are spared"}) {
    EXPECT_NE(std::strstr(refused.error().message, part), nullptr) << refused.error().message;
  }
}

TEST(MemoryGauge, CountsWhatIsBeingMadeAsTaken) {
  MemoryGauge gauge(0, [] { return os::AvailableMemory{1000, "this machine"}; });
  EXPECT_TRUE(gauge.begin(600));
  EXPECT_FALSE(gauge.begin(600));
  gauge.end(600);
  EXPECT_TRUE(gauge.begin(600));
}

TEST(MemoryGauge, AsksTheSystemForEveryEighthOfWhatIsLeft) {
  int looks = 0;
  MemoryGauge gauge(0, [&] {
    ++looks;
    return os::AvailableMemory{8000, "this machine"};
  });
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(gauge.begin(100));
    gauge.end(100);
  }
  // Three eighths were taken; a slow machine looks more often, by the clock.
  EXPECT_GE(looks, 3);
  EXPECT_LE(looks, 30);
}

TEST(MemoryGauge, NothingIsLeftWhereTheSparedPartIsAllThereIs) {
  MemoryGauge gauge(2000, [] { return os::AvailableMemory{1000, "this machine"}; });
  EXPECT_FALSE(gauge.begin(1));
}

}  // namespace
}  // namespace cachalot::device_memory
