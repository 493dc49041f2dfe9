// A folder of its own in /dev/shm for a test's files; removed at the end, with what is mounted on it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace cachalot::os {

class ShmFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/cachalot_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(folder_);
  }

  std::string path(const char* name) const { return folder_ + "/" + name; }
  // False: this user may not mount.
  bool mount_here(const char* type, const char* options) {
    mounted_ = mount("none", folder_.c_str(), type, 0, options) == 0;
    return mounted_;
  }

  std::string folder_;

 private:
  bool mounted_ = false;
};

}  // namespace cachalot::os
