#include "storage/backends.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing/os/scratch_folder.h"
#include "testing/storage/chains.h"

namespace cachalot::storage {
namespace {

class BackendsTest : public ::testing::Test {
 protected:
  // "" if it opens.
  std::string refusal(const std::string& text, const BackendSecrets& secrets = {}) {
    const Result<std::unique_ptr<Backend>> opened = open_backend(text, secrets);
    if (opened) return "";
    code_ = opened.error().code;
    return opened.error().message;
  }
  bool is_empty() const { return std::filesystem::is_empty(folder_); }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  Code code_{};
};

bool says(const std::string& message, std::string_view text) {
  return message.find(text) != std::string::npos;
}

TEST_F(BackendsTest, AnUnknownKindIsRefusedWithTheKnownOnes) {
  const std::string message = refusal("ftp://host/kv");
  EXPECT_EQ(code_, Code::kInvalidArgument);
  EXPECT_TRUE(says(
      message,
      "unknown kind \"ftp\"; known: file, rocksdb, redis, rediss, valkey, valkeys, redis+unix"))
      << message;
  EXPECT_TRUE(says(refusal("/ssd/kv"), "expected KIND:PLACE"));
  EXPECT_TRUE(says(refusal(""), "expected KIND:PLACE"));
}

TEST_F(BackendsTest, EachParameterIsCheckedAndNothingIsLeftBehind) {
  const std::string file = "file:" + folder_ + "/kv";
  EXPECT_TRUE(says(refusal(file + "?snyc=1"), "unknown parameter \"snyc\"; known: sync"));
  EXPECT_TRUE(says(refusal(file + "?sync=yes"), "sync is \"yes\", expected a number from 0 to 1"));
  EXPECT_TRUE(says(refusal(file + "?sync"), "\"sync\" is not NAME=VALUE"));
  EXPECT_TRUE(says(refusal(file + "?sync=1&sync=1"), "the parameter sync twice"));
  EXPECT_TRUE(says(refusal("file:"), "names no path"));
  EXPECT_TRUE(says(refusal("file:/a%zz"), "two hexadecimal digits"));
  EXPECT_TRUE(says(refusal("null:?a=1"), "expected none"));
  EXPECT_TRUE(says(refusal("null:/x"), "expected nothing after null:"));
  EXPECT_TRUE(is_empty());
}

TEST_F(BackendsTest, ACheckRefusesWhatOpeningWouldAndOpensNothing) {
  const auto check = [](const std::string& text) {
    const Status checked = check_backend(text, {.s3_access_key = "k", .s3_secret_key = "s"});
    return checked ? std::string() : std::string(checked.error().message);
  };
  const std::string file = "file:" + folder_ + "/kv";
  for (const std::string& text : {file, file + "?shared=1&limit=1MiB", std::string("null:")})
    EXPECT_EQ(check(text), "");
  EXPECT_TRUE(says(check("file:"), "names no path"));
  EXPECT_TRUE(says(check(file + "?sync=yes"), "sync is \"yes\""));
  EXPECT_TRUE(says(check(file + "?shared=1&limit=5"), "at least 1MiB"));
  EXPECT_TRUE(says(check("null:/x"), "expected nothing after null:"));
  EXPECT_TRUE(is_empty());
}

TEST_F(BackendsTest, APasswordIsNotInTheMessages) {
  const std::string message = refusal("redis://user:s3cr3t@host:1?clutser=1");
  EXPECT_TRUE(says(message, "user:…@host")) << message;
  EXPECT_FALSE(says(message, "s3cr3t")) << message;
}

TEST_F(BackendsTest, FileAndNullAreOpenedByTheirText) {
  {
    const auto file = open_backend("file:" + folder_ + "/a%20b?sync=1&min_free_bytes=0", {});
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/a b/cachalot-storage"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/a b"));  // nothing was put into it
  Result<std::unique_ptr<Backend>> null = open_backend("null:", {});
  ASSERT_TRUE(null);
  Chain chain(1, 2, 4096);
  EXPECT_EQ(put_all(**null, chain), 2u);
  EXPECT_EQ(get_all(**null, chain), std::vector<bool>(2, false));
}

TEST_F(BackendsTest, EveryKindHasAFormAndAnOpener) {
  for (const BackendKind& kind : backend_kinds()) {
    EXPECT_EQ(std::string(kind.form).find(std::string(kind.scheme) + ":"), 0u) << kind.form;
    EXPECT_NE(kind.open, nullptr) << kind.form;
  }
}

TEST_F(BackendsTest, AKeyFileThatIsNoneIsNamedAndNothingIsMade) {
  const std::string path = folder_ + "/key", storage = "file:" + folder_ + "/kv";
  const auto try_key = [&](const std::string& content, mode_t mode) {
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    const std::string message = refusal(storage, {.key_file = path});
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/kv"));
    return message;
  };
  EXPECT_TRUE(says(refusal(storage, {.key_file = path}), "No such file")) << "absent";
  EXPECT_TRUE(says(try_key(std::string(31, 'k'), 0600), "holds 31 bytes, expected 32 bytes or 64"));
  EXPECT_TRUE(says(try_key(std::string(33, 'k'), 0600), "holds 33 bytes"));
  EXPECT_TRUE(says(try_key("", 0600), "holds 0 bytes"));
  EXPECT_TRUE(says(try_key(std::string(4096, 'a'), 0600), "holds at least 80 bytes"));
  EXPECT_TRUE(says(try_key(std::string(63, 'a') + "g", 0600), "holds 64 bytes"));
  EXPECT_TRUE(says(try_key(std::string(32, 'k'), 0644), "has mode 0644"));
  EXPECT_EQ(code_, Code::kPermission);
  EXPECT_EQ(try_key(std::string(32, 'k'), 0600), "");
  EXPECT_EQ(try_key(std::string(64, 'A') + "\n", 0640), "");
}

}  // namespace
}  // namespace cachalot::storage
