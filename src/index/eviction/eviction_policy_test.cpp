// What every policy owes its callers, whatever its order; run against each of them.
#include "index/eviction/eviction_policy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace cachalot::index {
namespace {

class EvictionPolicyTest : public testing::TestWithParam<PolicyKind> {
 protected:
  std::unique_ptr<EvictionPolicy> make(std::uint32_t capacity) {
    return make_leaf_policy(GetParam(), capacity);
  }
};

TEST_P(EvictionPolicyTest, GivesBackTheNameItWasMadeBy) {
  const auto policy = make(1);
  const Result<PolicyKind> kind = parse_policy(policy->name());
  ASSERT_TRUE(kind);
  EXPECT_EQ(*kind, GetParam());
}

TEST_P(EvictionPolicyTest, HasNoVictimWhenEmptyOrWhenAllIsOnTheProtectedPath) {
  const auto policy = make(3);
  EXPECT_EQ(policy->victim(kNoNode), kNoNode);
  policy->insert(0, kNoNode);
  policy->insert(1, 0);
  policy->insert(2, 1);
  EXPECT_EQ(policy->victim(2), kNoNode);
  EXPECT_EQ(policy->victim(kNoNode), 2u);
}

TEST_P(EvictionPolicyTest, OnlyEverGivesUpLeavesOffTheProtectedPathAndAllOfThemInTheEnd) {
  constexpr std::uint32_t kNodes = 200;
  const auto policy = make(0);
  policy->grow(kNodes);
  base::Rng rng(11);
  for (NodeId n = 0; n < kNodes; ++n) {
    policy->insert(n, n == 0 || rng.below(5) == 0 ? kNoNode : static_cast<NodeId>(rng.below(n)));
    policy->touch(static_cast<NodeId>(rng.below(n + 1)));
  }
  for (std::uint32_t left = kNodes; left > 0; --left) {
    NodeId protect = static_cast<NodeId>(rng.below(kNodes));
    if (!policy->residency().contains(protect)) protect = kNoNode;
    NodeId victim = policy->victim(protect);
    ASSERT_TRUE(protect == kNoNode || victim != protect);
    if (victim == kNoNode) victim = policy->victim(kNoNode);
    ASSERT_TRUE(policy->residency().is_leaf(victim));
    policy->erase(victim);
    ASSERT_EQ(policy->residency().size(), left - 1);
    ASSERT_TRUE(policy->residency().is_valid());
  }
}

INSTANTIATE_TEST_SUITE_P(All, EvictionPolicyTest, testing::Values(PolicyKind::kLru),
                         [](const auto& kind) { return std::string(policy_name(kind.param)); });

TEST(PolicyNames, AnUnknownOneIsAnErrorThatListsTheKnownOnes) {
  const Result<PolicyKind> kind = parse_policy("mru");
  ASSERT_FALSE(kind);
  EXPECT_EQ(kind.error().code, Code::kInvalidArgument);
  EXPECT_STREQ(kind.error().message, "policy: mru is unknown, expected one of: lru");
}

TEST(PolicyNames, OneThatIsPlannedSaysThatItIsNotThereYet) {
  for (const char* name : {"lfu", "fifo", "s3fifo", "arc", "wtinylfu", "length_aware", "opt"}) {
    const Result<PolicyKind> kind = parse_policy(name);
    ASSERT_FALSE(kind);
    EXPECT_EQ(std::string(kind.error().message),
              std::string("policy: ") + name + " is not in this version, expected one of: lru");
  }
}

}  // namespace
}  // namespace cachalot::index
