// `cachalot alloc-replay`: figures, refusals, limits, real memory.
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kStitched =
    CACHALOT_TEST_ASSETS "/alloc/real_cs336_medium_128_training.trace.gz";
constexpr const char* kTraining =
    CACHALOT_TEST_ASSETS "/alloc/real_cs336_medium_256_training.trace.gz";

class AllocReplayCommand : public ProcessTest {
 protected:
  static nlohmann::json replay(const Arguments& more) {
    Arguments arguments = {"alloc-replay", "--json", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    expect_done(outcome);
    return outcome.json();
  }
};

TEST_F(AllocReplayCommand, OneAllocatorGivesOneObject) {
  const nlohmann::json row = replay({"--trace", kTraining, "--allocator", "caching"});
  EXPECT_EQ(row["events"], 13691);
  EXPECT_EQ(row["peak_live_bytes"], 9103544320);
  EXPECT_EQ(row["peak_reserved_bytes"], 9307160576);
  EXPECT_NEAR(row["utilization"].get<double>(), 9103544320.0 / 9307160576.0, 1e-12);
  EXPECT_EQ(row["stitches"], 0);
  EXPECT_EQ(row["oom"], 0);
  std::uint64_t calls = 0;
  for (const auto& [kind, count] : row["calls"].items()) calls += count.get<std::uint64_t>();
  EXPECT_EQ(row["driver_calls"], calls);
  EXPECT_GT(row["alloc_us"]["p99"].get<double>(), 0);
}

TEST_F(AllocReplayCommand, SeveralAllocatorsGiveRows) {
  const nlohmann::json rows = replay({"--trace", kStitched, "--allocator", "all"})["rows"];
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2]["allocator"], "stitch");
  EXPECT_GT(rows[2]["stitches"], 0);
  EXPECT_GT(rows[2]["states"]["repeated"], 0);
}

// The talk's six requests: R3 is stitched, R4 and R6 are stitched and added to, R5 is R1's block.
TEST_F(AllocReplayCommand, TheSixRequestsOfTheTalk) {
  const auto mib = [](std::uint64_t count) { return std::to_string(count << 20); };
  const std::string trace =
      write("talk.trace", "a 1 " + mib(200) + "\na 2 " + mib(300) + "\nf 1\nf 2\na 3 " + mib(500) +
                              "\nf 3\na 4 " + mib(750) + "\nf 4\na 5 " + mib(200) + "\na 6 " +
                              mib(800) + "\n");
  const nlohmann::json rows = replay({"--trace", trace, "--allocator", "caching,stitch"})["rows"];
  EXPECT_EQ(rows[0]["peak_reserved_bytes"], std::uint64_t{200 + 300 + 500 + 750 + 800} << 20);
  EXPECT_EQ(rows[1]["peak_reserved_bytes"], std::uint64_t{1000} << 20);
  EXPECT_EQ(rows[1]["stitches"], 3);
  EXPECT_EQ(rows[1]["states"]["exact_primitive"], 1);
}

TEST_F(AllocReplayCommand, MarksGiveIterations) {
  const std::string trace =
      write("marked.trace", "a 1 100\nm first\na 2 4194304\nf 2\nm second\na 3 4194304\nf 3\n");
  const nlohmann::json row = replay({"--trace", trace});
  ASSERT_EQ(row["iterations"].size(), 2u);
  EXPECT_EQ(row["iterations"][0]["name"], "first");
  EXPECT_EQ(row["iterations"][0]["driver_allocations"], 1);
  EXPECT_EQ(row["iterations"][1]["allocations"], 1);
  EXPECT_EQ(row["iterations"][1]["driver_allocations"], 0);
}

TEST_F(AllocReplayCommand, WhereNothingIsAskedForNothingIsUsedWellOrBadly) {
  const std::string trace = write("marks.trace", "m first\nm second\n");
  const nlohmann::json row = replay({"--trace", trace});
  EXPECT_TRUE(row.at("utilization").is_null()) << row;
  EXPECT_TRUE(row.at("alloc_us").at("p50").is_null() && row["alloc_us"].at("p99").is_null()) << row;
  EXPECT_TRUE(row.at("free_us").at("p50").is_null() && row["free_us"].at("p99").is_null()) << row;
  EXPECT_EQ(row["allocations"], 0);
  EXPECT_EQ(row["iterations"].size(), 2u);
  const Outcome outcome = run({"alloc-replay", "--trace", trace});
  expect_done(outcome);
  EXPECT_EQ(outcome.out.find('%'), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("nothing was asked for: no allocation among the 2 events"),
            std::string::npos)
      << outcome.out;
}

