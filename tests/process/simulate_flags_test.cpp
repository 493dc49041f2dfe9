// `cachalot simulate`: flags that nothing of a run uses, and what results say of the flags that they came from.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";
constexpr int kUsage = 2;

class SimulateFlags : public ProcessTest {
 protected:
  Outcome simulate(const Arguments& flags) const {
    Arguments words = {"simulate", "--trace", kTrace, "--limit", "20"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run(words);
  }
};

TEST_F(SimulateFlags, OfAFlagThatNoRowUsesItIsSaidWhatItNeeds) {
  struct Unused {
    Arguments others;
    const char* flag;
    const char* value;  // null: a switch
    const char* needs;
  };
  const Arguments prefill = {"--prefill", "2", "--policy", "least_loaded"};
  const Arguments one = {"--prefill", "1"};
  const Arguments pool = {"--prefill", "2", "--shared-pool"};
  const Arguments engines = {"--colocated", "2"};
  const auto with = [](Arguments words, const Arguments& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Unused unused[] = {
      {prefill, "--precision", "fp8", "with --calibration"},
      {prefill, "--storage-gb-s", "12", "with --storage-capacity-blocks"},
      {pool, "--storage-latency-us", "12", "with --storage-capacity-blocks"},
      {prefill, "--pool-gb-s", "5", "with --shared-pool or --pool-capacity-blocks"},
      {prefill, "--pool-link-gb-s", "5", "with --shared-pool"},
      {prefill, "--pool-link-latency-us", "5", "with --shared-pool"},
      {with(prefill, {"--closed-loop", "4"}), "--rate-scale", "2", "without --closed-loop"},
      {with(pool, {"--pool-capacity-blocks", "9"}), "--node-capacity-blocks", "9",
       "without --shared-pool"},
      {prefill, "--link-gb-s", "5", "--policy conductor"},
      {prefill, "--link-latency-us", "5", "--policy conductor"},
      {prefill, "--operation-bytes", "4KiB", "--policy conductor"},
      {with(pool, {"--pool-link-gb-s", "9", "--policy", "local"}), "--link-gb-s", "5",
       "with transfers"},
      {pool, "--operations-in-flight", "5", "with --operation-bytes"},
      {one, "--balancing-threshold", "2", "--policy conductor and two"},
      {prefill, "--balancing-threshold", "2", "--policy conductor"},
      {prefill, "--decode-capacity-tokens", "5000", "with --decode or --colocated"},
      {prefill, "--decode-sequences", "5", "with --decode or --colocated"},
      {prefill, "--tbt-slo-ms", "50", "with --decode or --colocated"},
      {prefill, "--assumed-decode-s", "5", "with --admission predictive"},
      {prefill, "--decode-prediction", "uniform", "with --admission predictive"},
      {with(engines, {"--tbt-slo-ms", "50", "--admission", "reject_on_load"}), "--decode-check",
       "present", "--decode"},
      {prefill, "--seed", "5", "with --policy random or power_of_two"},
      {prefill, "--step-tokens", "512", "with --colocated or --profile"},
      {prefill, "--engine-block-tokens", "16", "with --colocated"},
      {engines, "--layerwise-admission", "hidden", "with --layerwise on or auto"},
      {with(engines, {"--layerwise", "on"}), "--layerwise-admission", "goal", "--tbt-slo-ms"},
      {engines, "--host-gb-s", "5", "with --layerwise"},
      {engines, "--host-kv-gb", "5", "with --layerwise"},
      {pool, "--nic-usd", "5", "with --network rdma"},
      {pool, "--nic-switch-usd", "5", "with --network rdma"},
      {prefill, "--adapter-usd", "5", "with --network cxl"},
      {prefill, "--adapter-switch-usd", "5", "with --network cxl"},
      {one, "--peers", nullptr, "with two instances"},
      {prefill, "--decode-memory-gb-s", "500", "with --decode or --colocated"},
      {prefill, "--decode-overhead-ms", "5", "with --decode or --colocated"},
  };
  const Unused refused[] = {
      {prefill, "--keep-peer-copies", nullptr, "with --peers"},
      {prefill, "--peer-cell", "2", "with --peers"},
      {prefill, "--tp-link", "nvlink4", "with --profile"},
  };
  const auto words_of = [&](const Unused& each) {
    Arguments words = with(each.others, {each.flag});
    if (each.value != nullptr) words.push_back(each.value);
    return words;
  };
  const auto text_of = [](const Unused& each) {
    return std::string(each.flag) + ": " +
           (each.value == nullptr ? "" : std::string(each.value) + " ") +
           "has no effect, expected it ";
  };
  for (const Unused& each : unused) {
    const Outcome outcome = simulate(words_of(each));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::size_t at = outcome.err.find("cachalot: warning: " + text_of(each));
    ASSERT_NE(at, std::string::npos) << text_of(each) << outcome.err;
    EXPECT_NE(outcome.err.find(each.needs, at), std::string::npos) << outcome.err;
  }
  for (const Unused& each : refused)
    expect_error(simulate(words_of(each)), kUsage, {text_of(each), each.needs});
}

TEST_F(SimulateFlags, AFlagOfAFileOfAPolicyOrOfAnAxisHasToBeUsedLikewise) {
  const std::string file = write("c.toml", "prefill = 2\nstorage-gb-s = 12\nshared-pool = false\n");
  const auto warning_of = [&](const Arguments& words) {
    const Outcome outcome = simulate(words);
    expect_done(outcome);
    return outcome.err;
  };
  EXPECT_NE(warning_of({"--cluster", file}).find("--storage-gb-s: 12 has no effect"),
            std::string::npos);
  const std::string effect = "--pool-gb-s: 5 has no effect";
  EXPECT_NE(warning_of({"--prefill", "2", "--policy", "local+pool-gb-s=5,least_loaded+shared-pool"})
                .find(effect),
            std::string::npos);
  EXPECT_NE(warning_of({"--prefill", "2", "--policy", "local,prefix", "--map", "pool-gb-s=5,6",
                        "--map", "rate-scale=1,2"})
                .find(effect),
            std::string::npos);
}

TEST_F(SimulateFlags, OfAFlagThatOneRowUsesNothingIsSaid) {
  const auto is_used = [&](const Arguments& words) {
    const Outcome outcome = simulate(words);
    expect_done(outcome);
    EXPECT_EQ(outcome.err.find("has no effect"), std::string::npos) << outcome.err;
  };
  is_used({"--prefill", "2", "--pool-gb-s", "5", "--seed", "3", "--policy",
           "random,local,least_loaded+shared-pool"});
  is_used({"--prefill", "2", "--decode", "1", "--colocated", "3", "--engine-block-tokens", "32",
           "--decode-sequences", "9", "--balancing-threshold", "2", "--link-gb-s", "50"});
  // Storage in one cell of two.
  is_used({"--prefill", "2", "--shared-pool", "--policy", "local,prefix", "--storage-gb-s", "9",
           "--map", "storage-capacity-blocks=0,9", "--map", "rate-scale=1,2"});
}

TEST_F(SimulateFlags, ResultsNameTheTraceTheSeedTheFlagsAndTheCaches) {
  const Outcome outcome = simulate({"--prefill", "2", "--policy", "random,least_loaded+shared-pool",
                                    "--seed", "7", "--rate-scale", "1,2", "--json", "-"});
  expect_done(outcome);
  const nlohmann::json json = outcome.json();
  EXPECT_EQ(json["trace"], kTrace);
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["flags"]["prefill"], "2");
  EXPECT_EQ(json["flags"]["policy"], "random,least_loaded+shared-pool");
  EXPECT_EQ(json["flags"]["rate-scale"], nlohmann::json({"1", "2"}));
  EXPECT_FALSE(json["flags"].contains("shared-pool"));
  const nlohmann::json own = json["rows"][0]["caches"], shared = json["rows"][1]["caches"];
  EXPECT_EQ(own["node_blocks"], 5859);
  EXPECT_EQ(own["pool_blocks"], 0);
  EXPECT_EQ(own["block_tokens"], 512);
  EXPECT_EQ(own["node_bytes"].get<double>(), 5859 * own["block_bytes"].get<double>());
  EXPECT_EQ(shared["node_blocks"], 0);
  EXPECT_EQ(shared["pool_blocks"], 2 * 5859);
  EXPECT_EQ(json["rows"][0]["model"], "Llama-3-70B");
  EXPECT_EQ(json["rows"][0]["hardware"], "8xA800_SXM");
  const std::string people = outcome.err;
  EXPECT_NE(people.find("trace: " + std::string(kTrace) + ", seed 7\n"), std::string::npos)
      << people;
  EXPECT_NE(people.find("caches of random: 5,859 blocks (983.0 GB) an instance\n"),
            std::string::npos)
      << people;
  EXPECT_NE(people.find("a pool of 11,718 blocks"), std::string::npos) << people;
}

// 100 % would read as a goal that was kept.
TEST_F(SimulateFlags, WithoutAGoalNoPartOfRequestsKeepsIt) {
  const auto table = [&](const Arguments& goal) {
    Arguments words = {"--prefill", "2"};
    words.insert(words.end(), goal.begin(), goal.end());
    const Outcome outcome = simulate(words);
    expect_done(outcome);
    return outcome.out;
  };
  EXPECT_EQ(table({}).find("100.00%"), std::string::npos);
  EXPECT_NE(table({"--ttft-slo-ms", "100000"}).find("100.00%"), std::string::npos);
}

TEST_F(SimulateFlags, TwoResultsOnStdoutAreRefused) {
  const std::vector<std::string> both = {"both \"-\"", "stdout"};
  expect_error(simulate({"--prefill", "2", "--csv", "-", "--json", "-"}), kUsage, both);
  expect_error(run({"simulate", "--trace", kTrace, "--trace-format", "vllm-run", "--profile", "p",
                    "--meta", "m", "--csv", "-", "--json", "-"}),
               kUsage, both);
  expect_error(run({"long-prefill", "--plot", "-", "--json", "-"}), kUsage, both);
  expect_error(run({"calibrate", "--rows", "r", "--out", "-", "--json", "-"}), kUsage, both);
}

}  // namespace
}  // namespace cachalot::process_test
