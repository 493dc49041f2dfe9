// `cachalot bench coherence`, `sweep`, `skew`, `background`: which rows they give, and what of Beluga stands beside.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "os/topology.h"
#include "program.h"

namespace cachalot::process_test {
namespace {

using Rows = std::map<std::string, nlohmann::json>;

class BenchHardwareTest : public ProcessTest {
 protected:
  void measure(const std::string& benchmark) {
    const Outcome outcome = run({"bench", benchmark, "--quick", "--repeats", "1", "--json", "-"});
    expect_done(outcome);
    const nlohmann::json report = outcome.json();
    for (const nlohmann::json& row : report.at("rows")) rows_[row.at("name")] = row;
    for (const nlohmann::json& note : report.at("notes")) notes_ += note.get<std::string>() + "\n";
  }
  // A row and the one of its 99th percentile, which is not below the median.
  void expect_latency(const std::string& name) {
    ASSERT_TRUE(rows_.contains(name)) << name;
    ASSERT_TRUE(rows_.contains(name + "/p99")) << name;
    EXPECT_GT(rows_.at(name).at("value"), 0) << name;
    EXPECT_GE(rows_.at(name + "/p99").at("value"), rows_.at(name).at("value")) << name;
  }
  bool says(const std::string& text) const { return notes_.find(text) != std::string::npos; }