TEST_F(AllocReplayCommand, OfWhatWasNotHeldAndNotFreedThereIsNoFigure) {
  const nlohmann::json kept = replay({"--trace", write("kept.trace", "a 1 4096\n")});
  EXPECT_TRUE(kept.at("alloc_us").at("p50").is_number()) << kept;
  EXPECT_TRUE(kept.at("free_us").at("p50").is_null() && kept["free_us"].at("p99").is_null())
      << kept;
  EXPECT_EQ(kept["peak_live_bytes"], 4096);
  EXPECT_TRUE(kept["utilization"].is_number()) << kept;
  // All that was asked for was refused: nothing of nothing is no share.
  const std::string trace = write("refused.trace", "a 1 8589934592\n");
  const nlohmann::json refused = replay({"--trace", trace, "--limit", "4GiB"});
  EXPECT_TRUE(refused.at("utilization").is_null()) << refused;
  EXPECT_EQ(refused["oom"], 1);
  EXPECT_EQ(refused["peak_reserved_bytes"], 0);
  const Outcome outcome = run({"alloc-replay", "--trace", trace, "--limit", "4GiB"});
  expect_done(outcome);
  EXPECT_EQ(outcome.out.find('%'), std::string::npos) << outcome.out;
}

TEST_F(AllocReplayCommand, RequestsThatAreRefusedAreNotAmongThoseWithDriverCalls) {
  std::string events;
  for (int id = 1; id <= 6; ++id) events += "a " + std::to_string(id) + " 1073741824\n";
  const nlohmann::json rows = replay(
      {"--trace", write("short.trace", events), "--allocator", "all", "--limit", "2GiB"})["rows"];
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["oom"], row["allocator"] == "expandable" ? 5 : 4) << row;
    EXPECT_EQ(row["driver_allocations"], row["allocations"]) << row;
    EXPECT_EQ(row["second_half"]["driver_allocations"], 0) << row;
  }
}

TEST_F(AllocReplayCommand, ATraceFromAPipeIsScaledToASizeToo) {
  const std::string input = path("pipe");
  ASSERT_EQ(mkfifo(input.c_str(), 0600), 0);
  std::thread writing([&] { std::ofstream(input) << "a 1 100\na 2 100\nf 1\n"; });
  const nlohmann::json row = replay({"--trace", input, "--scale", "4MiB"});
  writing.join();
  EXPECT_EQ(row["peak_live_bytes"], 4 << 20);
  EXPECT_EQ(row["events"], 3);
}

// The last one's result stands, as if it had begun when the first was done.
TEST_F(AllocReplayCommand, TwoThatWriteOneNewFileBothWriteIt) {
  const std::string input = path("input"), result = path("result.json");
  ASSERT_EQ(mkfifo(input.c_str(), 0600), 0);
  Outcome first;
  std::thread running([&] { first = run({"alloc-replay", "--trace", input, "--json", result}); });
  {
    std::ofstream to_it(input);  // opened when its output was looked at
    expect_done(
        run({"alloc-replay", "--trace", write("a", "a 1 100\na 2 100\nf 1\n"), "--json", result}));
    EXPECT_EQ(nlohmann::json::parse(read(result))["events"], 3);
    to_it << "a 1 100\n";
  }
  running.join();
  expect_done(first);
  EXPECT_EQ(nlohmann::json::parse(read(result))["events"], 1);
}

TEST_F(AllocReplayCommand, RealMemoryIsCheckedByteByByte) {
  const nlohmann::json rows = replay({"--trace", kTraining, "--allocator", "all", "--backend",
                                      "memfd", "--scale", "96MiB"})["rows"];
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["verify_checked"], row["allocations"]);
    EXPECT_EQ(row["verify_errors"], 0);
    EXPECT_NEAR(row["peak_live_bytes"].get<double>() / (96 << 20), 1, 0.001);
  }
}

