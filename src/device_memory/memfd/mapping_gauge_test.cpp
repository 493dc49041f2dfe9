#include "device_memory/memfd/mapping_gauge.h"
#include "testing/os/scratch_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace cachalot::device_memory {
namespace {

// A /proc in which the process has so many mappings.
class ProcFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ + "/proc/sys/vm");
    std::filesystem::create_directories(root_ + "/proc/self");
    std::ofstream(root_ + "/proc/sys/vm/max_map_count") << 1600 << '\n';
  }
  void set_count(int count) {
    std::ofstream maps(root_ + "/proc/self/maps");
    for (int i = 0; i < count; ++i) maps << "7f0000000000-7f0000200000 ---p 00000000 00:00 0\n";
  }

  const os::ScratchFolder scratch_;
  const std::string root_ = scratch_.path();
};

TEST_F(ProcFolder, IsFullASixteenthBeforeTheKernelIs) {
  set_count(1499);
  EXPECT_FALSE(MappingGauge(root_).admit("map"));
  set_count(1498);
  MappingGauge gauge(root_);
  EXPECT_TRUE(gauge.admit("map"));
}

TEST_F(ProcFolder, SaysHowManyThereAreAndMayBe) {
  set_count(1500);
  const Status refused = MappingGauge(root_).admit("map");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(refused.error().detail, 1600u);
  for (const char* part : {"map: ", "1500 mappings", "allows 1600", "vm.max_map_count"}) {
    EXPECT_NE(std::strstr(refused.error().message, part), nullptr) << refused.error().message;
  }
}

// Each call may add two, and others may add as many: the next count must come in time.
TEST_F(ProcFolder, CountsAgainBeforeTheCallsCanHaveFilledIt) {
  set_count(1100);
  MappingGauge gauge(root_);
  ASSERT_TRUE(gauge.admit("map"));
  set_count(1500);
  int calls = 1;
  while (gauge.admit("map")) ++calls;
  EXPECT_LE(calls * 2, 1500 - 1100);
  EXPECT_GT(calls, 50);
}

TEST_F(ProcFolder, CallsThatGiveBackBringTheNextCountNearerAndAreNotRefused) {
  set_count(1100);
  MappingGauge gauge(root_);
  ASSERT_TRUE(gauge.admit("map"));
  for (int i = 0; i < 200; ++i) gauge.note();
  set_count(1500);
  EXPECT_FALSE(gauge.admit("map"));
  set_count(1100);
  EXPECT_TRUE(gauge.admit("map"));
}

TEST(MappingGauge, AdmitsInAProcessLikeThisOne) {
  EXPECT_TRUE(MappingGauge().admit("map"));
}

}  // namespace
}  // namespace cachalot::device_memory
