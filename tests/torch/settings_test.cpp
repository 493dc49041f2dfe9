// What the environment can say to libcachalot_torch.so.
#include "settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cachalot::torch {
namespace {

Result<Settings> read(const std::map<std::string, std::string>& variables) {
  return read_settings([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(TorchSettings, AreTheAllocatorsDefaultsWhereNothingIsSet) {
  const Settings settings = *read({});
  EXPECT_EQ(settings.limit_bytes, 0u);
  EXPECT_EQ(settings.stitch.frag_limit_bytes, stitch::StitchOptions{}.frag_limit_bytes);
  EXPECT_TRUE(settings.peers.empty());
  EXPECT_FALSE(settings.rdma);
}

TEST(TorchSettings, AreReadAsTheCommandLineReadsSizes) {
  const Settings settings = *read({{"CACHALOT_TORCH_LIMIT", "60GiB"},
                                   {"CACHALOT_TORCH_FRAG_LIMIT", "8MiB"},
                                   {"CACHALOT_TORCH_STITCHED_LIMIT", "1TiB"},
                                   {"CACHALOT_TORCH_SMALL_REQUEST", "1048576"},
                                   {"CACHALOT_TORCH_PEERS", "0,3,12"},
                                   {"CACHALOT_TORCH_RDMA", "1"}});
  EXPECT_EQ(settings.limit_bytes, std::uint64_t{60} << 30);
  EXPECT_EQ(settings.stitch.frag_limit_bytes, std::uint64_t{8} << 20);
  EXPECT_EQ(settings.stitch.stitched_limit_bytes, std::uint64_t{1} << 40);
  EXPECT_EQ(settings.stitch.small_request_bytes, std::uint64_t{1} << 20);
  EXPECT_EQ(settings.peers, (std::vector<int>{0, 3, 12}));
  EXPECT_TRUE(settings.rdma);
}

TEST(TorchSettings, BadValuesAreErrorsThatNameTheVariableAndTheValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"CACHALOT_TORCH_LIMIT", "60 GiB"},     {"CACHALOT_TORCH_LIMIT", ""},
      {"CACHALOT_TORCH_LIMIT", "1048576"},    {"CACHALOT_TORCH_FRAG_LIMIT", "-1"},
      {"CACHALOT_TORCH_STITCHED_LIMIT", "x"}, {"CACHALOT_TORCH_SMALL_REQUEST", "2097153"},
      {"CACHALOT_TORCH_PEERS", "0,"},         {"CACHALOT_TORCH_PEERS", "0;1"},
      {"CACHALOT_TORCH_PEERS", "-1"},         {"CACHALOT_TORCH_PEERS", "all"},
      {"CACHALOT_TORCH_RDMA", "yes"}};
  for (const auto& [name, value] : cases) {
    const auto settings = read({{name, value}});
    ASSERT_FALSE(settings) << name << "=" << value;
    EXPECT_EQ(settings.error().code, Code::kInvalidArgument);
    const std::string message = settings.error().message;
    EXPECT_EQ(message.find(name), 0u) << message;
    EXPECT_NE(message.find(value), std::string::npos) << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace cachalot::torch