TEST_F(AllocReplayCommand, ALimitIsMetAndNotExceeded) {
  const nlohmann::json row = replay({"--trace", kTraining, "--limit", "4GiB"});
  EXPECT_GT(row["oom"], 0);
  EXPECT_EQ(row["peak_reserved_bytes"], std::uint64_t{4} << 30);
}

TEST_F(AllocReplayCommand, RefusesATraceThatTheMachineHasNoMemoryFor) {
  const Outcome outcome =
      run({"alloc-replay", "--trace", kTraining, "--backend", "memfd", "--scale", "8TiB"});
  expect_error(outcome, 3, {"at its peak", "--scale", "--limit"});
}

TEST_F(AllocReplayCommand, DrawsALineForWhatEachAllocatorHolds) {
  const Outcome outcome = run({"alloc-replay", "--trace", kStitched, "--allocator", "all", "--plot",
                               path("a.svg"), "--json", path("a.json")});
  expect_done(outcome);
  const std::string svg = read(path("a.svg"));
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_NE(svg.find("Memory of real_cs336_medium_128_training.trace.gz"), std::string::npos);
  for (const char* allocator : {"caching", "expandable", "stitch"})
    EXPECT_NE(svg.find(std::string(">") + allocator + "</text>"), std::string::npos) << allocator;
  EXPECT_NE(svg.find("at most 6.75 GiB"), std::string::npos) << svg.substr(svg.size() - 2000);
  std::set<std::string> colours;
  for (std::size_t at = svg.find("<path fill='none' stroke='"); at != std::string::npos;
       at = svg.find("<path fill='none' stroke='", at + 1)) {
    colours.insert(svg.substr(at + 26, 7));
  }
  EXPECT_EQ(colours.size(), 3u);
}

TEST_F(AllocReplayCommand, TheDrawingMayGoToStdout) {
  const std::string trace = write("two.trace", "a 1 1048576\nf 1\n");
  const Outcome outcome = run({"alloc-replay", "--trace", trace, "--plot", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("<svg ") && outcome.out.ends_with("</svg>\n")) << outcome.out;
}

TEST_F(AllocReplayCommand, RefusesWhatMakesNoSense) {
  const auto refused = [&](const Arguments& more, const std::string& words) {
    Arguments arguments = {"alloc-replay", "--trace", kTraining};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_error(run(arguments), 2, {words});
  };
  refused({"--allocator", "pytorch"}, "--allocator: \"pytorch\", expected caching");
  refused({"--allocator", "all,stitch"},
          "--allocator: \"stitch\" with \"all\", expected all alone");
  refused({"--allocator", "caching,all"}, "--allocator: \"caching\" with \"all\"");
  refused({"--allocator", "all,all"}, "--allocator: \"all\" with \"all\"");
  refused({"--backend", "disk"}, "--backend: \"disk\", expected model");
  refused({"--verify", "full"}, "the model has no memory");
  refused({"--scale", "0"}, "--scale: \"0\", expected");
  refused({"--scale", "0x10"}, "--scale: \"0x10\"");
  refused({"--scale", "1e3"}, "--scale: \"1e3\"");
  refused({"--scale", "."}, "--scale: \".\", expected");
  refused({"--allocator", "caching", "--frag-limit", "4MiB"}, "--frag-limit 4MiB: applies to");
  refused({"--allocator", "caching", "--stitched-limit", "1GiB"}, "--stitched-limit 1GiB: applies");
  refused({"--backend", "memfd", "--costs", "gmlake_table1"}, "--costs gmlake_table1: applies to");
  refused({"--tmpfs", "/tmp"}, "--tmpfs /tmp: applies to --backend memfd only");
  refused({"--scale", "-1"}, "--scale");
  refused({"--limit", "0"}, "--limit: 0 bytes");
  refused({"--costs", "mine"}, "--costs: \"mine\", expected one of");
  refused({"--frag-limit", "lots"}, "--frag-limit");
  refused({"--json", kTraining}, "--json");
  refused({"--plot", kTraining}, "--plot");
  refused({"--plot", path("a.png")}, "does not end with .svg");
  refused({"--plot", "-", "--json", "-"}, "--plot and --json are both \"-\"");
  refused({"--plot", path("a.svg"), "--json", path("a.svg")}, "a.svg");
}

}  // namespace
}  // namespace cachalot::process_test
