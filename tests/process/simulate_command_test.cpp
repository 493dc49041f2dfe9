// `cachalot simulate` on a production trace: published effects, repeatability, and one error for each bad input.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";
constexpr int kUsage = 2;

class SimulateCommand : public ProcessTest {
 protected:
  nlohmann::json simulate(Arguments flags) const {
    Arguments words = {"simulate", "--trace", kTrace, "--json", "-"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = run(words);
    expect_done(outcome);
    return outcome.json();
  }
};

// Mooncake (FAST'25), figures 5 and 10: random > load > local > global, -14 %; 37.5 % of full blocks at 10 nodes.
TEST_F(SimulateCommand, ThePublishedOrderOfPoliciesHoldsFromSixToSixteenNodes) {
  for (const char* const nodes : {"6", "8", "10", "12", "16"}) {
    const nlohmann::json rows =
        simulate({"--prefill", nodes, "--policy", "random,least_loaded,local,conductor",
                  "--balancing-threshold", "1"})["rows"];
    ASSERT_EQ(rows.size(), 4u);
    double ttft[4];
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(rows[i]["completed"], 12031);
      ttft[i] = rows[i]["ttft_ms"]["mean"];
    }
    EXPECT_GT(ttft[0], ttft[1]) << nodes;
    EXPECT_GT(ttft[1], ttft[2]) << nodes;
    EXPECT_LT(ttft[3], 0.95 * ttft[2]) << nodes;
    EXPECT_GT(ttft[3], 0.80 * ttft[2]) << nodes;
    if (std::string(nodes) == "10") {
      EXPECT_NEAR(rows[3]["full_block_hit_rate"].get<double>(), 0.37, 0.01);
    }
  }
}

// Published: 0.639.
TEST_F(SimulateCommand, PrefillTimeWithReuseOverThatWithoutIsThePublishedOne) {
  const nlohmann::json result =
      simulate({"--prefill", "1", "--node-capacity-blocks", "inf", "--policy", "random"});
  EXPECT_NEAR(result["prefill_reuse_ratio"].get<double>(), 0.639, 0.02);
  EXPECT_NEAR(result["token_hit_rate"].get<double>(), 0.3736, 0.00005);
}

// A zero would read as a very fast system.
TEST_F(SimulateCommand, WhereEveryRequestIsRejectedThereAreNoTimes) {
  const Arguments full = {
      "--limit", "10", "--prefill", "1", "--decode", "1", "--decode-capacity-tokens", "1"};
  const nlohmann::json row = simulate(full);
  EXPECT_EQ(row["completed"], 0);
  EXPECT_EQ(row["rejected"], 10);
  for (const char* const figure : {"ttft_ms", "tbt_ms", "tpot_ms", "e2e_ms"})
    EXPECT_TRUE(row[figure].is_null()) << figure << row[figure];
  Arguments table = {"simulate", "--trace", kTrace};
  table.insert(table.end(), full.begin(), full.end());
  const Outcome shown = run(table);
  expect_done(shown);
  EXPECT_EQ(shown.out.find(" 0.000 "), shown.out.rfind(" 0.000 "))
      << shown.out;  // requests a second
}

TEST_F(SimulateCommand, EqualSeedsGiveEqualResultsAndOthersDoNot) {
  const auto result = [&](const char* seed) {
    nlohmann::json json = simulate({"--prefill", "8", "--decode", "8", "--policy", "random",
                                    "--seed", seed, "--limit", "2000"});
    for (const char* const other : {"wall_s", "seed", "flags"}) json.erase(other);
    return json.dump();
  };
  EXPECT_EQ(result("5"), result("5"));
  EXPECT_NE(result("5"), result("6"));
}

// Beluga's claim: with one pool at near-local speed routing need not know caches; over slow links it must.
TEST_F(SimulateCommand, APoolWithoutCacheAwareRoutingIsAsGoodAsConductorOverFastLinksOnly) {
  const auto ttft = [&](const char* gb_s, bool has_pool) {
    Arguments flags = {"--prefill", "10", "--link-gb-s", gb_s, "--policy"};
    flags.push_back(has_pool ? "least_loaded" : "conductor");
    if (has_pool) flags.push_back("--shared-pool");
    return simulate(flags)["ttft_ms"]["mean"].get<double>();
  };
  EXPECT_LT(ttft("100", true), 1.04 * ttft("100", false));
  EXPECT_GT(ttft("2", true), 1.2 * ttft("2", false));
}

// Mooncake (arXiv 2407.00079, section 7): 4,183 > 3,771 > 3,589, and early's load swings.
TEST_F(SimulateCommand, OverloadIsRejectedInThePublishedOrderAndPredictionIsSteadier) {
  for (const char* const tbt_ms : {"130", "150"}) {
    const nlohmann::json rows = simulate(
        {"--prefill", "8", "--decode", "8", "--rate-scale", "2", "--hardware", "4xA800_SXM",
         "--decode-memory-gb-s", "1600", "--ttft-slo-ms", "60000", "--tbt-slo-ms", tbt_ms,
         "--admission", "reject_on_load,early,predictive"})["rows"];
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_GT(rows[0]["rejected"], rows[1]["rejected"]) << tbt_ms;
    EXPECT_GT(rows[1]["rejected"], rows[2]["rejected"]) << tbt_ms;
    EXPECT_GT(rows[0]["wasted_prefill_s"], 0);
    EXPECT_EQ(rows[1]["wasted_prefill_s"], 0);
    const auto deviation = [&](std::size_t row) {
      return rows[row]["decode_load_deviation"].get<double>();
    };
    EXPECT_LT(deviation(2), 0.8 * deviation(1)) << tbt_ms;
  }
}

