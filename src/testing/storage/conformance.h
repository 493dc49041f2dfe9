// The fixture of the suite that every backend passes. A backend's own test says how it is opened:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, BackendConformance, ::testing::Values(BackendUnderTest{"mine", open_mine}),
//                            name_of_backend);
//
// The tests themselves are in src/storage/conformance_test.cpp, which the test program compiles, too.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "testing/os/scratch_folder.h"
#include "testing/storage/chains.h"

namespace cachalot::storage {

struct BackendUnderTest {
  std::string name;
  // Opens the storage at a folder of the test's. Twice: the same storage, as after a restart.
  std::function<Result<std::unique_ptr<Backend>>(const std::string& folder)> open;
  bool lists_in_order = false;
  // What the folder may hold after twice as much was put and removed.
  std::uint64_t most_bytes = 8u << 20;
};

inline void PrintTo(const BackendUnderTest& backend, std::ostream* to) {
  *to << backend.name;
}

class BackendConformance : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { open(); }
  void open() {
    backend_.reset();
    Result<std::unique_ptr<Backend>> opened = GetParam().open(folder_);
    if (!opened && opened.error().code == Code::kUnsupported)
      GTEST_SKIP() << opened.error().message;  // its server is not installed
    ASSERT_TRUE(opened) << opened.error().message;
    backend_ = *std::move(opened);
  }
  bool is_there(const ObjectKey& key) {
    bool there = false;
    EXPECT_TRUE(backend_->exists({&key, 1}, {&there, 1}, soon()));
    return there;
  }
  std::vector<ObjectKey> listed() {
    std::vector<ObjectKey> keys;
    const Status listed = backend_->list(
        [&](const ObjectHead& head) {
          keys.push_back(head.key);
          return true;
        },
        soon());
    EXPECT_TRUE(listed) << listed.error().message;
    return keys;
  }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<Backend> backend_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendConformance);

inline std::string name_of_backend(const ::testing::TestParamInfo<BackendUnderTest>& info) {
  return info.param.name;
}

}  // namespace cachalot::storage
