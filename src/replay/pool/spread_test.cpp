#include "replay/pool/spread.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>

namespace cachalot::replay {
namespace {

class SpreadTest : public testing::Test {
 protected:
  void SetUp() override {
    // A thousand requests of two blocks, with 27 beginnings.
    options_.trace =
        testing::TempDir() + "cachalot_spread_test." + std::to_string(getpid()) + ".jsonl";
    std::ofstream file(options_.trace);
    for (int i = 0; i < 1000; ++i) {
      file << R"({"timestamp": )" << i << R"(, "input_length": 1024, "output_length": 1, )"
           << R"("hash_ids": [)" << i * i % 53 << ", " << 100 + i << "]}\n";
    }
    options_.hosts.count = 3;
  }
  void TearDown() override { std::filesystem::remove(options_.trace); }
  std::vector<std::vector<std::size_t>> spread(HostPolicy policy) {
    options_.hosts.policy = policy;
    Result<Workload> workload = Workload::load(options_);
    EXPECT_TRUE(workload) << workload.error().message;
    workload_.emplace(*std::move(workload));
    return spread_requests(options_, *workload_);
  }

  ReplayOptions options_;
  std::optional<Workload> workload_;
};

TEST_F(SpreadTest, EveryPolicyGivesEachRequestToOneHostInTheTracesOrder) {
  for (const HostPolicy policy :
       {HostPolicy::kRoundRobin, HostPolicy::kRandom, HostPolicy::kPrefix}) {
    const auto of_host = spread(policy);
    ASSERT_EQ(of_host.size(), 3u);
    std::vector<std::size_t> all;
    for (const std::vector<std::size_t>& requests : of_host) {
      EXPECT_TRUE(std::is_sorted(requests.begin(), requests.end()));
      EXPECT_FALSE(requests.empty()) << host_policy_name(policy);
      all.insert(all.end(), requests.begin(), requests.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::size_t> expected(1000);
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    EXPECT_EQ(all, expected) << host_policy_name(policy);
  }
}

TEST_F(SpreadTest, RoundRobinTakesTurns) {
  const auto of_host = spread(HostPolicy::kRoundRobin);
  EXPECT_EQ(of_host[0][1], 3u);
  EXPECT_EQ(of_host[1][0], 1u);
  EXPECT_EQ(of_host[2].back(), 998u);
}

TEST_F(SpreadTest, RandomFollowsTheSeedAndIsAboutEven) {
  const auto once = spread(HostPolicy::kRandom), again = spread(HostPolicy::kRandom);
  EXPECT_EQ(once, again);
  for (const std::vector<std::size_t>& requests : once) {
    EXPECT_GT(requests.size(), 270u);  // 333, sigma 15
    EXPECT_LT(requests.size(), 400u);
  }
  options_.seed = 2;
  EXPECT_NE(spread(HostPolicy::kRandom), once);
}

TEST_F(SpreadTest, WithPrefixEqualFirstBlocksMeet) {
  const auto of_host = spread(HostPolicy::kPrefix);
  std::map<std::uint64_t, std::size_t> host_of;
  for (std::size_t host = 0; host < of_host.size(); ++host) {
    for (const std::size_t request : of_host[host]) {
      const auto [at, is_new] = host_of.emplace(workload_->hashes(request)[0].low, host);
      EXPECT_EQ(at->second, host);
    }
  }
  EXPECT_EQ(host_of.size(), 27u);
}

TEST_F(SpreadTest, WithoutHostsAllIsOneHosts) {
  options_.hosts.count = 0;
  const auto of_host = spread(HostPolicy::kRoundRobin);
  ASSERT_EQ(of_host.size(), 1u);
  EXPECT_EQ(of_host[0].size(), 1000u);
}

}  // namespace
}  // namespace cachalot::replay
