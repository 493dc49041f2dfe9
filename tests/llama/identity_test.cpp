#include "identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace cachalot::llama {
namespace {

class Files : public testing::Test {
 protected:
  Files()
      : folder_(std::filesystem::temp_directory_path() /
                ("cachalot_identity." + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
    return folder_ / name;
  }
  std::filesystem::path folder_;
};

std::string digest(const std::vector<std::string>& files) {
  const auto result = digest_of_files(files);
  return result ? *result : result.error().message;
}

TEST_F(Files, AreToldApartByContentAndByWhereOneEnds) {
  const std::string ab = write("ab", "ab"), c = write("c", "c"), a = write("a", "a"),
                    bc = write("bc", "bc");
  EXPECT_EQ(digest({ab}).size(), 64u);
  EXPECT_EQ(digest({ab, c}), digest({write("other name", "ab"), c}));
  EXPECT_NE(digest({ab, c}), digest({a, bc}));
  EXPECT_NE(digest({ab, c}), digest({c, ab}));
  EXPECT_NE(digest({ab}), digest({ab, write("empty", "")}));
}

TEST_F(Files, ThatAreNotThereAreNamed) {
  const std::string missing = folder_ / "missing";
  const auto result = digest_of_files({&missing, 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::kNotFound);
  EXPECT_NE(std::string(result.error().message).find("missing"), std::string::npos);
  const std::string folder = folder_;
  EXPECT_FALSE(digest_of_files({&folder, 1}));
}

TEST(SplitModels, HaveAllTheirFilesAndOthersOne) {
  const std::vector<std::string> all = {"/m/x-00001-of-00003.gguf", "/m/x-00002-of-00003.gguf",
                                        "/m/x-00003-of-00003.gguf"};
  EXPECT_EQ(split_model_files(all[0]), all);
  for (const char* one :
       {"/m/x.gguf", "/m/x-00002-of-00003.gguf", "/m/x-of-1.gguf", "x-00001-of-00000.gguf", ""}) {
    EXPECT_EQ(split_model_files(one), std::vector<std::string>{one});
  }
}

}  // namespace
}  // namespace cachalot::llama
