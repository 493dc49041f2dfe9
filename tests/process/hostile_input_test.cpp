// Input that would cost a reader its stack or its memory: brackets within brackets, requests far apart in time.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kUsage = 2;
const std::string kAssets = CACHALOT_TEST_ASSETS;
const std::string kTrace = kAssets + "/traces/conversation_trace.jsonl.gz";

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

class HostileInput : public ProcessTest {
 protected:
  void expect_refused(const std::string& toml, const std::vector<std::string>& parts) const {
    expect_error(run({"simulate", "--trace", kTrace, "--cluster", write("c.toml", toml)}), kUsage,
                 parts);
  }
};

TEST_F(HostileInput, DeepTomlIsRefusedWithItsLineAndTheLimit) {
  const std::vector<std::string> parts = {"/c.toml:2: ", "at most 16 levels"};
  for (const std::size_t levels : {std::size_t{17}, std::size_t{100'000}}) {
    expect_refused("prefill = 2\nlimit = " + repeated("[", levels), parts);
    expect_refused("prefill = 2\nlimit = " + repeated("{a = ", levels), parts);
    expect_refused("prefill = 2\n[a" + repeated(".a", levels) + "]\nb = 1\n", parts);
    expect_refused("prefill = 2\na" + repeated(" . a", levels) + " = 1\n", parts);
    // After strings and comments with brackets and quotes of their own.
    expect_refused("# \"[[\nlimit = [\"]]\\\"\", '\\', \"\"\"]\"\"\"\", " + repeated("[", levels),
                   parts);
    expect_refused("x = '''\n]]''''', limit = " + repeated("[", levels), parts);
  }
  expect_refused(repeated("# a line\n", 200'000), {"/c.toml: more than 1 MiB"});
}

TEST_F(HostileInput, TomlThatIsNotUtf8IsRefusedWithItsLine) {
  const std::vector<std::string> parts = {"/c.toml:2: not valid TOML: ", "expected UTF-8"};
  for (const char* const bytes : {"\xd8", "\xff\xfe", "\xed\xa0\x80"}) {
    expect_refused("prefill = 2\n'" + repeated(bytes, 40) + "' = 1\n", parts);
    expect_refused("prefill = 2\nhardware = \"" + std::string(bytes), parts);
  }
}

TEST_F(HostileInput, BracketsInCommentsAndStringsOfTomlAreNoLevels) {
  const std::string file =
      write("c.toml", "prefill = 2  # " + repeated("[{.", 40) + "\nlimit = 5\n" +
                          "policy = [\"local\"]\nhardware = \"" + repeated("[{.", 40) + "\"\n");
  expect_error(run({"simulate", "--trace", kTrace, "--cluster", file}), kUsage, {"GPU \"[{.[{."});
}

TEST_F(HostileInput, DeepJsonIsRefusedWithItsPlace) {
  constexpr std::size_t kLevels = 100'000;
  const std::string run_file =
      kAssets + "/perf/vllm-runs/rtx4090-llama-3.1-8b-tp1.requests.jsonl.gz";
  const auto simulate_run = [&](const std::string& trace, const std::string& meta) {
    return run({"simulate", "--trace", trace, "--trace-format", "vllm-run", "--profile",
                kAssets + "/perf/rtx4090-llama-3.1-8b-tp1", "--meta", meta, "--colocated", "1"});
  };
  const std::string arrays = repeated("[", kLevels) + repeated("]", kLevels);
  const std::string objects = repeated("{\"a\":", kLevels) + "1" + repeated("}", kLevels);
  for (const std::string& text :
       {arrays, objects, "{\"timestamp\": 1, \"hash_ids\": " + arrays + "}"}) {
    const std::string file = write("t.jsonl", text + "\n");
    const std::vector<std::string> parts = {"/t.jsonl:", "JSON document was too deep"};
    for (const char* const format : {"auto", "mooncake", "weka", "dynamo"}) {
      expect_error(run({"trace", "info", file, "--trace-format", format}), kUsage, parts);
    }
    expect_error(run({"hitrate", "--trace", file}), kUsage, parts);
    expect_error(simulate_run(file, file), kUsage, parts);
    expect_error(simulate_run(run_file, file), kUsage, parts);
    expect_error(run({"simulate", "--trace", kTrace, "--prefill", "1", "--calibration", file}),
                 kUsage, parts);
    expect_error(run({"calibrate", "--check", kAssets + "/perf/silicon.csv", "--models", file}),
                 kUsage, parts);
  }
}

TEST_F(HostileInput, ADeepSnapshotOfAllocationsIsRefused) {
  // Protocol 2; empty lists; each is appended to the one before.
  const std::string file =
      write("s.pickle", "\x80\x02" + repeated("]", 100'000) + repeated("a", 99'999) + ".");
  expect_error(run({"alloc-trace", "convert", "--snapshot", file, "--out", path("a.gz")}), kUsage,
               {"/s.pickle"});
}

class FarApart : public HostileInput {
 protected:
  std::string trace(const char* second_ms) const {
    return write("t.jsonl",
                 std::string("{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 3, "
                             "\"hash_ids\": [1, 2]}\n{\"timestamp\": ") +
                     second_ms +
                     ", \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [1, 2]}\n");
  }
};

TEST_F(FarApart, CommandsWithoutAClockTakeRequestsAnyTimeApart) {
  const std::string file = trace("9e15");
  for (const Arguments& command : std::vector<Arguments>{
           {"trace", "info", file},
           {"hitrate", "--trace", file, "--plot", path("h.svg")},
           {"tiers", "--trace", file, "--device-blocks", "5", "--host-blocks", "5"},
           {"vtensor", "--trace", file, "--arrivals", "--model", "Llama-3-8B"},
           {"replay", "--trace", file, "--engines", "1", "--block-bytes", "4096",
            "--capacity-blocks", "64"}}) {
    expect_done(run(command));
  }
}

TEST_F(FarApart, ASimulationAndAReplayInTimeNameTheRequestItsTimeAndTheLimit) {
  const std::string file = trace("9e15");
  for (const char* const kind : {"--prefill", "--colocated"}) {
    expect_error(run({"simulate", "--trace", file, kind, "2"}), kUsage,
                 {"the last of 2 requests is at 9e+15 ms", "4.29497e+12 ms"});
  }
  expect_error(run({"replay", "--trace", file, "--engines", "1", "--block-bytes", "4096",
                    "--capacity-blocks", "64", "--speed", "1"}),
               kUsage, {"/t.jsonl: request 2 is due 1.04167e+08 days after the first", "366"});
}

// 136 years of windows of a second would be 4e9 of each instance.
TEST_F(FarApart, ASimulationHasWindowsOfATimeByWhichTheyAreFew) {
  const std::string file = trace("4.2e12");
  for (const char* const kind : {"--prefill", "--colocated"}) {
    const Outcome outcome = run({"simulate", "--trace", file, kind, "2", "--window-s", "1",
                                 "--plot", path("plots"), "--json", "-"});
    expect_done(outcome);
    const nlohmann::json json = outcome.json();
    EXPECT_EQ(json["window_s"], 262144) << "2^18: the least above 4.2e9 s / 16384";
    EXPECT_LE(json["decode_load"].size(), 16384u);
    EXPECT_EQ(json["completed"], 2);
  }
}

}  // namespace
}  // namespace cachalot::process_test
