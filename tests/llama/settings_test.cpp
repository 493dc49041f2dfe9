#include "preload/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cachalot::llama {
namespace {

using Variables = std::map<std::string, std::string>;

Result<std::optional<Settings>> read(const Variables& variables) {
  return read_settings([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

TEST(Settings, AreOffWithoutAPool) {
  for (const Variables& variables :
       {Variables{}, {{"CACHALOT_POOL", ""}}, {{"CACHALOT_BLOCK_TOKENS", "x"}}}) {
    const auto settings = read(variables);
    ASSERT_TRUE(settings) << settings.error().message;
    EXPECT_FALSE(settings->has_value());
  }
}

TEST(Settings, NeedThePoolAlone) {
  const auto settings = read({{"CACHALOT_POOL", "/dev/shm/kv"}});
  ASSERT_TRUE(settings && settings->has_value());
  EXPECT_EQ((*settings)->cache.pool, std::vector<std::string>{"/dev/shm/kv"});
  EXPECT_EQ((*settings)->cache.block_tokens, 64u);
  EXPECT_EQ((*settings)->cache.flight_wait_ns, 30'000'000'000u);
  EXPECT_FALSE((*settings)->is_verbose);
}

TEST(Settings, TakeAllThatIsSaid) {
  const auto settings = read({{"CACHALOT_POOL", "/a,/b"},
                              {"CACHALOT_BLOCK_TOKENS", "32"},
                              {"CACHALOT_HOST", "2"},
                              {"CACHALOT_SALT", "s"},
                              {"CACHALOT_FLIGHT_WAIT_MS", "0"},
                              {"CACHALOT_VERBOSE", "1"}});
  ASSERT_TRUE(settings && settings->has_value());
  EXPECT_EQ((*settings)->cache.pool, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ((*settings)->cache.block_tokens, 32u);
  EXPECT_EQ((*settings)->cache.host, 2u);
  EXPECT_EQ((*settings)->cache.origin.salt, "s");
  EXPECT_EQ((*settings)->cache.flight_wait_ns, 0u);
  EXPECT_TRUE((*settings)->is_verbose);
}

TEST(Settings, ThatCannotBeAreNamed) {
  const Variables bad = {{"CACHALOT_BLOCK_TOKENS", "1"},
                         {"CACHALOT_HOST", "-1"},
                         {"CACHALOT_FLIGHT_WAIT_MS", "1s"},
                         {"CACHALOT_VERBOSE", "yes"},
                         {"CACHALOT_POOL", "/a,,/b"}};
  for (const auto& [name, value] : bad) {
    Variables variables = {{"CACHALOT_POOL", "/a"}};
    variables[name] = value;
    const auto settings = read(variables);
    ASSERT_FALSE(settings) << name;
    EXPECT_EQ(settings.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(settings.error().message).find(name + " is \"" + value + "\""),
              std::string::npos)
        << settings.error().message;
  }
}

}  // namespace
}  // namespace cachalot::llama