  Rows rows_;
  std::string notes_;
};

TEST_F(BenchHardwareTest, EachCoherenceMethodHasItsRowsBesideThePaper) {
  measure("coherence");
  for (const char* name : {"write/non_temporal", "write/non_temporal/ordered", "write/clflush",
                           "read/clflush/stale", "read/clflush/absent"}) {
    expect_latency(name);
    EXPECT_GT(rows_.at(name).at("baseline_value"), 0) << name;
  }
  // A method that the processor lacks is named instead.
  for (const char* method : {"clflushopt", "clwb"}) {
    const bool is_there = rows_.contains(std::string("write/") + method);
    EXPECT_NE(is_there, says(std::string("no rows of ") + method)) << notes_;
  }
  EXPECT_FALSE(rows_.contains("read/clwb/stale"));  // CLWB keeps the line
  EXPECT_EQ(rows_.at("write/non_temporal").at("paper"), 2.41);
  EXPECT_EQ(rows_.at("write/clflush").at("paper"), 8.5);
  EXPECT_EQ(rows_.at("read/clflush/stale").at("paper"), 5.98);
  EXPECT_FALSE(rows_.at("read/clflush/absent").contains("paper"));
  EXPECT_TRUE(says("no rows of uncacheable memory")) << notes_;
}

TEST_F(BenchHardwareTest, DevicesAreMeasuredTogetherWhereTheyAreNamed) {
  measure("devices");
  const unsigned cores = static_cast<unsigned>(os::online_cores().size());
  for (const char* direction : {"read", "write", "both"}) {
    for (const char* devices : {"1", "4"}) {
      const std::string name =
          std::string(direction) + "/devices" + devices + "/cores" + std::to_string(cores);
      ASSERT_TRUE(rows_.contains(name)) << name;
      EXPECT_GT(rows_.at(name).at("value"), 0) << name;
      EXPECT_GT(rows_.at(name).at("baseline_value"), 0) << name;
    }
  }
  EXPECT_EQ(rows_.at("read/devices1/cores" + std::to_string(cores)).at("paper"), 22.5);
  // A pool is not written over, and a file that was made is gone.
  const std::string pool = create_pool("kv");
  const auto expect_refusal = [](const Arguments& bench, int code, const std::string& text) {
    const Outcome outcome = run(bench);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  expect_refusal({"bench", "devices", "--quick", "--repeats", "1", "--device", pool}, 3,
                 pool + ": holds a pool");
  expect_done(run({"bench", "devices", "--quick", "--repeats", "1", "--device", path("new")}));
  EXPECT_FALSE(std::filesystem::exists(path("new")));
  expect_refusal({"bench", "skew", "--quick", "--repeats", "1", "--device", path("new")}, 2,
                 "--device: 1 were named, expected 4");
}

TEST_F(BenchHardwareTest, TheTableHasAColumnForThePaperWhereThereIsOne) {
  const auto header = [](const std::string& benchmark) {
    const Outcome outcome = run({"bench", benchmark, "--quick", "--repeats", "1"});
    expect_done(outcome);
    const std::size_t at = outcome.out.find("\n" + benchmark + " ");
    EXPECT_NE(at, std::string::npos) << outcome.out;
    return outcome.out.substr(at + 1, outcome.out.find('\n', at + 1) - at - 1);
  };
  EXPECT_NE(header("coherence").find(" paper "), std::string::npos);
  EXPECT_EQ(header("hash").find(" paper "), std::string::npos);
}

TEST_F(BenchHardwareTest, TheSweepHasEachSizeInBothDomains) {
  measure("sweep");
  for (const std::string direction : {"write/", "read/"}) {
    for (const std::string size : {"64", "16Ki", "4Mi"}) {
      for (const std::string domain : {"/coherent", "/noncoherent"}) {
        expect_latency(direction + size + domain);
        EXPECT_GT(rows_.at(direction + size + domain).at("baseline_value"), 0);
      }
    }
  }
  EXPECT_EQ(rows_.at("read/64/noncoherent").at("paper"), 0.75);
  EXPECT_NE(rows_.contains("message/16Ki/ucx_tcp"), says("no rows of UCX")) << notes_;
}

TEST_F(BenchHardwareTest, InterleavingTakesSkewedBlocksOffOneDevice) {
  measure("skew");
  for (const std::string name : {"read/16Ki", "read/2560Ki", "write/16Ki", "write/2560Ki"}) {
    ASSERT_TRUE(rows_.contains(name + "/filled")) << name;
    const nlohmann::json &one = rows_.at(name + "/filled"), &all = rows_.at(name + "/interleaved");
    EXPECT_GT(one.at("value"), 0) << name;
    EXPECT_EQ(all.at("baseline_value"), one.at("value")) << name;
    EXPECT_NEAR(all.at("paper_ratio"), 1.333, 0.001);
    EXPECT_GT(one.at("device_cap_gb_s"), 0);
    // Shares of Zipf 0.99, by arithmetic: of 16,384 blocks the first quarter gets 86 %, of 102 blocks 73 %.
    const bool is_small = name.ends_with("/16Ki");
    EXPECT_NEAR(one.at("busiest_device_share"), is_small ? 0.86 : 0.73, 0.02) << name;
    EXPECT_LT(all.at("busiest_device_share"), is_small ? 0.64 : 0.36) << name;
    EXPECT_GE(all.at("busiest_device_share"), 0.25) << name;
  }
  EXPECT_TRUE(says("bandwidth is emulated")) << notes_;
}

TEST_F(BenchHardwareTest, SmallOperationsStandBesideThoseWithoutBulk) {
  measure("background");
  if (std::thread::hardware_concurrency() < 2) {
    EXPECT_TRUE(says("second core")) << notes_;
    return;
  }
  for (const std::string operation : {"read/64", "write/64", "read/16Ki", "write/16Ki"}) {
    expect_latency(operation + "/alone");
    for (const std::string bulk : {"/same", "/other"}) {
      expect_latency(operation + bulk);
      EXPECT_EQ(rows_.at(operation + bulk).at("baseline_value"),
                rows_.at(operation + "/alone").at("value"));
    }
  }
  EXPECT_EQ(rows_.at("read/64/same").at("paper_ratio"), 1);
  EXPECT_GT(rows_.at("bulk/read").at("value"), 0);
  EXPECT_GT(rows_.at("bulk/write").at("value"), 0);
}

}  // namespace
}  // namespace cachalot::process_test
