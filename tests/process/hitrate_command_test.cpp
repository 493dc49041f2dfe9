// `cachalot hitrate` on a production trace: exact counts in JSON, CSV and on the drawing.
#include <algorithm>
#include <set>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";
constexpr const char* kCapacities = "1000,10000,30000,50000,100000,inf";
// Two independent programs agreed on these.
constexpr int kStream[] = {12831, 60921, 93967, 102290, 104924, 105710};
constexpr int kLeaf[] = {12847, 61046, 93978, 102290, 104924, 105710};

constexpr const char* kOneRequest =
    "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}\n";

class HitRateCommand : public ProcessTest {
 protected:
  static void expect_counts(const nlohmann::json& result, const char* mode,
                            const int (&counts)[6]) {
    EXPECT_EQ(result["blocks_total"], 288500);
    EXPECT_EQ(result["blocks_unique"], 182790);
    ASSERT_EQ(result["rows"].size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
      const nlohmann::json& row = result["rows"][i];
      EXPECT_EQ(row["policy"], "lru");
      EXPECT_EQ(row["mode"], mode);
      EXPECT_EQ(row["hit_blocks"], counts[i]) << row;
      EXPECT_EQ(row["prefix_blocks"], counts[i]) << row;
      EXPECT_NEAR(row["hit_rate"].get<double>(), counts[i] / 288500.0, 1e-9);
      EXPECT_NEAR(row["prefix_hit_rate"].get<double>(), counts[i] / 288500.0, 1e-9);
    }
    EXPECT_EQ(result["rows"][0]["capacity_blocks"], 1000);
    EXPECT_EQ(result["rows"][5]["capacity_blocks"], "inf");
    EXPECT_NEAR(result["rows"][5]["token_hit_rate"].get<double>(), 0.3736, 0.00005);
  }
};

TEST_F(HitRateCommand, CountsTheConversationTraceExactlyInBothModes) {
  const Outcome leaf =
      run({"hitrate", "--trace", kTrace, "--capacity-blocks", kCapacities, "--json", "-"});
  expect_done(leaf);
  expect_counts(leaf.json(), "leaf", kLeaf);
  const Outcome stream = run({"hitrate", "--trace", kTrace, "--policy", "lru", "--mode", "stream",
                              "--capacity-blocks", kCapacities, "--json", "-"});
  expect_done(stream);
  expect_counts(stream.json(), "stream", kStream);
}

