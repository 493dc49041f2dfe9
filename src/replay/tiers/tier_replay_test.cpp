#include "replay/tiers/tier_replay.h"

#include <gtest/gtest.h>

namespace cachalot::replay {
namespace {

std::vector<std::uint64_t> request(std::uint64_t first, std::size_t blocks) {
  std::vector<std::uint64_t> ids(blocks);
  for (std::size_t i = 0; i < blocks; ++i) ids[i] = first + i;
  return ids;
}

TierReplayCounts replay(const TierReplayOptions& options) {
  Result<TierReplay> replay = TierReplay::make(options);
  EXPECT_TRUE(replay) << (replay ? "" : replay.error().message);
  for (int round = 0; round < 4; ++round) {
    for (std::uint64_t prompt = 0; prompt < 6; ++prompt)
      EXPECT_TRUE(replay->add(request(prompt * 100, 10), 10 * 512));
  }
  return replay->counts();
}

// Six prompts of ten blocks: too many for either tier, not for both.
TEST(TierReplay, ExclusiveTiersKeepWhatInclusiveOnesCannot) {
  TierReplayOptions options{.block_bytes = 64, .device_blocks = 45, .host_blocks = 40};
  options.exclusive = true;
  const TierReplayCounts exclusive = replay(options);
  EXPECT_EQ(exclusive.device_hits + exclusive.host_hits, 180u);
  EXPECT_EQ(exclusive.wrong_words, 0u);
  EXPECT_EQ(exclusive.verified_bytes, 180u * 64);
  EXPECT_DOUBLE_EQ(exclusive.token_hit_rate(), 0.75);
  options.exclusive = false;
  EXPECT_LT(replay(options).token_hit_rate(), 0.1);
}

TEST(TierReplay, BadOptionsAreNamed) {
  EXPECT_FALSE(TierReplay::make({.block_bytes = 33, .device_blocks = 10}));
  EXPECT_FALSE(TierReplay::make({.block_bytes = 64, .device_blocks = 0}));
}

}  // namespace
}  // namespace cachalot::replay
