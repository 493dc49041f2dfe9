// Wrong flags, sizes and files: one clear error each, and nothing left behind.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kUsage = 2;

const std::vector<Arguments> kCommands = {{"replay"},
                                          {"serve"},
                                          {"stop"},
                                          {"pool", "create"},
                                          {"pool", "info"},
                                          {"pool", "destroy"},
                                          {"pool", "fence"},
                                          {"put"},
                                          {"get"},
                                          {"lookup"},
                                          {"evict"},
                                          {"hitrate"},
                                          {"bench"},
                                          {"trace", "info"},
                                          {"trace", "convert"},
                                          {"trace", "generate"}};

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

TEST_F(BadInput, AnInputThatNeverEndsALineIsNamed) {
  for (const Arguments& command : std::vector<Arguments>{{"alloc-replay", "--trace", "/dev/zero"},
                                                         {"alloc-trace", "info", "/dev/zero"},
                                                         {"trace", "info", "/dev/zero"},
                                                         {"hitrate", "--trace", "/dev/zero"}}) {
    expect_error(run(command), kUsage, {"/dev/zero:1: no line feed in more than a GiB"});
  }
}

TEST_F(BadInput, AMisspeltFlagNamesTheOneThatWasMeant) {
  expect_error(run({"hitrate", "--capcity-blocks", "5"}), kUsage,
               {"there is no flag --capcity-blocks; did you mean --capacity-blocks?"});
  expect_error(run({"hitrat"}), kUsage,
               {"there is no command \"hitrat\"; did you mean \"hitrate\"?"});
  const Outcome far = run({"hitrate", "--qqqq", "5"});
  expect_error(far, kUsage, {"there is no flag --qqqq"});
  EXPECT_EQ(far.err.find("did you mean"), std::string::npos) << far.err;
}

TEST_F(BadInput, APoolThatIsNotThereIsServedOnlyWithCreate) {
  expect_error(run({"serve", path("absent")}), kUsage, {path("absent"), "--create makes a pool"});
}

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
  expect_no_pool({"--block-bytes", "100", "--capacity", "1MiB"}, kUsage,
                 {"--block-bytes: 100, expected a multiple of 64"});
  expect_error(run({"replay", "--trace", trace(3, 0), "--block-bytes", "100"}), kUsage,
               {"--block-bytes: 100, expected a multiple of 64"});
  expect_no_pool({"--block-bytes", "4096", "--capacity", "1MiB", "--clients", "0"}, kUsage,
                 {"--clients"});
  expect_no_pool({"--block-bytes", "4096", "--capacity", "1MiB", "--devices", "65"}, kUsage,
                 {"--devices"});
}

TEST_F(BadInput, NumbersAreNotWrapped) {
  const std::string file = trace(3, 0);
  const std::string huge = "18446744073709551616";
  const auto refuse = [&](const std::string& flag, const std::string& value) {
    expect_error(run({"replay", "--trace", file, flag, value}), kUsage, {flag, value});
  };
  for (const std::string value : {"-1", "0", "1.5", "1e1", "0x10", " 1", "+1"}) {
    refuse("--limit", value);
    refuse("--engines", value);
    refuse("--block-tokens", value);
  }
  refuse("--limit", huge);
  refuse("--seed", huge);
  refuse("--seed", "-1");
  refuse("--engines", "65");
  refuse("--engines", "4294967297");
  expect_error(run({"hitrate", "--trace", file, "--block-tokens", "-1"}), kUsage,
               {"--block-tokens", "-1"});
  expect_error(run({"stop", path("kv"), "--timeout", "-1"}), kUsage, {"--timeout", "-1"});
  expect_error(run({"get", "key", "--pool", path("kv"), "--client-slot", "-1"}), kUsage,
               {"--client-slot", "-1"});
  // A leading zero is no other number.
  const Outcome ten = run({"hitrate", "--trace", file, "--block-tokens", "0512", "--json", "-"});
  expect_done(ten);
}

