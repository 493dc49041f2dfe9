// Wrong flags, sizes and files: one clear error each, and nothing left behind.
#include <unistd.h>

#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kUsage = 2;

const std::vector<Arguments> kCommands = {
    {"replay"}, {"serve"}, {"stop"},   {"pool", "create"}, {"pool", "info"}, {"pool", "destroy"},
    {"put"},    {"get"},   {"lookup"}, {"evict"},          {"hitrate"},      {"bench"}};

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class BadInput : public ProcessTest {
 protected:
  // `pool create` with these flags fails like this and leaves nothing.
  void expect_no_pool(const Arguments& flags, int exit_code,
                      const std::vector<std::string>& parts) const {
    const auto before = listing();
    expect_error(run(with({"pool", "create", path("kv")}, flags)), exit_code, parts);
    EXPECT_EQ(listing(), before);
  }

  // A trace of `lines` requests, line `broken` (1-based, 0: none) cut off.
  std::string trace(std::size_t lines, std::size_t broken) const {
    std::string text;
    for (std::size_t i = 1; i <= lines; ++i) {
      const std::string line = "{\"timestamp\": " + std::to_string(i) +
                               ", \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [" +
                               std::to_string(2 * i) + ", " + std::to_string(2 * i + 1) + "]}";
      text += i == broken ? line.substr(0, 30) : line;
      text += '\n';
    }
    return write("trace.jsonl", text);
  }
};

TEST_F(BadInput, HelpOfEveryCommandHasAnExample) {
  for (const Arguments& command : kCommands) {
    const Outcome help = run(with(command, {"--help"}));
    expect_done(help);
    EXPECT_NE(help.out.find("Example: cachalot " + command[0]), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("--json"), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "");
  }
  const Outcome all = run({"--help"});
  expect_done(all);
  for (const Arguments& command : kCommands) {
    EXPECT_NE(all.out.find("\n  " + command[0] + " "), std::string::npos) << command[0];
  }
  EXPECT_TRUE(run({"--version"}).out.starts_with("cachalot "));
}

TEST_F(BadInput, AnUnknownFlagIsNamedByEveryCommand) {
  for (const Arguments& command : kCommands) {
    expect_error(run(with(command, {"--frobnicate"})), kUsage, {"--frobnicate", "--help"});
  }
  expect_error(run({"--frobnicate"}), kUsage, {"--frobnicate"});
}

TEST_F(BadInput, AnUnknownOrMissingCommandListsThoseThereAre) {
  expect_error(run({"frobnicate"}), kUsage, {"\"frobnicate\"", "hitrate", "serve"});
  expect_error(run({"pool", "mend"}), kUsage, {"\"mend\"", "create, info, destroy"});
  expect_error(run({"pool"}), kUsage, {"create, info, destroy"});
  expect_error(run({}), kUsage, {"hitrate"});
}

TEST_F(BadInput, AMissingFileIsNamed) {
  const std::string missing = path("missing");
  expect_error(run({"hitrate", "--trace", missing}), kUsage, {missing});
  expect_error(run({"replay", "--trace", missing}), kUsage, {missing});
  expect_error(run({"pool", "info", missing}), kUsage, {missing});
  expect_error(run({"pool", "destroy", missing}), kUsage, {missing});
  expect_error(run({"serve", missing}), kUsage, {missing});
  expect_error(run({"stop", missing}), kUsage, {missing});
  expect_error(run({"get", "key", "--pool", missing}), kUsage, {missing});
  EXPECT_EQ(listing(), std::set<std::string>());
}

TEST_F(BadInput, ABrokenLine5000IsNamedWithItsFile) {
  const std::string file = trace(6000, 5000);
  expect_error(run({"hitrate", "--trace", file}), kUsage, {file + ":5000"});
  expect_error(run({"replay", "--trace", file, "--engines", "1", "--block-bytes", "4096",
                    "--capacity-blocks", "64"}),
               kUsage, {file + ":5000"});
  const Outcome skipping = run({"hitrate", "--trace", file, "--skip-bad-lines", "--json", "-"});
  expect_done(skipping);
  EXPECT_EQ(skipping.json()["requests"], 5999);
  EXPECT_EQ(skipping.json()["skipped_lines"], 1);
}

