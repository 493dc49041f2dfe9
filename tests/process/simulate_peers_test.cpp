// `cachalot simulate --peers`: beside what `cachalot replay` measures with keepers that are peers.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";
constexpr int kUsage = 2;

class SimulatePeers : public ProcessTest {
 protected:
  // The first 800 requests: a command's JSON.
  nlohmann::json json_of(const char* command, const Arguments& flags) const {
    Arguments words = {command, "--trace", kTrace, "--limit", "800", "--json", "-"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = run(words);
    expect_done(outcome);
    return outcome.json();
  }
};

// What `replay` measures with real keepers, in the order in which one request comes after the other: each host alone, with
// peers, and one pool of the same size in all.
TEST_F(SimulatePeers, HitsOfHostsThatArePeersAreWithinAPointOfThoseOfRealOnes) {
  const auto measured = [&](Arguments flags) {
    flags.insert(flags.end(), {"--block-bytes", "4KiB"});
    return json_of("replay", flags)["block_hit_rate"].get<double>();
  };
  const nlohmann::json rows = json_of(
      "simulate", {"--prefill", "4", "--node-capacity-blocks", "1000", "--closed-loop", "1",
                   "--policy", "round_robin,round_robin+peers,round_robin+shared-pool"})["rows"];
  ASSERT_EQ(rows.size(), 3u);
  const Arguments hosts = {"--hosts", "4", "--in-order", "--capacity-blocks", "1000"};
  Arguments peers = hosts;
  peers.push_back("--peers");
  const double measured_rates[] = {measured(hosts), measured(peers),
                                   measured({"--engines", "1", "--capacity-blocks", "4000"})};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(rows[i]["block_hit_rate"].get<double>(), measured_rates[i], 0.01) << i;
  }
  // Peers are worth several points here, so the comparison can fail.
  EXPECT_GT(measured_rates[1], measured_rates[0] + 0.03);
  EXPECT_EQ(rows[0]["hit_blocks_by_tier"]["peer"], 0);
  EXPECT_GT(rows[1]["hit_blocks_by_tier"]["peer"], 500);
}

TEST_F(SimulatePeers, TheTableSaysWhereBlocksOfPeersAndOwnOnesHit) {
  const Outcome outcome = run({"simulate", "--trace", kTrace, "--limit", "500", "--prefill", "4",
                               "--policy", "round_robin", "--peers", "--peer-cell", "2"});
  expect_done(outcome);
  EXPECT_NE(outcome.out.find("  hits of all blocks: own caches "), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find(" blocks were gone"), std::string::npos) << outcome.out;
}

TEST_F(SimulatePeers, PeersThatCannotBeAreOneErrorEach) {
  const auto simulate_with = [&](Arguments flags) {
    Arguments words = {"simulate", "--trace", kTrace, "--limit", "10", "--prefill", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run(words);
  };
  expect_error(simulate_with({"--peer-cell", "2"}), kUsage, {"--peer-cell", "--peers"});
  expect_error(simulate_with({"--peer-gb-s", "1"}), kUsage, {"--peer-gb-s", "--peers"});
  expect_error(simulate_with({"--peer-wait-ms", "1"}), kUsage, {"--peer-wait-ms", "--peers"});
  expect_error(simulate_with({"--peers", "--shared-pool"}), kUsage, {"--peers", "--shared-pool"});
  expect_error(simulate_with({"--peers", "--node-capacity-blocks", "0"}), kUsage, {"peers"});
  expect_error(simulate_with({"--peers", "--peer-cell", "0"}), kUsage, {"--peer-cell", "0"});
  expect_error(simulate_with({"--peers", "--colocated", "2", "--pool-capacity-blocks", "9"}),
               kUsage, {"--pool-capacity-blocks", "--colocated", "--peers"});
}

}  // namespace
}  // namespace cachalot::process_test