TEST_F(SimulateCommand, DrawsAndWritesALineForEachRequest) {
  const nlohmann::json rows = simulate({"--prefill", "2", "--decode", "2", "--limit", "300",
                                        "--tbt-slo-ms", "50", "--admission", "early,predictive",
                                        "--csv", path("a.csv"), "--plot", path("plots")})["rows"];
  ASSERT_EQ(rows.size(), 2u);
  const std::string csv = read(path("a.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 601);
  for (const char* const file : {"ttft.svg", "decode_load.svg", "prefill_queue_conductor_early.svg",
                                 "prefill_queue_conductor_predictive.svg"}) {
    const std::string svg = read(path(std::string("plots/") + file));
    EXPECT_TRUE(svg.starts_with("<svg ")) << file;
    EXPECT_TRUE(svg.ends_with("</svg>\n")) << file;
  }
}

TEST_F(SimulateCommand, ALineOfTheCsvIsWholeHoweverLongThePolicyIs) {
  const std::string policy = "least_loaded+link-gb-s=20." + std::string(400, '0');
  simulate({"--prefill", "2", "--decode", "1", "--limit", "3", "--policy", policy, "--csv",
            path("a.csv")});
  std::istringstream lines(read(path("a.csv")));
  std::size_t rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 18) << line;
  }
  EXPECT_EQ(rows, 4u);
}

TEST_F(SimulateCommand, AMillionTokensCostTheHoursOfGpusAndTheShareOfTheNetwork) {
  // 4 instances of 8 GPUs: 4 servers with 4 NICs each, and a switch: (16 * 1,745 + 16,000) / (3 * 8,766) an hour.
  const Arguments cluster = {"--prefill", "2", "--decode", "2", "--limit", "200"};
  const auto with = [&](const Arguments& more) {
    Arguments flags = cluster;
    flags.insert(flags.end(), more.begin(), more.end());
    return simulate(flags);
  };
  const nlohmann::json result = with({"--gpu-hour-usd", "1.5"});
  const nlohmann::json cost = result["cost"];
  EXPECT_EQ(cost["network"], "rdma");
  EXPECT_DOUBLE_EQ(cost["gpu_usd_per_hour"], 32 * 1.5);
  EXPECT_NEAR(cost["network_usd_per_hour"].get<double>(), 43920.0 / 26298, 1e-9);
  const double usd = (48 + 43920.0 / 26298) * result["sim_s"].get<double>() / 3600;
  EXPECT_NEAR(cost["usd"].get<double>(), usd, 1e-9 * usd);
  EXPECT_GT(cost["usd_per_million_tokens"], 0);
  EXPECT_DOUBLE_EQ(cost["usd_per_million_good_tokens"], cost["usd_per_million_tokens"]);
  // With a pool 2 adapters a server: (8 * 210 + 5,800) / 26,298.
  const nlohmann::json pooled = with({"--shared-pool"})["cost"];
  EXPECT_EQ(pooled["network"], "cxl");
  EXPECT_NEAR(pooled["network_usd_per_hour"].get<double>(), 7480.0 / 26298, 1e-9);
  // Tokens of requests that miss a goal are not good.
  const nlohmann::json late = with({"--ttft-slo-ms", "1"})["cost"];
  EXPECT_TRUE(late["usd_per_million_good_tokens"].is_null());
}

TEST_F(SimulateCommand, StorageBehindAPoolAddsHitsThatAreCountedApart) {
  const Arguments pool = {"--prefill", "4",       "--shared-pool", "--pool-capacity-blocks",
                          "2000",      "--limit", "2000"};
  const nlohmann::json without = simulate(pool);
  Arguments flags = pool;
  flags.insert(flags.end(), {"--storage-capacity-blocks", "inf", "--storage-gb-s", "50"});
  const nlohmann::json with = simulate(flags);
  EXPECT_EQ(without["hit_tokens_by_tier"]["storage"], 0);
  EXPECT_GT(with["hit_tokens_by_tier"]["storage"], 0);
  EXPECT_GT(with["token_hit_rate"], without["token_hit_rate"]);
  EXPECT_GT(with["bytes_by_kind"]["storage_write"], with["bytes_by_kind"]["storage_read"]);
}

TEST_F(SimulateCommand, PassesAtTheTracesTimesFillAndHit) {
  for (const char* const kind : {"--prefill", "--colocated"}) {
    const nlohmann::json passes = simulate({kind, "8", "--shared-pool", "--limit", "500",
                                            "--passes", "2", "--policy", "least_loaded"})["passes"];
    ASSERT_EQ(passes.size(), 2u) << kind;
    EXPECT_GT(passes[1]["token_hit_rate"], 0.95) << kind;
    EXPECT_LT(passes[1]["ttft_ms"]["mean"], passes[0]["ttft_ms"]["mean"]) << kind;
    EXPECT_NEAR(passes[1]["seconds"].get<double>(), passes[0]["seconds"].get<double>(), 30) << kind;
  }
}

