// A test with a folder of its own in /dev/shm, where it may mount.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <string>

#include "testing/os/scratch_folder.h"

namespace cachalot::os {

class ShmFolder : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return scratch_.path(name); }
  // False: this user may not mount.
  bool mount_here(const char* type, const char* options) const {
    return mount("none", folder_.c_str(), type, 0, options) == 0;
  }

  const ScratchFolder scratch_{"/dev/shm"};
  const std::string folder_ = scratch_.path();
};

}  // namespace cachalot::os
