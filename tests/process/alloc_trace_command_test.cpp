// `cachalot alloc-trace`: figures of recorded traces, made-up fine-tuning, and PyTorch's snapshots.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

#define ALLOC CACHALOT_TEST_ASSETS "/alloc/"
constexpr const char* kTraining = ALLOC "real_cs336_medium_128_training.trace.gz";
constexpr const char* kInference = ALLOC "real_cs336_medium_128_inference.trace.gz";
constexpr const char* kSnapshot = ALLOC "snapshot_p4.pickle";
constexpr const char* kCommand = ALLOC "command.pickle";

class AllocTraceCommand : public ProcessTest {
 protected:
  static nlohmann::json info(const std::string& file) {
    const Outcome outcome = run({"alloc-trace", "info", file, "--json", "-"});
    expect_done(outcome);
    return outcome.json();
  }
  static Arguments generate(const std::string& out, const Arguments& more = {}) {
    Arguments arguments = {"alloc-trace", "generate",    "--model", "OPT-1.3B", "--iterations",
                           "2",           "--recompute", "--out",   out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(AllocTraceCommand, InfoGivesTheFiguresOfARecordedTrace) {
  const nlohmann::json trace = info(kTraining);
  EXPECT_EQ(trace["events"], 13495);
  EXPECT_EQ(trace["allocations"], 7190);
  EXPECT_EQ(trace["frees"], 6305);
  EXPECT_EQ(trace["peak_live_bytes"], 7013335044);
  EXPECT_EQ(trace["iterations"], 0);
  EXPECT_EQ(trace["streams"], 1);
  std::uint64_t allocations = 0, bytes = 0;
  for (const nlohmann::json& sizes : trace["sizes"]) {
    allocations += sizes["allocations"].get<std::uint64_t>();
    bytes += sizes["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(allocations, 7190u);
  EXPECT_EQ(bytes, trace["allocated_bytes"].get<std::uint64_t>());
  const Outcome table = run({"alloc-trace", "info", kTraining});
  expect_done(table);
  EXPECT_NE(table.out.find("live             6.53 GiB in "), std::string::npos) << table.out;
}

TEST_F(AllocTraceCommand, InfoOfSeveralTracesGivesRows) {
  const Outcome outcome = run({"alloc-trace", "info", kTraining, kInference, "--json", "-"});
  expect_done(outcome);
  ASSERT_EQ(outcome.json()["rows"].size(), 2u);
  EXPECT_EQ(outcome.json()["rows"][1]["peak_live_bytes"], 1736962048);
}

TEST_F(AllocTraceCommand, GenerateIsDeterministicAndReadable) {
  const Arguments padded = {"--dynamic-padding", "0.5", "--seed", "7", "--json", path("json")};
  for (const char* name : {"a.gz", "b.gz"}) expect_done(run(generate(path(name), padded)));
  EXPECT_EQ(read(path("a.gz")), read(path("b.gz")));
  const nlohmann::json trace = info(path("a.gz"));
  const nlohmann::json made = nlohmann::json::parse(read(path("json")));
  EXPECT_EQ(trace["iterations"], 2);
  EXPECT_EQ(made["model"], "OPT-1.3B");
  EXPECT_EQ(made["seed"], 7);
  for (const char* key : {"events", "allocations", "frees", "peak_live_bytes", "live_bytes"}) {
    EXPECT_EQ(trace[key], made[key]) << key;
  }
  const Outcome piped = run(generate("-", {"--dynamic-padding", "0.5", "--seed", "7"}));
  expect_done(piped);
  EXPECT_NE(piped.out.find("\nm iteration 2\n"), std::string::npos);
}

TEST_F(AllocTraceCommand, ConvertMakesATraceOfASnapshot) {
  const Outcome outcome =
      run({"alloc-trace", "convert", "--snapshot", kSnapshot, "--out", path("t"), "--json", "-"});
  expect_done(outcome);
  EXPECT_EQ(outcome.json()["events"], 8);
  EXPECT_EQ(outcome.json()["recorded_events"], 14);
  EXPECT_EQ(outcome.json()["blocks_before"], 2);
  EXPECT_EQ(outcome.json()["contradictions"], 0);
  EXPECT_EQ(info(path("t"))["streams"], 2);
  const Outcome requested =
      run({"alloc-trace", "convert", "--snapshot", kSnapshot, "--free", "requested", "--out", "-"});
  expect_done(requested);
  EXPECT_TRUE(requested.out.ends_with("f 6\n")) << requested.out;
  const Outcome other =
      run({"alloc-trace", "convert", "--snapshot", kSnapshot, "--device", "1", "--out", path("o")});
  expect_done(other);
  EXPECT_NE(other.out.find("1 block is in use that the recording frees"), std::string::npos);
}

TEST_F(AllocTraceCommand, ASnapshotThatWouldRunACommandIsRefused) {
  expect_error(run({"alloc-trace", "convert", "--snapshot", kCommand, "--out", path("t")}), 2,
               {"command.pickle: byte 64: STACK_GLOBAL would run code"});
  EXPECT_TRUE(listing().empty());
}

TEST_F(AllocTraceCommand, AResultNeverTakesThePlaceOfWhatItIsMadeFrom) {
  const std::string file = path("s.pickle"), link = path("link");
  std::filesystem::copy_file(kSnapshot, file);
  std::filesystem::create_symlink(file, link);
  const std::string before = read(file);
  for (const std::string& same : {file, link}) {
    expect_error(run({"alloc-trace", "convert", "--snapshot", file, "--out", same}), 2,
                 {"--out", same});
    expect_error(
        run({"alloc-trace", "convert", "--snapshot", file, "--out", path("o"), "--json", same}), 2,
        {"--json", same});
    expect_error(run({"alloc-trace", "info", file, "--json", same}), 2, {"--json", same});
  }
  EXPECT_EQ(read(file), before);
}

TEST_F(AllocTraceCommand, BrokenLinesAreNamed) {
  expect_error(run({"alloc-trace", "info", write("t", "a 1 5\nf 2\n")}), 2,
               {"/t:2: ID: 2 does not live, expected one that was allocated and not freed"});
  expect_error(run({"alloc-trace", "info", write("u", "{\"timestamp\": 1}\n")}), 2,
               {"/u:1: \"{\"timestamp\":\" is no event, expected \"a ID BYTES\""});
  expect_error(run({"alloc-trace", "info", write("v", "")}), 2, {"/v: no event in it"});
}

TEST_F(AllocTraceCommand, RefusesWhatItCannotUse) {
  expect_error(run({"alloc-trace"}), 2, {"a command is missing", "info, generate, convert"});
  expect_error(run({"alloc-trace", "info", path("none")}), 2, {"none: No such file"});
  expect_error(run({"alloc-trace", "generate", "--model", "GPT-2", "--out", path("o")}), 2,
               {"model: \"GPT-2\" is none, expected one of OPT-1.3B"});
  expect_error(run(generate(path("o"), {"--gpus", "0"})), 2, {"--gpus", "0", "1 to 65536"});
  expect_error(run(generate(path("o"), {"--dynamic-padding", "1"})), 2,
               {"--dynamic-padding", "0 to 0.999"});
  expect_error(run(generate(path("none/o"))), 2, {"none/o"});
  expect_error(run(generate("-", {"--json", "-"})), 2, {"--out and --json are both \"-\""});
  expect_error(run(generate(path("same"), {"--json", path("same")})), 2, {"are both", "two files"});
  expect_error(
      run({"alloc-trace", "convert", "--snapshot", kSnapshot, "--device", "2", "--out", path("o")}),
      2, {"snapshot_p4.pickle: device: 2 has no events, expected one that has: 0 1"});
  expect_error(run({"alloc-trace", "convert", "--snapshot", kTraining, "--out", path("o")}), 2,
               {"training.trace.gz: byte 0: "});
  EXPECT_TRUE(listing().empty());
}

}  // namespace
}  // namespace cachalot::process_test
