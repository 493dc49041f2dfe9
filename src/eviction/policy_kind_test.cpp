#include "eviction/policy_kind.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::eviction {
namespace {

TEST(PolicyNames, AreReadBack) {
  for (const char* name :
       {"lru", "fifo", "lfu", "length_aware", "hit_density", "s3fifo", "arc", "wtinylfu", "opt"}) {
    const Result<PolicyKind> kind = parse_policy(name);
    ASSERT_TRUE(kind) << name;
    EXPECT_STREQ(policy_name(*kind), name);
  }
}

TEST(PolicyNames, AnUnknownOneIsAnErrorThatListsTheKnownOnes) {
  const Result<PolicyKind> kind = parse_policy("mru");
  ASSERT_FALSE(kind);
  EXPECT_EQ(kind.error().code, Code::kInvalidArgument);
  EXPECT_EQ(
      std::string(kind.error().message),
      "policy \"mru\" is unknown, expected one of: lru, fifo, lfu, length_aware, hit_density, "
      "s3fifo, arc, wtinylfu, opt");
}

TEST(PolicyNames, APoolHasThoseThatAreOnlineAndKnowLeaves) {
  for (const char* name : {"lru", "fifo", "lfu", "length_aware", "hit_density"}) {
    EXPECT_TRUE(parse_pool_policy(name)) << name;
  }
  const std::string expected = ", expected one of: " + pool_policy_names();
  for (const auto& [name, why] :
       {std::pair{"arc", "exists in stream mode only"},
        std::pair{"s3fifo", "exists in stream mode only"},
        std::pair{"wtinylfu", "exists in stream mode only"},
        std::pair{"opt", "needs to know the future"}, std::pair{"", "is unknown"}}) {
    const Result<PolicyKind> kind = parse_pool_policy(name);
    ASSERT_FALSE(kind) << name;
    EXPECT_EQ(std::string(kind.error().message),
              std::string("policy \"") + name + "\" " + why + expected);
  }
}

TEST(CacheModeNames, AreReadBack) {
  EXPECT_EQ(*parse_cache_mode("stream"), CacheMode::kStream);
  EXPECT_EQ(*parse_cache_mode("leaf"), CacheMode::kLeaf);
  EXPECT_STREQ(parse_cache_mode("tree").error().message,
               "mode: tree is unknown, expected stream or leaf");
}

}  // namespace
}  // namespace cachalot::eviction
