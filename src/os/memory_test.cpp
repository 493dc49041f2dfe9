#include "os/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cachalot::os {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// A made-up /proc and /sys.
class Memory : public testing::Test {
 protected:
  Memory()
      : root_(std::filesystem::temp_directory_path() /
              ("cachalot_memory." + std::to_string(getpid()))) {
    write("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 102400 kB\nSwapFree: 1024 kB\n");
  }
  ~Memory() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
  }
  AvailableMemory available() const { return available_memory(root_); }
  std::filesystem::path root_;
};

TEST_F(Memory, IsWhatTheMachineHasWhereNoGroupLimitsIt) {
  EXPECT_EQ(available().bytes, 101 * kMiB);
  EXPECT_EQ(available().limited_by, "this machine");
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.current", "1048576\n");
  EXPECT_EQ(available().bytes, 101 * kMiB);
}

TEST_F(Memory, IsWhatTheNarrowestGroupAboveHasLeft) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/memory.max", std::to_string(50 * kMiB));
  write("sys/fs/cgroup/a/memory.current", std::to_string(30 * kMiB));
  write("sys/fs/cgroup/a/memory.stat", "anon 5\nactive_file " + std::to_string(2 * kMiB) +
                                           "\ninactive_file " + std::to_string(3 * kMiB) + "\n");
  write("sys/fs/cgroup/a/b/memory.max", std::to_string(60 * kMiB));
  write("sys/fs/cgroup/a/b/memory.current", std::to_string(1 * kMiB));
  EXPECT_EQ(available().bytes, 25 * kMiB);
  EXPECT_EQ(available().limited_by, "control group /a");
  // One that is over its limit has nothing.
  write("sys/fs/cgroup/a/b/memory.current", std::to_string(61 * kMiB));
  EXPECT_EQ(available().bytes, 0u);
}

TEST_F(Memory, IsLimitedByGroupsOfVersionOneAndByAContainersRoot) {
  write("proc/self/cgroup", "5:cpu,memory:/docker/abc\n1:name=systemd:/x\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(40 * kMiB));
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(10 * kMiB));
  write("sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file " + std::to_string(1 * kMiB) + "\n");
  EXPECT_EQ(available().bytes, 31 * kMiB);
  EXPECT_EQ(available().limited_by, "control group /");
}

TEST_F(Memory, IsWithoutALimitWhereNothingSaysHowMuchThereIs) {
  std::filesystem::remove_all(root_);
  EXPECT_EQ(available().bytes, ~std::uint64_t{0});
}

TEST(ThisMachine, HasSomeMemoryLeft) {
  EXPECT_GT(available_memory().bytes, kMiB);
}

}  // namespace
}  // namespace cachalot::os
