// Deaths on hosts without coherence: the protocol survives them, and ways to get faults wrong are
// noticed. The other known-bad variants need schedules that chance does not find: known_bad_test.cpp
// plays them, and the model in specs/ finds them all.

#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>

#include "fault_world.h"
#include "pool_world.h"

namespace cachalot::model {
namespace {

using memory::Mood;
using memory::Rule;

FaultOptions world(std::uint64_t seed, Rule broken = Rule::kNone) {
  FaultOptions options;
  options.seed = seed;
  options.broken = broken;
  options.mood = static_cast<Mood>(seed % 3);
  options.suspect_steps = seed % 4 == 0 ? 6'000 : 30'000;
  return options;
}

TEST(FaultModel, NothingDiesBadly) {
  FaultResult sum;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const FaultResult result = run_fault_world(world(seed));
    EXPECT_EQ(result.fault, "") << "seed " << seed;
    sum.hits += result.hits;
    sum.pinned_hits += result.pinned_hits;
    sum.crashes += result.crashes;
    sum.successions += result.successions;
    sum.suspicions += result.suspicions;
    sum.reattachments += result.reattachments;
  }
  std::printf(
      "crashes %llu, successions %llu, suspicions %llu, reattachments %llu, hits %llu, pinned "
      "%llu\n",
      static_cast<unsigned long long>(sum.crashes),
      static_cast<unsigned long long>(sum.successions),
      static_cast<unsigned long long>(sum.suspicions),
      static_cast<unsigned long long>(sum.reattachments), static_cast<unsigned long long>(sum.hits),
      static_cast<unsigned long long>(sum.pinned_hits));
  EXPECT_GT(sum.hits, 1000u);
  EXPECT_GT(sum.pinned_hits, 100u);
  EXPECT_GT(sum.crashes, 100u);
  EXPECT_GT(sum.suspicions, 20u);
  EXPECT_GT(sum.reattachments, 50u);
}

// A pool so small that blocks are reused at once, and whose keepers change often: the world in which
// the known-bad variants are looked for. The right protocol lives in it, too.
FaultOptions tight_world(std::uint64_t seed, Rule broken = Rule::kNone) {
  FaultOptions options = world(seed, broken);
  options.capacity = 3;
  options.slack = 6;
  options.successions = 12;
  options.block_bytes = seed % 2 == 0 ? 640 : 2048;
  return options;
}

TEST(FaultModel, NothingDiesBadlyInATightWorld) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    EXPECT_EQ(run_fault_world(tight_world(seed)).fault, "") << "seed " << seed;
  }
}

// Standbys of two machines take over at the same moment: no lock holds between them, so that each has areas and epochs of
// its own (docs/decisions/0034-keepers-of-two-machines.md).
TEST(FaultModel, TwoKeepersThatTakeOverAtOnceDoNotCollide) {
  std::uint64_t successions = 0, hits = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    FaultOptions options = seed % 2 == 0 ? world(seed) : tight_world(seed);
    options.two_keepers_at_once = true;
    const FaultResult result = run_fault_world(options);
    EXPECT_EQ(result.fault, "") << "seed " << seed;
    successions += result.successions;
    hits += result.hits;
  }
  EXPECT_GT(successions, 300u);
  EXPECT_GT(hits, 1000u);
}

// The mailboxes lose lines, too: each such client attaches anew, and nothing leaks.
TEST(FaultModel, DamagedMailboxesAreFollowedByNewAttachments) {
  std::uint64_t damages = 0, with = 0, without = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    FaultOptions options = world(seed);
    options.crashes = 3;
    options.successions = 2;
    without += run_fault_world(options).reattachments;
    options.ring_damages = 60;
    const FaultResult result = run_fault_world(options);
    EXPECT_EQ(result.fault, "") << "seed " << seed;
    damages += result.damages;
    with += result.reattachments;
  }
  std::printf("damages %llu, reattachments %llu, without damages %llu\n",
              static_cast<unsigned long long>(damages), static_cast<unsigned long long>(with),
              static_cast<unsigned long long>(without));
  EXPECT_GT(damages, 200u);
  EXPECT_GT(with, without + 10);
}

class KnownBad : public testing::TestWithParam<Rule> {};

TEST_P(KnownBad, IsNoticed) {
  constexpr std::uint64_t kSeeds = 60;
  int noticed = 0;
  std::uint64_t first = 0;
  std::string how;
  for (std::uint64_t seed = 1; seed <= kSeeds && noticed < 3; ++seed) {
    FaultOptions options = tight_world(seed, GetParam());
    if (GetParam() == Rule::kReuseAfterTimeout) options.patience_steps = 2'000;
    const FaultResult result = run_fault_world(options);
    if (result.fault.empty()) continue;
    if (noticed++ == 0) {
      first = seed;
      how = result.fault;
    }
  }
  std::printf("| %-48s | first seed %2llu | %s |\n", rule_name(GetParam()),
              static_cast<unsigned long long>(first), how.c_str());
  EXPECT_GT(noticed, 0);
}

INSTANTIATE_TEST_SUITE_P(Variants, KnownBad, testing::Values(Rule::kReuseAfterTimeout),
                         [](const auto& rule) { return rule_identifier(rule.param); });

}  // namespace
}  // namespace cachalot::model
