#include <cachalot/tier.h>
#include <gtest/gtest.h>

namespace cachalot {
namespace {

std::string refusal(std::string_view name, std::string_view value) {
  TieredCacheOptions options;
  const Status set = set_tier_option(options, name, value);
  return set ? "" : set.error().message;
}

TEST(TierOptions, EveryOptionIsSetByItsNameAndSayWhatItWants) {
  for (const TierOption& option : tier_options()) {
    // "page_head?" is no value of anything but texts that are checked when the tiers are made.
    const bool is_text = std::string_view(option.name).ends_with("_order") ||
                         std::string_view(option.name) == "host_layout";
    if (!is_text) {
      EXPECT_NE(refusal(option.name, "no such value").find(option.name), std::string::npos);
    }
    if (std::string_view(option.default_value) == "none" ||
        std::string_view(option.default_value) == "by the geometry")
      continue;
    EXPECT_EQ(refusal(option.name, option.default_value), "") << option.name;
  }
}

// A default in the table is the struct's.
TEST(TierOptions, DefaultsOfTheTableAreThoseOfTheStruct) {
  TieredCacheOptions options;
  for (const TierOption& option : tier_options()) {
    if (std::string_view(option.default_value) == "none" ||
        std::string_view(option.default_value) == "by the geometry")
      continue;
    ASSERT_TRUE(set_tier_option(options, option.name, option.default_value));
  }
  const TieredCacheOptions plain;
  EXPECT_EQ(options.host_ratio, plain.host_ratio);
  EXPECT_EQ(options.host_bytes, plain.host_bytes);
  EXPECT_EQ(options.host_layout, plain.host_layout);
  EXPECT_EQ(options.exclusive, plain.exclusive);
  EXPECT_EQ(options.writes, plain.writes);
  EXPECT_EQ(options.selective_uses, plain.selective_uses);
  EXPECT_EQ(options.prefetch.stop, plain.prefetch.stop);
  EXPECT_EQ(options.prefetch.threshold_tokens, plain.prefetch.threshold_tokens);
  EXPECT_EQ(options.prefetch.timeout_base_ns, plain.prefetch.timeout_base_ns);
  EXPECT_EQ(options.prefetch.timeout_per_ki_token_ns, plain.prefetch.timeout_per_ki_token_ns);
  EXPECT_EQ(options.fetch_threads, plain.fetch_threads);
  EXPECT_EQ(options.write_queue_bytes, plain.write_queue_bytes);
  EXPECT_EQ(options.shared_timeout_ns, plain.shared_timeout_ns);
  EXPECT_EQ(options.device_order, plain.device_order);
  EXPECT_EQ(options.host_order, plain.host_order);
  EXPECT_EQ(options.rank_timeout_ns, plain.rank_timeout_ns);
}

TEST(TierOptions, NamesAndValuesOfSglangAreKnown) {
  TieredCacheOptions options;
  ASSERT_TRUE(set_tier_option(options, "hicache-ratio", "2.5"));
  EXPECT_EQ(options.host_ratio, 2.5);
  ASSERT_TRUE(set_tier_option(options, "hicache_size", "3"));
  EXPECT_EQ(options.host_bytes, 3'000'000'000u);
  ASSERT_TRUE(set_tier_option(options, "hicache-write-policy", "write_back"));
  EXPECT_EQ(options.writes, TierWrites::kBack);
  ASSERT_TRUE(set_tier_option(options, "hicache-storage-prefetch-policy", "best_effort"));
  EXPECT_EQ(options.prefetch.stop, PrefetchStop::kBestEffort);
  ASSERT_TRUE(set_tier_option(options, "prefetch_timeout_per_ki_token", "0.1"));
  EXPECT_EQ(options.prefetch.timeout_per_ki_token_ns, 100'000'000u);
}

TEST(TierOptions, BadNamesAndValuesAreNamed) {
  EXPECT_NE(refusal("host_ration", "2").find("host_ratio, host_size"), std::string::npos);
  for (const char* value : {"", "two", "-1", "nan", "inf", "2x", "1e30"})
    EXPECT_NE(refusal("host_ratio", value).find("host_ratio is"), std::string::npos) << value;
  EXPECT_NE(refusal("selective_uses", "1.5").find("selective_uses"), std::string::npos);
  EXPECT_NE(refusal("exclusive", "yes").find("true|false"), std::string::npos);
  EXPECT_NE(refusal("host_size", "12 apples").find("host_size"), std::string::npos);
}

}  // namespace
}  // namespace cachalot