TEST_F(HitRateCommand, WritesTableCsvAndDrawingBesideTheJson) {
  const Outcome outcome =
      run({"hitrate", "--trace", kTrace, "--capacity-blocks", "1000,inf", "--csv", path("a.csv"),
           "--plot", path("a.svg"), "--json", path("a.json")});
  expect_done(outcome);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("12847"), std::string::npos) << outcome.out;
  const std::string csv = read(path("a.csv"));
  EXPECT_NE(csv.find("\nlru,leaf,1000,12847,12847,"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\nlru,leaf,inf,105710,105710,"), std::string::npos) << csv;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  const std::string svg = read(path("a.svg"));
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_NE(svg.find("unlimited: 36.6 %"), std::string::npos) << svg;
  const nlohmann::json json = nlohmann::json::parse(read(path("a.json")));
  EXPECT_EQ(json["rows"][0]["hit_blocks"], 12847);
  EXPECT_EQ(json["trace"], kTrace);
  EXPECT_EQ(json["flags"]["capacity-blocks"], "1000,inf");
  EXPECT_TRUE(outcome.out.starts_with("trace: " + std::string(kTrace) + "\n")) << outcome.out;
}

// Two independent programs agreed on these.
TEST_F(HitRateCommand, CountsTheTokensOfTheRequestsAfterTheWarmUp) {
  struct Expected {
    const char *mode, *policy, *capacity;
    std::uint64_t hit_tokens;
  };
  constexpr Expected kExpected[] = {{"leaf", "lru", "39107", 25'288'184},
                                    {"stream", "lru", "39107", 25'286'648},
                                    {"stream", "fifo", "9776", 12'302'919},
                                    {"stream", "opt", "9776", 27'038'068}};
  for (const Expected& e : kExpected) {
    const Outcome outcome = run({"hitrate", "--trace", kTrace, "--mode", e.mode, "--policy",
                                 e.policy, "--capacity-blocks", e.capacity, "--warmup", "0.5",
                                 "--count", "tokens", "--csv", path("a.csv"), "--json", "-"});
    expect_done(outcome);
    const nlohmann::json result = outcome.json();
    EXPECT_EQ(result["warmup_requests"], 6015);
    EXPECT_EQ(result["blocks_total"], 288500);
    const nlohmann::json& row = result["rows"][0];
    EXPECT_EQ(row["hit_tokens"], e.hit_tokens) << e.mode << " " << e.policy;
    EXPECT_EQ(row["tokens"], 67'915'607);
    EXPECT_NEAR(row["token_hit_rate"].get<double>(), static_cast<double>(e.hit_tokens) / 67915607.0,
                1e-12);
    const std::string tail = "," + std::to_string(e.hit_tokens) + ",67915607\n";
    EXPECT_TRUE(read(path("a.csv")).ends_with(tail)) << read(path("a.csv"));
  }
}

TEST_F(HitRateCommand, AWarmUpNeedsAFractionBelowOneAndAFileToReadTwice) {
  for (const char* const fraction : {"1", "-0.5", "nan", "half"}) {
    expect_error(run({"hitrate", "--trace", kTrace, "--warmup", fraction}), 2, {"--warmup"});
  }
  expect_error(run({"hitrate", "--trace", "/dev/null", "--warmup", "0.5"}), 2,
               {"--trace", "/dev/null", "regular file"});
}

// A file's name may be any bytes, and long; a drawing with half a character in it cannot be opened.
// The same counts as of a trace that was converted to the larger blocks.
TEST_F(HitRateCommand, SeveralBlockSizesAreCountedInOneCall) {
  const Outcome outcome = run({"hitrate", "--trace", kTrace, "--policy", "lru,opt",
                               "--capacity-blocks", "4001,40000,inf", "--page-tokens",
                               "512,2048,8192", "--csv", path("a.csv"), "--json", "-"});
  expect_done(outcome);
  const nlohmann::json sizes = outcome.json();
  ASSERT_EQ(sizes.size(), 3u);
  std::string csv_tail;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string tokens = std::to_string(512 << (2 * i));
    expect_done(run({"trace", "convert", "--trace", kTrace, "--block-tokens", tokens, "--out",
                     path(tokens + ".jsonl")}));
    const auto blocks = [&](int of_trace) { return std::to_string(of_trace >> (2 * i)); };
    const Outcome alone = run({"hitrate", "--trace", path(tokens + ".jsonl"), "--policy", "lru,opt",
                               "--block-tokens", tokens, "--capacity-blocks",
                               blocks(4001) + "," + blocks(40000) + ",inf", "--json", "-"});
    expect_done(alone);
    nlohmann::json expected = alone.json(), size = sizes[i];
    for (const char* const other : {"wall_s", "trace", "flags"}) {
      expected.erase(other);
      size.erase(other);
    }
    EXPECT_EQ(size, expected);
    EXPECT_NE(outcome.err.find(" blocks of " + tokens + " tokens"), std::string::npos);
    csv_tail = "," + tokens + "\n";
  }
  const std::string csv = read(path("a.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 3 * 6);
  EXPECT_NE(csv.find("token_hit_rate,block_tokens\n"), std::string::npos) << csv;
  EXPECT_EQ(csv.substr(csv.size() - csv_tail.size()), csv_tail);
}

TEST_F(HitRateCommand, BlockSizesThatTheTraceCannotGiveAreOneError) {
  const auto refused = [&](Arguments more, const std::string& text) {
    Arguments words = {"hitrate", "--trace", kTrace};
    words.insert(words.end(), more.begin(), more.end());
    expect_error(run(words), 2, {text});
  };
  refused({"--page-tokens", "512,16"}, "--page-tokens: 16, expected multiples of 512");
  refused({"--page-tokens", "0"}, "--page-tokens: 0, expected multiples of 512");
  refused({"--page-tokens", "1024,x"}, "--page-tokens");
  refused({"--page-tokens", "1024,"}, "--page-tokens");
  refused({"--page-tokens", "2048", "--capacity-blocks", "3"},
          "--capacity-blocks: 3 blocks of the trace, expected at least the 4");
  refused({"--page-tokens", "1024", "--plot", path("a.svg")}, "expected no --page-tokens");
}

TEST_F(HitRateCommand, TheDrawingsTitleIsWellFormedWhateverTheTraceIsCalled) {
  const std::string request =
      R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})";
  const auto title_of = [&](const std::string& name) {
    write(name, request + "\n");
    const Outcome outcome = run({"hitrate", "--trace", path(name), "--plot", "-"});
    expect_done(outcome);
    const std::size_t begin = outcome.out.find("Hit rate of ");
    return outcome.out.substr(begin, outcome.out.find("</text>", begin) - begin);
  };
  std::string letters, shown;
  for (int i = 0; i < 60; ++i) letters += "\u00fc";
  for (int i = 0; i < 21; ++i) shown += "\u00fc";
  EXPECT_EQ(title_of("x" + letters + ".jsonl"), "Hit rate of x" + shown + "\u2026");
  EXPECT_EQ(title_of("\xff<a&b>.jsonl"), "Hit rate of \ufffd&lt;a&amp;b&gt;.jsonl");
}