TEST_F(BadInput, OnlyInfIsUnlimited) {
  const std::string file = trace(3, 0);
  const std::string most = "18446744073709551615";
  expect_error(run({"hitrate", "--trace", file, "--capacity-blocks", most}), kUsage,
               {"--capacity-blocks", most, "inf"});
  const Outcome outcome = run({"replay", "--trace", file, "--capacity-blocks", "-1"});
  expect_error(outcome, kUsage, {"--capacity-blocks", "-1"});
  EXPECT_EQ(outcome.err.find("inf"), std::string::npos) << outcome.err;
  expect_no_pool({"--block-bytes", "4096", "--capacity-blocks", "8", "--spare-blocks", "inf"},
                 kUsage, {"--spare-blocks", "inf"});
  expect_no_pool({"--block-bytes", "4096.5", "--capacity-blocks", "8"}, kUsage,
                 {"--block-bytes", "4096.5", "whole"});
}

TEST_F(BadInput, AnEmptyValueIsNoValue) {
  const std::string file = trace(3, 0);
  for (const std::string flag : {"--csv", "--plot", "--json", "--policy", "--capacity-blocks"}) {
    expect_error(run({"hitrate", "--trace", file, flag, ""}), kUsage, {flag, "empty"});
    expect_error(run({"hitrate", "--trace", file, flag + "="}), kUsage, {flag, "empty"});
    expect_error(run({"hitrate", flag + "=", "--trace", file}), kUsage, {flag, "empty"});
  }
  expect_no_pool({"--block-bytes", "4096", "--capacity-blocks", "8", "--spare-blocks", ""}, kUsage,
                 {"--spare-blocks", "empty"});
  for (const std::string flag : {"--parent", "--namespace", "--file", "--json"}) {
    expect_error(run({"put", "key", "--pool", path("kv"), flag, ""}), kUsage, {flag, "empty"});
  }
  expect_error(run({"put", "key", "--pool", path("kv"), "--client-slot", ""}), kUsage,
               {"--client-slot", "\"\""});
  for (const std::string list : {"lru,", ",lru", "lru,,lru"}) {
    expect_error(run({"hitrate", "--trace", file, "--policy", list}), kUsage, {"--policy", list});
  }
  for (const std::string list : {"1,", ",1", "1,,2"}) {
    expect_error(run({"hitrate", "--trace", file, "--capacity-blocks", list}), kUsage,
                 {"--capacity-blocks", list});
  }
}

TEST_F(BadInput, AnEmptyChoiceListsTheChoices) {
  const std::string file = trace(3, 0);
  struct Flag {
    Arguments command;
    const char* flag;
    std::vector<std::string> choices;
  };
  const Flag flags[] = {
      {{"alloc-replay", "--trace", file}, "--verify", {"full", "sample", "off"}},
      {{"alloc-replay", "--trace", file}, "--backend", {"model", "memfd", "cuda"}},
      {{"alloc-replay", "--trace", file},
       "--allocator",
       {"caching", "expandable", "stitch", "all"}},
      {{"alloc-replay", "--trace", file}, "--costs", {"gmlake_table1", "kvcached_bench"}},
      {{"vtensor", "--trace", file}, "--layout", {"per_layer", "folded", "folded_parts"}},
      {{"vtensor", "--trace", file}, "--costs", {"gmlake_table1", "kvcached_bench"}},
      {{"vtensor", "--trace", file}, "--sharing", {"on", "off"}},
      {{"vtensor", "--trace", file}, "--backend", {"model", "memfd"}},
      {{"hitrate", "--trace", file}, "--mode", {"leaf", "stream"}},
      {{"hitrate", "--trace", file}, "--policy", {"lru", "hit_density", "arc", "opt", "all"}},
      {{"hitrate", "--trace", file}, "--trace-format", {"auto", "mooncake", "dynamo"}},
      {{"replay", "--trace", file}, "--policy", {"lru", "hit_density"}},
      {{"replay", "--trace", file}, "--domain", {"coherent", "noncoherent"}},
      {{"replay", "--trace", file}, "--verify", {"full", "sample", "off"}},
      {{"serve", path("kv")}, "--policy", {"lru", "hit_density"}},
      {{"serve", path("kv")}, "--log-level", {"debug", "off"}},
      {{"pool", "create", path("kv")}, "--domain", {"coherent", "noncoherent"}},
      {{"trace", "generate", "--requests", "1", "--out", path("o")}, "--kind", {"agentic", "chat"}},
  };
  for (const Flag& each : flags) {
    std::vector<std::string> parts = each.choices;
    parts.push_back(each.flag);
    expect_error(run(with(each.command, {each.flag, ""})), kUsage, parts);
  }
}