TEST_F(BadInput, ADamagedGzipTraceIsRefused) {
  const std::string whole = read(CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz");
  const std::string cut = write("cut.jsonl.gz", whole.substr(0, whole.size() / 2));
  expect_error(run({"hitrate", "--trace", cut}), kUsage, {cut});
  const std::string noisy = write("noise.jsonl", noise(10000, 1));
  expect_error(run({"hitrate", "--trace", noisy}), kUsage, {noisy});
  const std::string empty = write("empty.jsonl", "");
  expect_error(run({"hitrate", "--trace", empty}), kUsage, {empty});
}

TEST_F(BadInput, ADirectoryIsNoFile) {
  expect_error(run({"hitrate", "--trace", path("")}), kUsage, {path("")});
  expect_error(run({"pool", "info", path("")}), kUsage, {path(""), "directory"});
  expect_error(run({"pool", "destroy", path("")}), kUsage, {path(""), "directory"});
  expect_no_pool({"--pool", path(""), "--block-bytes", "4096", "--capacity-blocks", "8"}, kUsage,
                 {});
}

TEST_F(BadInput, ADeviceThatIsTooSmallSaysHowMuchIsNeeded) {
  expect_no_pool({"--block-bytes", "64KiB", "--capacity", "64MiB", "--device-bytes", "4MiB"},
                 kUsage, {"4194304", "need", "bytes a device"});
}

TEST_F(BadInput, ACapacityOfZeroIsRefused) {
  expect_no_pool({"--block-bytes", "4096", "--capacity-blocks", "0"}, kUsage, {"capacity", "0"});
  expect_no_pool({"--block-bytes", "4096", "--capacity", "0"}, kUsage, {"--capacity", "0"});
  expect_no_pool({"--block-bytes", "0", "--capacity", "1MiB"}, kUsage, {"--block-bytes", "0"});
  const std::string file = trace(3, 0);
  expect_error(run({"hitrate", "--trace", file, "--capacity-blocks", "0"}), kUsage, {"0"});
  expect_error(run({"replay", "--trace", file, "--capacity-blocks", "0"}), kUsage, {"0"});
}

TEST_F(BadInput, ABlockLargerThanThePoolIsRefused) {
  expect_no_pool({"--block-bytes", "1MiB", "--capacity", "64KiB"}, kUsage, {"1048576", "65536"});
}

TEST_F(BadInput, TwoToThe63IsNoSize) {
  const std::string huge = "9223372036854775808";
  expect_no_pool({"--block-bytes", huge, "--capacity", "1MiB"}, kUsage, {"--block-bytes", huge});
  expect_no_pool({"--block-bytes", "4096", "--capacity", huge}, kUsage, {"--capacity", huge});
  expect_no_pool({"--block-bytes", "4096", "--capacity", "8589934592GiB"}, kUsage, {"2^63"});
  expect_no_pool({"--block-bytes", "4096", "--capacity-blocks", huge}, kUsage, {huge});
  expect_no_pool({"--block-bytes", "4096", "--capacity-blocks", "inf"}, kUsage, {"inf"});
  expect_no_pool({"--block-bytes", "4096", "--capacity-blocks", "8", "--device-bytes", huge},
                 kUsage, {"--device-bytes", huge});
  // Just below: a number, but no machine has it.
  expect_no_pool({"--block-bytes", "4096", "--capacity", "9223372036854775807"}, kUsage, {});
  const std::string file = trace(3, 0);
  expect_error(run({"replay", "--trace", file, "--capacity", huge}), kUsage, {huge});
  expect_error(run({"hitrate", "--trace", file, "--capacity-blocks", "36893488147419103232"}),
               kUsage, {"36893488147419103232"});
}

TEST_F(BadInput, WhatIsNoNumberIsNoSize) {
  for (const std::string text : {"many", "-1", "1.5.5KiB", "12 GiB", "0x10", "KiB", "1e9"}) {
    expect_no_pool({"--block-bytes", "4096", "--capacity=" + text}, kUsage, {"--capacity", text});
  }
  expect_no_pool({"--block-bytes", "100", "--capacity", "1MiB"}, kUsage, {"100", "multiple of 64"});
  expect_no_pool({"--block-bytes", "4096", "--capacity", "1MiB", "--clients", "0"}, kUsage,
                 {"--clients"});
  expect_no_pool({"--block-bytes", "4096", "--capacity", "1MiB", "--devices", "65"}, kUsage,
                 {"--devices"});
}

TEST_F(BadInput, FlagsThatContradictEachOtherAreRefused) {
  expect_no_pool({"--capacity", "1MiB"}, kUsage, {"--block-bytes", "--model"});
  expect_no_pool({"--block-bytes", "4096"}, kUsage, {"--capacity", "--capacity-blocks"});
  expect_no_pool({"--model", "Llama-3-8B", "--capacity", "1GiB"}, kUsage, {"--block-tokens"});
  expect_no_pool({"--model", "Dromedary-1", "--block-tokens", "16", "--capacity", "1GiB"}, kUsage,
                 {"Dromedary-1", "Llama-3-8B"});
  expect_no_pool(
      {"--pool", path("b"), "--block-bytes", "4096", "--capacity", "1MiB", "--devices", "3"},
      kUsage, {"3 devices"});
  expect_error(run({"serve", path("kv"), "--capacity", "1MiB"}), kUsage, {"--create"});
}

TEST_F(BadInput, APolicyThatDoesNotExistListsThoseThatDo) {
  const std::string file = trace(3, 0);
  expect_error(run({"hitrate", "--trace", file, "--policy", "lru,s3fifo"}), kUsage,
               {"s3fifo", "lru"});
  expect_error(run({"hitrate", "--trace", file, "--mode", "sideways"}), kUsage,
               {"sideways", "stream", "leaf"});
  expect_error(run({"serve", path("kv"), "--policy", "magic"}), kUsage, {"magic", "lru"});
}

TEST_F(BadInput, AnErrorStaysOneLineWhateverAPathContains) {
  expect_error(run({"pool", "info", path("a\nb\tc\x1b[31m")}), kUsage, {"a b c [31m"});
  expect_error(run({"--two\nlines"}), kUsage, {"--two lines"});
  expect_error(run({"pool", "info", path(std::string(4000, 'x'))}), kUsage, {path("")});
}

TEST_F(BadInput, AResultThatCannotBeWrittenIsAnError) {
  const std::string file = trace(3, 0);
  const Outcome outcome = run({"hitrate", "--trace", file, "--json", path("no/such/folder")});
  EXPECT_EQ(outcome.exit_code, kUsage);
  EXPECT_NE(outcome.err.find(path("no/such/folder")), std::string::npos) << outcome.err;
  const Outcome full = run({"hitrate", "--trace", file, "--csv", "/dev/full"});
  EXPECT_EQ(full.exit_code, 3) << full.err;
}

}  // namespace
}  // namespace cachalot::process_test