TEST_F(HitRateCommand, ADrawingOfUnlimitedCapacitiesOnlySaysSoInPlaceOfCapacities) {
  const Outcome outcome = run(
      {"hitrate", "--trace", kTrace, "--capacity-blocks", "inf", "--no-summary", "--plot", "-"});
  expect_done(outcome);
  EXPECT_NE(outcome.out.find("no curve"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("capacity in blocks"), std::string::npos) << outcome.out;
}

// Whatever else is drawn, and in whatever order.
TEST_F(HitRateCommand, APolicyHasOneColourInEveryDrawing) {
  const std::string trace = write("t.jsonl", kOneRequest);
  const auto colour_of = [&](const std::string& policy, const char* mode, const std::string& all) {
    const Outcome outcome = run({"hitrate", "--trace", trace, "--mode", mode, "--policy", all,
                                 "--capacity-blocks", "1,10", "--plot", "-"});
    expect_done(outcome);
    const std::size_t name = outcome.out.find(">" + policy + "</text>");
    EXPECT_NE(name, std::string::npos) << outcome.out;
    return outcome.out.substr(name - 8, 7);
  };
  std::set<std::string> colours;
  for (const std::string policy : {"lru", "fifo", "lfu", "length_aware", "opt"}) {
    const std::string colour = colour_of(policy, "leaf", policy);
    EXPECT_TRUE(colour.starts_with("#")) << colour;
    EXPECT_EQ(colour_of(policy, "leaf", "all"), colour);
    EXPECT_EQ(colour_of(policy, "stream", "opt,lfu,length_aware,fifo,lru"), colour);
    colours.insert(colour);
  }
  for (const std::string policy : {"s3fifo", "arc", "wtinylfu"})
    colours.insert(colour_of(policy, "stream", "all"));
  colours.insert(colour_of("hit_density", "leaf", "all"));
  EXPECT_EQ(colours.size(), 9u);
}

// Of one request all policies hit the same: each line has a dash in turn, and one of the marks.
TEST_F(HitRateCommand, ALineUnderAnotherOneIsSeen) {
  const std::string trace = write("t.jsonl", kOneRequest);
  const Outcome outcome = run({"hitrate", "--trace", trace, "--policy", "lru,fifo,lfu",
                               "--capacity-blocks", "1,10,100", "--plot", "-"});
  expect_done(outcome);
  std::set<std::string> offsets;
  const std::string key = "stroke-dashoffset='";
  for (std::size_t at = outcome.out.find(key); at != std::string::npos;
       at = outcome.out.find(key, at + 1)) {
    const std::size_t value = at + key.size();
    offsets.insert(outcome.out.substr(value, outcome.out.find('\'', value) - value));
  }
  EXPECT_EQ(offsets.size(), 3u) << outcome.out;
  const Outcome alone = run({"hitrate", "--trace", trace, "--policy", "lru", "--capacity-blocks",
                             "1,10,100", "--plot", "-"});
  EXPECT_EQ(alone.out.find(key), std::string::npos) << alone.out;
}

// The same policy or capacity twice is drawn once.
TEST_F(HitRateCommand, WhatIsAskedForTwiceIsDrawn) {
  const std::string trace = write("t.jsonl", kOneRequest);
  const Outcome outcome = run({"hitrate", "--trace", trace, "--policy", "lru,lru,fifo",
                               "--capacity-blocks", "10,1,10", "--plot", "-"});
  expect_done(outcome);
  EXPECT_TRUE(outcome.out.ends_with("</svg>\n")) << outcome.out;
}

}  // namespace
}  // namespace cachalot::process_test