TEST_F(BadInput, KernelsAreAWholeFileOfNvccs) {
  const auto expect = [&](const std::string& file, const std::vector<std::string>& parts) {
    expect_error(run({"bench", "cuda", "--kernels", file}), kUsage, parts);
  };
  expect(path("absent"), {path("absent"), "No such file"});
  expect(path(""), {path(""), "nvcc -fatbin or -cubin"});
  expect(write("empty", ""), {path("empty"), "nvcc -fatbin or -cubin"});
  expect(write("text", "extern \"C\" __global__ void kernel() {}"), {path("text"), "-cubin"});
  const std::string header("\x50\xed\x55\xba\x01\x00\x10\x00\x40\x00\x00\x00\x00\x00\x00\x00", 16);
  expect(write("short", header + std::string(63, '\0')), {"not whole", "79", "80"});
  expect(write("huge", std::string(header, 0, 8) + std::string(24, '\xff')), {"not whole", "32"});
  expect(write("elf", std::string("\x7f"
                                  "ELF\x02") +
                          std::string(35, '\0') + std::string(24, '\x01')),
         {"not whole"});
  expect_error(run({"bench", "vmm", "--only", "cpu"}), kUsage, {"--only", "cuda"});
}

TEST_F(BadInput, NamesOfOtherCommandsAreArguments) {
  expect_error(run({"bench", "hash", "lookup", "nonsense"}), kUsage, {"nonsense"});
  expect_error(run({"bench", "hash", "get", "--frobnicate"}), kUsage, {"--frobnicate"});
  const std::string pool = create_pool("kv");
  expect_error(run({"pool", "info", pool, "destroy", pool}), kUsage, {pool, "3 paths"});
  EXPECT_EQ(listing(), std::set<std::string>{"kv"});
  Serving keeper({"serve", pool});
  expect_error(run({"stop", pool, "pool", "destroy", pool}), kUsage, {pool, "4 paths"});
  expect_done(run({"put", "get", "--pool", pool}, {.in = "bytes"}));
  EXPECT_EQ(run({"get", "get", "--pool", pool}).out, "bytes");
  EXPECT_EQ(run({"get", "--pool", pool, "--", "get"}).out, "bytes");
  const Outcome looked = run({"lookup", "get", "put", "--pool", pool, "--json", "-"});
  expect_done(looked);
  EXPECT_EQ(looked.json()["keys"][0]["hit"], true);
  EXPECT_EQ(looked.json()["keys"][1]["key"], "put");
  expect_done(run({"lookup", "--pool", pool, "--", "get"}));
}