// A prompt of 128 K on 4 instances: the pipeline sends least, and loses least where links are slow.
TEST_F(SimulateCommand, LongPrefillComparesThreeWaysToSplitAPrompt) {
  const auto rows_at = [&](const char* gb_s) {
    const Outcome outcome = run({"long-prefill", "--tokens", "131072", "--instances", "4",
                                 "--link-gb-s", gb_s, "--json", "-", "--plot", path("l.svg")});
    expect_done(outcome);
    return outcome.json()["rows"];
  };
  const nlohmann::json rows = rows_at("5");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["split"], "pipeline");
  EXPECT_EQ(rows[2]["split"], "tensor");
  EXPECT_LT(rows[0]["sent_bytes"], rows[1]["sent_bytes"]);
  EXPECT_LT(rows[1]["sent_bytes"], rows[2]["sent_bytes"]);
  EXPECT_LT(rows[0]["seconds"], rows[2]["seconds"]);
  EXPECT_GT(rows[0]["efficiency"], 0.8);
  EXPECT_LE(rows[0]["efficiency"], 1);
  EXPECT_TRUE(read(path("l.svg")).ends_with("</svg>\n"));
  const auto refused = [&](const Arguments& flags, const std::vector<std::string>& parts) {
    Arguments words = {"long-prefill"};
    words.insert(words.end(), flags.begin(), flags.end());
    expect_error(run(words), kUsage, parts);
  };
  refused({"--tokens", "32K"}, {"--tokens", "32K"});
  refused({"--instances", "0"}, {"--instances", "0"});
  refused({"--plot", "l.png"}, {"--plot", "l.png"});
  refused({"--hardware", "0xH20"}, {"0xH20"});
}

TEST_F(SimulateCommand, BothKindsOfClusterAreComparedOverTheRate) {
  const auto result = [&] {
    nlohmann::json rows =
        simulate({"--prefill", "2", "--decode", "2", "--colocated", "4", "--limit", "500",
                  "--rate-scale", "0.5,1", "--ttft-slo-ms", "10000", "--tbt-slo-ms", "100",
                  "--plot", path("plots")})["rows"];
    for (nlohmann::json& row : rows) row.erase("wall_s");
    return rows;
  };
  const nlohmann::json rows = result();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["cluster"], "2P+2D");
  EXPECT_EQ(rows[1]["cluster"], "4 colocated");
  EXPECT_EQ(rows[3]["rate_scale"], 1);
  EXPECT_EQ(rows[1]["per_instance"].size(), 4u);
  EXPECT_EQ(rows[1]["per_instance"][0]["role"], "colocated");
  for (const nlohmann::json& row : rows) EXPECT_EQ(row["completed"], 500);
  EXPECT_LT(rows[1]["ttft_ms"]["mean"], rows[3]["ttft_ms"]["mean"]);
  for (const char* const file : {"goodput.svg", "attainment.svg", "ttft_over_rate.svg"}) {
    EXPECT_TRUE(read(path(std::string("plots/") + file)).ends_with("</svg>\n")) << file;
  }
  EXPECT_EQ(result().dump(), rows.dump());
}

// LayerKV's claim: prompts need not wait for memory, so the first token comes much sooner; tokens come no faster.
TEST_F(SimulateCommand, LayerwiseKvShortensTheFirstTokenWhereMemoryIsShort) {
  const nlohmann::json rows =
      simulate({"--colocated", "4", "--limit", "600", "--model", "Llama-2-7B", "--hardware", "L20",
                "--node-capacity-blocks", "0", "--rate-scale", "0.1", "--tbt-slo-ms", "200",
                "--layerwise", "off,swap,on,auto"})["rows"];
  ASSERT_EQ(rows.size(), 4u);
  std::map<std::string, nlohmann::json> by_kind;
  for (const nlohmann::json& row : rows) by_kind[row["layerwise"]] = row;
  const auto ttft = [&](const char* kind) {
    return by_kind[kind]["ttft_ms"]["mean"].get<double>();
  };
  EXPECT_EQ(by_kind["off"]["host_bytes"]["out"], 0);
  EXPECT_LT(ttft("auto"), 0.9 * ttft("off"));
  EXPECT_LT(ttft("on"), 0.9 * ttft("off"));
  EXPECT_GT(by_kind["auto"]["host_bytes"]["out"], 0);
  EXPECT_GE(by_kind["auto"]["tpot_ms"]["mean"].get<double>(),
            by_kind["off"]["tpot_ms"]["mean"].get<double>());
}

