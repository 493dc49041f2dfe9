#include "storage/plugin/plugin_backend.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "storage/backends.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

Result<std::unique_ptr<Backend>> open_folder(const std::string& folder) {
  return open_backend("plugin:" CACHALOT_PLUGIN_FOLDER "?folder=" + folder + "/values", {});
}

INSTANTIATE_TEST_SUITE_P(Plugin, BackendConformance,
                         ::testing::Values(BackendUnderTest{"plugin_folder", open_folder}),
                         name_of_backend);

class PluginRig final : public FaultRig {
 public:
  explicit PluginRig(std::string folder) : folder_(std::move(folder)) {}
  static std::unique_ptr<FaultRig> make(const std::string& folder) {
    return std::make_unique<PluginRig>(folder);
  }
  static std::unique_ptr<FaultRig> make_small(const std::string& folder) {
    return mount_memory(folder, 16u << 20) ? make(folder) : nullptr;
  }
  Result<std::unique_ptr<Backend>> open() override { return open_folder(folder_); }
  void begin(Fault) override { fill_up(folder_ + "/filler"); }
  void end(Fault) override { std::filesystem::remove(folder_ + "/filler"); }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    const Bytes body(chain.data(i), chain.bytes());
    std::string file = "values";
    if (fault == Fault::kBitFlipped) file = overwrite_bytes(folder_, body, {});
    if (fault == Fault::kTruncated) file = cut_off(folder_, body);
    EXPECT_NE(file, "");
    if (fault == Fault::kSwapped) {
      std::filesystem::copy_file(path(other.key(0)), path(chain.key(i)),
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }

 private:
  // The example writes the bytes of a key, lowest first.
  std::string path(const ObjectKey& key) const {
    std::string name;
    for (const std::byte byte : std::as_bytes(std::span(&key, 1))) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
      name += digits;
    }
    return folder_ + "/values/" + name;
  }
  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Plugin, StorageFull,
                         ::testing::Values(RigUnderTest{"plugin", PluginRig::make_small,
                                                        Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(
    Plugin, StorageDamage,
    ::testing::Values(RigUnderTest{"plugin", PluginRig::make, Fault::kBitFlipped},
                      RigUnderTest{"plugin", PluginRig::make, Fault::kTruncated},
                      RigUnderTest{"plugin", PluginRig::make, Fault::kSwapped}),
    name_of_rig);

std::string refusal(const std::string& text, Code code) {
  const Result<std::unique_ptr<Backend>> opened = open_backend(text, {});
  if (opened) return "";
  EXPECT_EQ(opened.error().code, code) << opened.error().message;
  return opened.error().message;
}
bool says(const std::string& message, std::string_view text) {
  return message.find(text) != std::string::npos;
}

TEST(PluginTest, WhatIsNoPluginIsNamed) {
  const os::ScratchFolder folder;
  const std::string file = folder.path("lib.so");
  EXPECT_TRUE(says(refusal("plugin:" + file, Code::kNotFound), file));
  std::ofstream(file) << "text";
  EXPECT_TRUE(says(refusal("plugin:" + file, Code::kInvalidArgument), "not a shared library"));
  EXPECT_TRUE(says(refusal("plugin:", Code::kInvalidArgument), "names no path"));
  EXPECT_TRUE(says(refusal("plugin:/lib/x86_64-linux-gnu/libz.so.1", Code::kInvalidArgument),
                   "does not export cachalot_storage_plugin"));
}

TEST(PluginTest, AWrongTableIsRefused) {
  const std::string text = "plugin:" CACHALOT_PLUGIN_WRONG;
  const auto with = [&](const char* wrong, Code code) {
    ::setenv("CACHALOT_TEST_WRONG", wrong, 1);
    return refusal(text, code);
  };
  EXPECT_TRUE(says(with("null", Code::kInvalidArgument), "table is null"));
  EXPECT_TRUE(says(with("version", Code::kVersionMismatch), "version 2, expected 1"));
  EXPECT_TRUE(says(with("size", Code::kVersionMismatch), "a table of 72 bytes, expected 80"));
  EXPECT_TRUE(says(with("name", Code::kInvalidArgument), "no name of lower-case"));
  EXPECT_TRUE(says(with("function", Code::kInvalidArgument), "null functions"));
  EXPECT_TRUE(says(with("open", Code::kIo), "storage plug-in wrong: xxxx"));
}

TEST(PluginTest, WrongOptionsAreThePluginsToRefuse) {
  EXPECT_TRUE(says(refusal("plugin:" CACHALOT_PLUGIN_FOLDER "?fodler=/x", Code::kInvalidArgument),
                   "expected folder=PATH"));
  for (const char* limit : {"&read_mb_s=", "&read_mb_s=0", "&read_mb_s=5x", "&read_mb=5"}) {
    EXPECT_TRUE(says(refusal(std::string("plugin:" CACHALOT_PLUGIN_FOLDER "?folder=/x") + limit,
                             Code::kInvalidArgument),
                     "read_mb_s=1 to 1000000"));
  }
  EXPECT_TRUE(says(refusal("plugin:" CACHALOT_PLUGIN_FOLDER "?folder=/no/such/folder", Code::kIo),
                   "No such file or directory"));
}

TEST(PluginTest, ACallAfterItsDeadlineIsATimeout) {
  const os::ScratchFolder folder;
  Result<std::unique_ptr<Backend>> backend = open_folder(folder.path());
  ASSERT_TRUE(backend);
  const Chain chain(1, 1, 4096);
  const std::vector<Bytes> body = chain.body(0);
  Put put{chain.head(0), body};
  ASSERT_TRUE((*backend)->put({&put, 1}, 1));
  ASSERT_FALSE(put.status);
  EXPECT_EQ(put.status.error().code, Code::kTimeout);
}

// Keepers in containers on one shared folder have the same process number.
TEST(PluginTest, AValueThatAProcessOfTheSameNumberWritesIsLeftAlone) {
  const os::ScratchFolder folder;
  Result<std::unique_ptr<Backend>> backend = open_folder(folder.path());
  ASSERT_TRUE(backend);
  const std::string other = folder.path("values/new." + std::to_string(getpid()) + ".0");
  std::ofstream(other) << "half a value";
  Chain chain(1, 2, 4096);
  EXPECT_EQ(put_all(**backend, chain), 2u);
  EXPECT_EQ(get_all(**backend, chain), (std::vector<bool>{true, true}));
  std::string text;
  std::getline(std::ifstream(other), text);
  EXPECT_EQ(text, "half a value");
}

}  // namespace
}  // namespace cachalot::storage