TEST_F(BadInput, FlagsThatContradictEachOtherAreRefused) {
  expect_no_pool({"--capacity", "1MiB"}, kUsage, {"--block-bytes", "--model"});
  expect_no_pool({"--block-bytes", "4096"}, kUsage, {"--capacity", "--capacity-blocks"});
  expect_no_pool({"--model", "Llama-3-8B", "--capacity", "1GiB"}, kUsage, {"--block-tokens"});
  expect_no_pool({"--block-bytes", "4096", "--block-tokens", "16", "--capacity", "1MiB"}, kUsage,
                 {"--block-tokens: 16", "--block-bytes", "--model"});
  expect_error(run({"serve", path("kv"), "--create", "--block-bytes", "4096", "--block-tokens",
                    "16", "--capacity", "1MiB"}),
               kUsage, {"--block-tokens: 16", "--block-bytes", "--model"});
  expect_no_pool({"--model", "Dromedary-1", "--block-tokens", "16", "--capacity", "1GiB"}, kUsage,
                 {"Dromedary-1", "Llama-3-8B"});
  expect_no_pool(
      {"--pool", path("b"), "--block-bytes", "4096", "--capacity", "1MiB", "--devices", "3"},
      kUsage, {"3 devices"});
  expect_no_pool(
      {"--pool", path("b"), "--block-bytes", "4096", "--capacity", "1MiB", "--devices", "1"},
      kUsage, {"2 paths", "1 device,"});
  expect_error(run({"serve", path("kv"), "--standby", "--take-over"}), kUsage, {"--standby"});
  expect_error(run({"pool", "fence", path("kv")}), kUsage, {"--client", "--unknown"});
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

TEST_F(BadInput, WhatHitrateCannotComputeIsSaidBeforeTheTraceIsRead) {
  const std::string file = trace(3, 0);
  const auto expect = [&](std::vector<std::string> flags, std::vector<std::string> parts) {
    std::vector<std::string> command = {"hitrate", "--trace", file};
    command.insert(command.end(), flags.begin(), flags.end());
    expect_error(run(command), kUsage, parts);
  };
  expect({"--capacity-blocks", "100..10"}, {"--capacity-blocks", "100..10", "LOW..HIGH"});
  expect({"--capacity-blocks", "0..10"}, {"--capacity-blocks", "0..10"});
  expect({"--capacity-blocks", "1..inf"}, {"--capacity-blocks", "inf"});
  expect({"--policy", "arc"}, {"arc", "leaf", "lru"});
  expect({"--model", "GPT-9"}, {"GPT-9", "Llama-3-70B"});
  expect({"--bytes-per-token", "0"}, {"--bytes-per-token", "0"});
  expect({"--bytes-per-token", "1KiB", "--model", "Llama-3-70B"}, {"--model", "--bytes-per-token"});
  expect({"--policy", "opt", "--temp-dir", "/nonexistent"}, {"/nonexistent"});
}

TEST_F(BadInput, AKeepersOptionsAreCheckedBeforeThePoolIsMade) {
  const std::string pool = path("kv");
  const auto expect = [&](const std::string& flag, const std::string& value,
                          std::vector<std::string> parts) {
    expect_error(run({"serve", "--pool", pool, "--create", "--block-bytes", "4096", "--capacity",
                      "1MiB", flag, value}),
                 kUsage, parts);
    EXPECT_FALSE(std::filesystem::exists(pool));
  };
  expect("--policy", "arc", {"arc", "stream", "lru"});
  expect("--policy", "opt", {"opt", "future"});
  expect("--ttl", "-1", {"--ttl", "-1"});
  expect("--ttl", "1000000001", {"--ttl"});
  expect("--pin", ":key", {"--pin", ":key", "NAMESPACE:KEY"});
  expect("--pin", "space:", {"--pin", "space:"});
  expect("--priority", "space", {"--priority", "space", "NAMESPACE=N"});
  expect("--priority", "space=8", {"--priority", "space=8", "0 (evicted first) to 7"});
  expect("--priority", "=3", {"--priority", "=3"});
}

TEST_F(BadInput, AnErrorStaysOneLineWhateverAPathContains) {
  expect_error(run({"pool", "info", path("a\nb\tc\x1b[31m\xff")}), kUsage,
               {"a b c [31m\xef\xbf\xbd"});
  expect_error(run({"pool", "info", path("x"), "--\x1b[2J\xff"}), kUsage, {"--?[2J\xef\xbf\xbd"});
  expect_error(run({"--two\nlines"}), kUsage, {"--two?lines"});
  expect_error(run({"pool", "info", path(std::string(4000, 'x'))}), kUsage, {path("")});
}

}  // namespace
}  // namespace cachalot::process_test
