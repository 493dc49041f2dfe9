// What `cachalot replay` says to people: the table ends with a sentence.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

class ReplayCommandTest : public ProcessTest {
 protected:
  // Two requests with the same two blocks: half of all blocks are hits.
  Outcome replay(const std::string& verify) const {
    const std::string line =
        "{\"timestamp\": 1, \"input_length\": 1024, \"output_length\": 1, "
        "\"hash_ids\": [1, 2]}\n";
    return run({"replay", "--trace", write("trace.jsonl", line + line), "--engines", "1",
                "--block-bytes", "4096", "--capacity-blocks", "8", "--verify", verify});
  }
  static std::string last_line(const std::string& text) {
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  }
};

TEST_F(ReplayCommandTest, TheTableEndsWithWhatItShowed) {
  const std::string start =
      "Result: 1 engine process found 50.0 % of the requests' blocks in the pool instead of "
      "computing them again, and ";
  for (const auto& [verify, end] : std::vector<std::pair<std::string, std::string>>{
           {"full", "every byte that an engine read from the pool was right.\n"},
           {"sample", "every line of the sample that was checked was right.\n"},
           {"off", "the bytes of the blocks were not checked (--verify off).\n"}}) {
    const Outcome outcome = replay(verify);
    expect_done(outcome);
    EXPECT_EQ(last_line(outcome.out), start + end);
    EXPECT_NE(outcome.out.find("trace: " + path("trace.jsonl") + ", seed 1\n"), std::string::npos)
        << outcome.out;
  }
}

// Percentages of times name the whole.
TEST_F(ReplayCommandTest, SharesOfTimeNameTheTimeTheyAreSharesOf) {
  const Outcome outcome = replay("full");
  expect_done(outcome);
  const std::size_t at = outcome.out.find("\n  time ");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  const std::string row = outcome.out.substr(at, outcome.out.find('\n', at + 1) - at);
  EXPECT_NE(row.find("of 1 engine x "), std::string::npos) << row;
  for (const std::string part : {"lookup", "read", "check bytes", "make bytes", "write", "other"}) {
    EXPECT_NE(row.find(" " + part + " "), std::string::npos) << part << " in " << row;
  }
}

// Eight requests with the same blocks, by turns on two hosts.
class HostsCommandTest : public ProcessTest {
 protected:
  Outcome replay(const Arguments& flags) const {
    std::string lines;
    for (int i = 0; i < 8; ++i) {
      lines += R"({"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]})"
               "\n";
    }
    Arguments all = {"replay",
                     "--trace",
                     write("trace.jsonl", lines),
                     "--block-bytes",
                     "4096",
                     "--capacity-blocks",
                     "8"};
    all.insert(all.end(), flags.begin(), flags.end());
    return run(all);
  }
};

TEST_F(HostsCommandTest, TheHostsSumUpToTheWhole) {
  const Outcome outcome = replay({"--hosts", "2", "--peers", "--in-order", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json all = outcome.json();
  EXPECT_EQ(all["trace"], path("trace.jsonl"));
  EXPECT_EQ(all["engines"], 2);
  EXPECT_EQ(all["host_policy"], "round_robin");
  // By hand: the first request computes two blocks, the second reads them from the other host, six hit.
  EXPECT_EQ(all["blocks_hit"], 14);
  EXPECT_EQ(all["hits_by_tier"], nlohmann::json({{"pool", 12}, {"peers", 2}, {"storage", 0}}));
  ASSERT_EQ(all["hosts"].size(), 2u);
  for (const int i : {0, 1}) {
    const nlohmann::json& host = all["hosts"][i];
    EXPECT_EQ(host["host"], i);
    EXPECT_EQ(host["requests"], 4);
    EXPECT_EQ(host["blocks_total"], 8);
    EXPECT_EQ(host["verify_errors"], 0);
  }
  EXPECT_EQ(all["hosts"][0]["hits_by_tier"],
            nlohmann::json({{"pool", 6}, {"peers", 0}, {"storage", 0}}));
  EXPECT_EQ(all["hosts"][1]["hits_by_tier"],
            nlohmann::json({{"pool", 6}, {"peers", 2}, {"storage", 0}}));
  EXPECT_EQ(all["hosts"][1]["blocks_hit"], 8);
  EXPECT_EQ(all["peer_read_blocks"], 2);
}

TEST_F(HostsCommandTest, WithoutPeersNothingIsSaidOfThem) {
  const Outcome outcome = replay({"--hosts", "2", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json all = outcome.json();
  EXPECT_EQ(all["blocks_hit"], 12);
  EXPECT_EQ(all["hits_by_tier"], nlohmann::json({{"pool", 12}, {"storage", 0}}));
  EXPECT_FALSE(all.contains("peer_read_blocks"));
  EXPECT_FALSE(replay({"--json", "-"}).json().contains("hosts"));
}

TEST_F(HostsCommandTest, TheTableHasARowForEachHost) {
  const Outcome outcome = replay({"--hosts", "2", "--peers", "--in-order"});
  expect_done(outcome);
  EXPECT_NE(outcome.out.find("\n  host 0         4 requests, 75.00 % of 8 blocks: 6 in the pool, "
                             "0 from peers; 0 wrong\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("\n  host 1         4 requests, 100.00 % of 8 blocks: 6 in the pool, "
                             "2 from peers; 0 wrong\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("Result: 2 engine processes of 2 hosts found 87.5 % of "),
            std::string::npos)
      << outcome.out;
}

TEST_F(HostsCommandTest, WrongFlagsAreOneErrorEach) {
  constexpr int kUsage = 2;
  expect_error(replay({"--peers"}), kUsage, {"--peers", "--hosts"});
  expect_error(replay({"--in-order"}), kUsage, {"--in-order", "--hosts"});
  expect_error(replay({"--host-policy", "prefix"}), kUsage, {"--host-policy", "--hosts"});
  for (const std::string number : {"0", "65", "two"})
    expect_error(replay({"--hosts", number}), kUsage, {"--hosts", number, "1 to 64"});
  expect_error(replay({"--hosts", "2", "--host-policy", "nearest"}), kUsage,
               {"--host-policy", "nearest", "round_robin"});
  expect_error(replay({"--hosts", "40", "--engines", "2"}), kUsage, {"40", "2", "64"});
  expect_error(replay({"--hosts", "2", "--netns"}), kUsage, {"--netns", "--peers"});
  expect_error(replay({"--hosts", "2", "--peers", "--link-bandwidth", "1MB"}), kUsage,
               {"--link-bandwidth", "--netns"});
  expect_error(replay({"--hosts", "2", "--peers", "--netns", "--link-bandwidth", "1KB"}), kUsage,
               {"--link-bandwidth", "1KB", "100KB"});
  expect_error(replay({"--hosts", "2", "--peers", "--netns", "--storage", "redis://127.0.0.1:1"}),
               kUsage, {"redis://127.0.0.1:1", "expected none"});
  expect_error(replay({"--hosts", "2", "--pool", path("kv")}), kUsage, {"--pool", "--hosts"});
  expect_error(replay({"--hosts", "2", "--storage", "file:" + path("objects")}), kUsage,
               {"file:" + path("objects"), "redis, s3"});
  expect_error(replay({"--storage", "null:", "--storage", "null:"}), kUsage, {"--storage", "2"});
}

}  // namespace
}  // namespace cachalot::process_test