// Two instances, and the same prompt of 2,048 tokens twice, 1,000 s apart. Without a cache every way to route computes
// it twice: c and c. With one of four blocks `local` goes where the prefix is: c and h. `round_robin` never does.
TEST_F(SimulateCommand, AMapNamesTheWinnerOfEachCellAndItsMargin) {
  std::string trace;
  for (const char* const at_ms : {"0", "1000000"}) {
    trace += std::string("{\"timestamp\": ") + at_ms +
             ", \"input_length\": 2048, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 4]}\n";
  }
  const std::string file = write("t.jsonl", trace);
  const Arguments base = {"simulate", "--trace", file, "--prefill", "2", "--json", "-"};
  const auto with = [&](const Arguments& more) {
    Arguments words = base;
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    expect_done(outcome);
    return outcome.json();
  };
  const auto ttft = [](const nlohmann::json& row) { return row["ttft_ms"]["mean"].get<double>(); };
  const double cold = ttft(with({"--node-capacity-blocks", "0"}));
  const double warm = ttft(with({"--policy", "local"}));
  ASSERT_LT(warm, cold);
  const nlohmann::json json = with({"--policy", "round_robin,local", "--map", "rate-scale=0.5,1,2",
                                    "--map", "node-capacity-blocks=0,4", "--plot", path("plots")});
  const nlohmann::json map = json["map"];
  EXPECT_EQ(map["by"], "mean_ttft");
  ASSERT_EQ(map["axes"].size(), 2u);
  EXPECT_EQ(map["axes"][0]["flag"], "rate-scale");
  EXPECT_EQ(map["axes"][0]["values"], nlohmann::json({0.5, 1, 2}));
  EXPECT_EQ(map["axes"][1]["values"], nlohmann::json({0, 4}));
  ASSERT_EQ(map["cells"].size(), 6u);
  ASSERT_EQ(json["rows"].size(), 12u);
  for (std::size_t cell = 0; cell < 6; ++cell) {
    const nlohmann::json found = map["cells"][cell];
    const bool has_cache = cell >= 3;
    const nlohmann::json at = {{"rate-scale", map["axes"][0]["values"][cell % 3]},
                               {"node-capacity-blocks", has_cache ? 4 : 0}};
    EXPECT_EQ(found["cell"], at);
    if (has_cache) {
      EXPECT_EQ(found["winner"], "local");
      EXPECT_EQ(found["second"], "round_robin");
      EXPECT_EQ(found["tie"], nullptr);
    } else {
      EXPECT_EQ(found["winner"], nullptr);
      EXPECT_EQ(found["tie"], nlohmann::json({"round_robin", "local"}));
    }
    EXPECT_EQ(found["near_tie"], !has_cache);
    EXPECT_NEAR(found["margin"].get<double>(), has_cache ? (cold - warm) / cold : 0, 1e-9);
    for (std::size_t row = 0; row < 2; ++row) {
      const nlohmann::json one = json["rows"][2 * cell + row];
      EXPECT_EQ(one["cell"], at);
      EXPECT_EQ(one["policy"], row == 0 ? "round_robin" : "local");
      EXPECT_NEAR(ttft(one), has_cache && row == 1 ? warm : cold, 1e-9 * cold);
    }
  }
  const std::string svg = read(path("plots/policy-map.svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find(">=AB</text>"), std::string::npos);
  EXPECT_NE(svg.find("A  round_robin (0)"), std::string::npos);
  EXPECT_NE(svg.find("B  local (3)"), std::string::npos);
  EXPECT_NE(svg.find("=  equal (3)"), std::string::npos);
  EXPECT_NE(svg.find("cache of an instance, blocks"), std::string::npos);
}

// Beluga's claim again, in one call: the pool wins nowhere, is near over fast links, and loses over slow ones.
TEST_F(SimulateCommand, APolicyMayHaveFlagsOfItsOwn) {
  const nlohmann::json json =
      simulate({"--prefill", "10", "--limit", "4000", "--policy",
                "conductor,least_loaded+shared-pool,least_loaded+shared-pool+pool-link-gb-s=100",
                "--map", "link-gb-s=2,100", "--map", "link-latency-us=1,100"});
  ASSERT_EQ(json["rows"].size(), 12u);
  const auto row = [&](std::size_t cell, std::size_t number) {
    return json["rows"][3 * cell + number];
  };
  EXPECT_EQ(row(0, 0)["bytes_by_kind"]["pool_read"], 0);
  EXPECT_EQ(row(0, 1)["policy"], "least_loaded+shared-pool");
  EXPECT_GT(row(0, 1)["bytes_by_kind"]["pool_read"], 0);
  EXPECT_EQ(row(0, 1)["cost"]["network"], "cxl");
  EXPECT_EQ(row(0, 0)["cost"]["network"], "rdma");
  // Over links of 100 GB/s the flag changes nothing, and it holds where the axis says 2.
  EXPECT_EQ(row(1, 1)["ttft_ms"], row(1, 2)["ttft_ms"]);
  EXPECT_EQ(row(0, 2)["ttft_ms"], row(1, 2)["ttft_ms"]);
  EXPECT_GT(row(0, 1)["ttft_ms"]["mean"], row(0, 2)["ttft_ms"]["mean"]);
  // The same rows as those of a table, and of a call for each.
  const nlohmann::json rows = simulate({"--prefill", "10", "--limit", "4000", "--policy",
                                        "conductor,least_loaded+shared-pool"})["rows"];
  const nlohmann::json pool =
      simulate({"--prefill", "10", "--limit", "4000", "--policy", "least_loaded", "--shared-pool"});
  EXPECT_EQ(rows[1]["ttft_ms"], pool["ttft_ms"]);
  EXPECT_EQ(rows[1]["cost"], pool["cost"]);
}

TEST_F(SimulateCommand, AMapComparesByTailOrGoodputToo) {
  const nlohmann::json json =
      simulate({"--prefill", "4", "--limit", "2000", "--policy", "random,conductor", "--admission",
                "none,early", "--ttft-slo-ms", "5000", "--map-by", "goodput", "--map",
                "rate-scale=1,3", "--map", "node-capacity-blocks=0,inf"});
  EXPECT_EQ(json["map"]["by"], "goodput");
  EXPECT_EQ(json["map"]["axes"][1]["values"], nlohmann::json({0, "inf"}));
  ASSERT_EQ(json["rows"].size(), 16u);
  for (std::size_t cell = 0; cell < 4; ++cell) {
    double most = 0;
    std::string name;
    for (std::size_t i = 0; i < 4; ++i) {
      const nlohmann::json row = json["rows"][4 * cell + i];
      if (row["goodput_rps"] <= most) continue;
      most = row["goodput_rps"];
      name = row["name"];
    }
    const nlohmann::json found = json["map"]["cells"][cell];
    EXPECT_EQ(found["tie"].is_array() ? found["tie"][0] : found["winner"], name);
  }
  const nlohmann::json tail =
      simulate({"--prefill", "4", "--limit", "500", "--policy", "random,conductor", "--map-by",
                "p99_ttft", "--map", "link-gb-s=5,50", "--map", "prefill=3,5"});
  const nlohmann::json rows = tail["rows"];
  EXPECT_EQ(rows[0]["per_instance"].size(), 3u);
  EXPECT_EQ(rows[4]["per_instance"].size(), 5u);
  const double random = rows[0]["ttft_ms"]["p99"], conductor = rows[1]["ttft_ms"]["p99"];
  EXPECT_NEAR(tail["map"]["cells"][0]["margin"].get<double>(),
              std::abs(random - conductor) / std::max(random, conductor), 1e-9);
}

TEST_F(SimulateCommand, AMapThatCannotBeDrawnIsOneError) {
  const auto expect = [&](Arguments flags, const std::vector<std::string>& parts) {
    Arguments words = {"simulate", "--trace", kTrace, "--prefill", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    expect_error(run(words), kUsage, parts);
  };
  const auto map = [&](const std::string& x, const std::string& y,
                       const std::vector<std::string>& parts) {
    expect({"--policy", "random,local", "--map", x, "--map", y}, parts);
  };
  map("no-such-flag=1,2", "link-gb-s=1,2", {"--map", "\"no-such-flag\"", "link-latency-us"});
  map("eviction=lru,lfu", "link-gb-s=1,2", {"--map", "\"eviction\"", "rate-scale"});
  map("link-gb-s=5", "rate-scale=1,2", {"--map", "link-gb-s", "5", "at least two"});
  map("link-gb-s=5,5", "rate-scale=1,2", {"--map", "link-gb-s", "5 twice"});
  map("link-gb-s", "rate-scale=1,2", {"--map", "link-gb-s", "empty"});
  map("link-gb-s=5,", "rate-scale=1,2", {"--map", "link-gb-s", "empty"});
  map("link-gb-s=5,fast", "rate-scale=1,2", {"--link-gb-s", "\"fast\""});
  map("link-gb-s=5,-1", "rate-scale=1,2", {"--link-gb-s", "\"-1\""});
  map("link-gb-s=5,10", "node-capacity-blocks=1,x", {"--node-capacity-blocks", "\"x\""});
  map("link-gb-s=5,10", "link-gb-s=20,50", {"--map", "link-gb-s twice"});
  expect({"--policy", "random,local", "--map", "link-gb-s=5,10"}, {"--map", "1 time,", "two axes"});
  expect({"--policy", "random,local", "--map", "link-gb-s=5,10", "--map", "rate-scale=1,2", "--map",
          "link-latency-us=1,2"},
         {"--map", "3 times", "two axes"});
  const Arguments axes = {"--map", "link-gb-s=5,10", "--map", "link-latency-us=1,2"};
  const auto with_axes = [&](Arguments flags, const std::vector<std::string>& parts) {
    flags.insert(flags.end(), axes.begin(), axes.end());
    expect(flags, parts);
  };
  with_axes({"--policy", "local"}, {"--map", "1 row", "--policy"});
  with_axes({"--policy", "random,local", "--map-by", "beauty"}, {"\"beauty\"", "p99_ttft"});
  with_axes({"--policy", "random,local", "--map-by", "goodput"}, {"goodput", "--ttft-slo-ms"});
  with_axes({"--policy", "random,local", "--csv", path("a.csv")}, {"--csv", "--map"});
  with_axes({"--policy", "random,local", "--rate-scale", "1,2"}, {"--rate-scale", "--map"});
  with_axes({"--policy", "random+link-gb-s=4,local"}, {"--map", "link-gb-s", "random+link-gb-s=4"});
  expect({"--map-by", "goodput"}, {"--map-by", "goodput", "--map"});
  expect({"--policy", "local+no-such-flag=1"}, {"--policy", "no-such-flag"});
  expect({"--policy", "local+rate-scale=2"}, {"--policy", "rate-scale"});
  expect({"--policy", "local+trace=x"}, {"--policy", "trace"});
  expect({"--policy", "local+link-gb-s"}, {"--policy", "+link-gb-s=VALUE"});
  expect({"--policy", "local+link-gb-s="}, {"--policy", "+link-gb-s=VALUE"});
  expect({"--policy", "local+link-gb-s=x"}, {"--link-gb-s", "\"x\""});
  expect({"--policy", "local+shared-pool=1"}, {"--policy", "+shared-pool"});
  expect({"--policy", "local+"}, {"--policy"});
  expect({"--policy", "best+shared-pool"}, {"\"best\"", "conductor"});
}

TEST_F(SimulateCommand, BadInputIsOneErrorThatNamesIt) {
  const auto expect = [&](Arguments flags, const std::vector<std::string>& parts) {
    Arguments words = {"simulate", "--trace", kTrace};
    words.insert(words.end(), flags.begin(), flags.end());
    expect_error(run(words), kUsage, parts);
  };
  expect({}, {"--prefill"});
  expect({"--prefill", "0"}, {"--prefill", "0"});
  expect({"--prefill", "-2"}, {"--prefill", "-2"});
  expect({"--prefill", "2", "--node-capacity-blocks", "-5"}, {"--node-capacity-blocks", "-5"});
  expect({"--prefill", "2", "--shared-pool", "--node-capacity-blocks", "0"}, {"--shared-pool"});
  expect({"--prefill", "2", "--link-gb-s", "-1"}, {"--link-gb-s", "-1"});
  expect({"--prefill", "2", "--link-gb-s", "0"}, {"--link-gb-s"});
  expect({"--prefill", "2", "--link-gb-s", "2000000"}, {"--link-gb-s", "0.000001 to 1000000"});
  expect({"--prefill", "2", "--eviction", "foo"}, {"--eviction", "foo", "lru"});
  expect({"--prefill", "2", "--policy", "best"}, {"--policy", "\"best\"", "conductor"});
  expect({"--prefill", "2", "--policy", "local,random,local"}, {"--policy", "\"local\" twice"});
  expect({"--prefill", "2", "--rate-scale", "1,2,1.0"}, {"--rate-scale", "1 twice"});
  expect({"--prefill", "2", "--admission", "late"}, {"--admission", "\"late\"", "predictive"});
  expect({"--prefill", "2", "--admission", "early"}, {"--admission", "early", "--ttft-slo-ms"});
  expect({"--prefill", "2", "--tp-link-us", "2"}, {"--tp-link-us", "--profile"});
  expect({"--prefill", "2", "--trace-format", "vllm"}, {"--trace-format", "\"vllm\"", "vllm-run"});
  for (const char* const flag : {"--meta", "--seconds"}) {
    expect({"--prefill", "2", flag, "x"}, {flag, "vllm-run"});
  }
  expect({"--prefill", "2", "--compare"}, {"--compare", "vllm-run"});
  const std::vector<Arguments> unused = {
      {"--limit", "5"},       {"--rate-scale", "2"},  {"--plot", path("p")}, {"--policy", "local"},
      {"--layerwise", "off"}, {"--step-tokens", "9"}, {"--prefill", "2"}};
  for (const Arguments& words : unused) {
    Arguments all = {"--trace-format", "vllm-run"};
    all.insert(all.end(), words.begin(), words.end());
    expect(all, {words[0], "recorded run"});
  }
  expect({"--prefill", "2", "--model", "No-Such-9B"}, {"No-Such-9B"});
  expect({"--prefill", "2", "--change", "leave:2@10"}, {"instance 2", "below 2"});
  expect({"--prefill", "2", "--change", "sleep:1@10"}, {"--change", "sleep:1@10"});
  expect({"--prefill", "1", "--decode", "1", "--decode-capacity-tokens", "0"}, {"decode"});
  expect({"--prefill", "1", "--storage-capacity-blocks", "9"}, {"--storage-capacity-blocks", "9"});
  expect({"--prefill", "1", "--network", "tcp"}, {"--network", "tcp", "rdma"});
  expect({"--prefill", "1", "--gpu-hour-usd", "-1"}, {"--gpu-hour-usd", "-1"});
  expect({"--prefill", "1", "--decode-prediction", "best"}, {"\"best\"", "uniform"});
  expect({"--prefill", "1", "--decode-check", "late"}, {"\"late\"", "present"});
  expect({"--colocated", "2", "--decode", "1"}, {"--decode", "1", "--prefill"});
  expect({"--colocated", "2", "--decode-capacity-tokens", "inf"}, {"inf", "colocated"});
  expect({"--colocated", "2", "--engine-block-tokens", "100"}, {"100", "512"});
  expect({"--prefill", "2", "--layerwise", "on"}, {"--layerwise", "\"on\"", "--colocated"});
  expect({"--colocated", "2", "--layerwise", "maybe"}, {"\"maybe\"", "auto"});
  expect({"--colocated", "2", "--rate-scale", "1,-2"}, {"--rate-scale", "-2"});
  const std::string timeless =
      write("t.jsonl", "{\"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}\n");
  expect_error(run({"simulate", "--trace", timeless, "--prefill", "1"}), kUsage,
               {"t.jsonl:1", "timestamp"});
}

TEST_F(SimulateCommand, AClusterFileGivesFlagsAndTheCommandLineWins) {
  const std::string file =
      write("c.toml", "prefill = 3\nwindow-s = 50\npolicy = [\"random\", \"local\"]\n");
  const nlohmann::json rows = simulate({"--limit", "50", "--cluster", file})["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["per_instance"].size(), 3u);
  const nlohmann::json row =
      simulate({"--limit", "50", "--cluster", file, "--prefill", "2", "--policy", "prefix"});
  EXPECT_EQ(row["policy"], "prefix");
  EXPECT_EQ(row["per_instance"].size(), 2u);
  const std::string all = write(
      "all.toml",
      "prefill = +2 # two\ndecode = 1\nlink-gb-s = 1e3\nnode-capacity-blocks = 1_000\nseed = 3\n"
      "operation-bytes = \"64KiB\"\npolicy = [\n  \"random\",  # by seed\n  'local',\n]\n"
      "shared-pool = false\neviction = \"lru\"\n");
  const nlohmann::json of_file = simulate({"--limit", "50", "--cluster", all})["rows"];
  const nlohmann::json of_flags =
      simulate({"--limit", "50", "--prefill", "2", "--decode", "1", "--link-gb-s", "1000",
                "--node-capacity-blocks", "1000", "--seed", "3", "--operation-bytes", "64KiB",
                "--policy", "random,local"})["rows"];
  ASSERT_EQ(of_file.size(), 2u);
  EXPECT_EQ(of_file[0]["ttft_ms"], of_flags[0]["ttft_ms"]);
  EXPECT_EQ(of_file[1]["ttft_ms"], of_flags[1]["ttft_ms"]);
  const auto expect = [&](const std::string& content, const std::vector<std::string>& parts) {
    expect_error(run({"simulate", "--trace", kTrace, "--cluster", write("b.toml", content)}),
                 kUsage, parts);
  };
  expect("prefill = 2\nprefil = 4\n", {"\"prefil\"", "not a flag"});
  expect("prefill = -4\n", {"--prefill", "-4"});
  expect("prefill = 2\nlink-gb-s = -1\n", {"--link-gb-s", "-1"});
  expect("prefill = \"2\"\n", {"b.toml", "--prefill", "\"2\"", "string", "expected a number"});
  expect("prefill = 2.5\n", {"b.toml", "--prefill", "\"2.5\"", "whole number"});
  expect("prefill = 2\nrate-scale = [1, \"2\"]\n", {"b.toml", "--rate-scale", "\"2\"", "string"});
  expect("prefill = 2\nshared-pool = \"true\"\n", {"b.toml", "--shared-pool", "true or false"});
  expect("prefill = 2\npolicy = []\n", {"b.toml", "--policy", "empty"});
  expect("prefill = 2\npolicy = \"local\"\npolicy = \"random\"\n", {"b.toml:", "policy"});
  expect("prefill = 2\nchange = \"fail:0@1\"\nchange = \"fail:1@1\"\n", {"b.toml:", "change"});
  expect("{\n", {"b.toml:", "TOML"});
  expect("prefill = 2\npolicy = [\"local\"\n", {"b.toml:", "TOML"});
  expect("prefill = 2\npolicy = \"best\"\n", {"b.toml", "--policy", "\"best\""});
  expect("prefill = true\n", {"--prefill", "\"true\""});
  expect("prefill = [1, 2]\n", {"b.toml", "--prefill", "\"1, 2\"", "expected one"});
  expect("prefill = 2\nprefill = 3\n", {"b.toml", "\"prefill\""});
  expect("[cluster]\nprefill = 2\n", {"b.toml", "\"cluster\"", "section"});
  expect("prefill = 2\nlink.gb-s = 4\n", {"b.toml", "\"link\"", "section"});
  expect("prefill = 2\nshared-pool = \"maybe\"\n", {"--shared-pool", "\"maybe\"", "true or false"});
  expect("prefill = 2\nshared-pool = -1\n", {"--shared-pool", "\"-1\"", "true or false"});
  expect("prefill = 2\nshared-pool = 3\n", {"--shared-pool", "\"3\"", "true or false"});
  expect("prefill = 2\ncluster = \"c.toml\"\n", {"b.toml", "\"cluster\""});
  expect("prefill = 2\nnode-capacity-blocks = -5\n", {"--node-capacity-blocks", "-5"});
  expect("prefill = 2\noperation-bytes = \"-1KiB\"\n", {"--operation-bytes", "-1KiB"});
  expect("prefill = 2\npolicy = 3\n", {"b.toml", "--policy", "\"3\"", "expected a string"});
  expect("prefill = 2\nwindow-s = nan\n", {"--window-s", "nan"});
  expect("decode = 2\n", {"--prefill"});
  expect("prefill = 1\nchange = [\"leave:7@1\"]\n", {"instance 7", "below 1"});
  expect("prefill = 1\nstorage-capacity-blocks = 5\n", {"--storage-capacity-blocks", "5", "pool"});
  expect("prefill = 1\nmodel = \"LLaMA3-70B\"\nhardware = \"RTX4090\"\n",
         {"Llama-3-70B", "RTX4090"});
  expect_error(run({"simulate", "--trace", kTrace, "--cluster", path("none.toml")}), kUsage,
               {"none.toml"});
}

// Rounded times at the border of a pass went back, and ended the program.
TEST_F(SimulateCommand, PassesOfColocatedEnginesEnd) {
  for (const char* const limit : {"52", "60"}) {
    const nlohmann::json json =
        simulate({"--limit", limit, "--prefill", "2", "--colocated", "1", "--passes", "2"});
    for (const nlohmann::json& row : json["rows"]) {
      EXPECT_EQ(row["completed"], 2 * std::stoi(limit));
      EXPECT_EQ(row["passes"].size(), 2u);
    }
  }
}

TEST_F(SimulateCommand, HitsAndBytesAddUpAfterFailures) {
  const std::vector<Arguments> runs = {
      {"--limit", "20", "--colocated", "2", "--change", "fail:1@5"},
      {"--limit", "500", "--prefill", "1", "--change", "fail:0@1"},
      {"--limit", "5", "--colocated", "4", "--shared-pool", "--pool-link-gb-s", "0.010311",
       "--operation-bytes", "64KiB", "--change", "join:0@0", "--change", "fail:1@60.5", "--change",
       "leave:1@60.5", "--change", "fail:0@1"}};
  for (const Arguments& flags : runs) {
    Arguments words = flags;
    words.insert(words.end(), {"--csv", path("r.csv")});
    const nlohmann::json json = simulate(words);
    double bytes = 0;
    for (const auto& kind : json["bytes_by_kind"]) bytes += kind.get<double>();
    EXPECT_NEAR(bytes, json["bytes_transferred"].get<double>(), 1);
    std::uint64_t tokens = 0, of_requests = 0;
    for (const auto& tier : json["hit_tokens_by_tier"]) tokens += tier.get<std::uint64_t>();
    std::istringstream lines(read(path("r.csv")));
    std::string line;
    std::getline(lines, line);
    ASSERT_TRUE(line.starts_with(
        "policy,admission,request,arrival_s,input_tokens,output_tokens,outcome,prefill,decode,"
        "hit_tokens,"));
    while (std::getline(lines, line)) {
      for (int i = 0; i < 9; ++i) line.erase(0, line.find(',') + 1);
      of_requests += std::stoull(line);
    }
    EXPECT_EQ(tokens, of_requests);
  }
}

TEST_F(SimulateCommand, NoResultTakesThePlaceOfAnInput) {
  const std::string file = write("d.toml", "prefill = 2\nlimit = 5\n");
  std::filesystem::create_symlink(file, path("link.toml"));
  const std::string models = write("m.json", "{\"models\": []}\n");
  const auto expect = [&](const Arguments& flags, const std::string& flag, const std::string& input,
                          const std::string& content) {
    Arguments words = {"simulate", "--trace", kTrace};
    words.insert(words.end(), flags.begin(), flags.end());
    expect_error(run(words), kUsage, {flag, "input"});
    EXPECT_EQ(read(input), content);
  };
  for (const char* const flag : {"--csv", "--json"}) {
    expect({"--cluster", file, flag, file}, flag, file, "prefill = 2\nlimit = 5\n");
    expect({"--cluster", file, flag, path("link.toml")}, flag, file, "prefill = 2\nlimit = 5\n");
  }
  expect({"--prefill", "2", "--calibration", models, "--json", models}, "--json", models,
         "{\"models\": []}\n");
  const std::string seconds = write("run.timeseries.csv.gz", "x");
  write("run.requests.jsonl.gz", "y");
  const std::string meta = write("run.meta.json", "z");
  const std::filesystem::path profile = path("profile");
  std::filesystem::create_directory(profile);
  const std::string part = write("profile/part.csv", "w");
  for (const std::string& input : {seconds, meta, part}) {
    expect_error(run({"simulate", "--trace", path("run.requests.jsonl.gz"), "--trace-format",
                      "vllm-run", "--profile", profile, "--meta", meta, "--json", input}),
                 kUsage, {"--json", "input"});
  }
  EXPECT_EQ(read(seconds) + read(meta) + read(part), "xzw");
}

TEST_F(SimulateCommand, ACommandThatFailsLeavesAllResultsAsTheyWere) {
  const Arguments base = {"simulate", "--trace", kTrace, "--prefill", "2", "--limit", "5"};
  const auto with = [&](const Arguments& more) {
    Arguments words = base;
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const std::string old = write("old.csv", "old");
  EXPECT_EQ(with({"--csv", old, "--json", "/dev/full"}).exit_code, 3);
  EXPECT_EQ(read(old), "old");
  EXPECT_EQ(
      with({"--csv", path("new.csv"), "--json", "/dev/full", "--plot", path("a/b")}).exit_code, 3);
  EXPECT_EQ(with({"--plot", path("p"), "--json", path("none/x")}).exit_code, kUsage);
  EXPECT_NE(
      run({"simulate", "--trace", path("none"), "--prefill", "2", "--plot", path("q")}).exit_code,
      0);
  std::filesystem::create_directory(path("small"));
  run_in_small_tmpfs(path("small"), "4k", [&] {
    write("small/filler", std::string(4096, 'x'));
    EXPECT_EQ(with({"--csv", old, "--json", path("small/x")}).exit_code, 3);
    EXPECT_EQ(read(old), "old");
  });
  for (const char* const name : {"new.csv", "a", "p", "q"}) {
    EXPECT_FALSE(std::filesystem::exists(path(name))) << name;
  }
}

}  // namespace
}  // namespace cachalot::process_test
