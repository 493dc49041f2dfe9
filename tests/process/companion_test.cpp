// The commands that are programs of their own: `cachalot` finds and starts them.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "program.h"
#include "testing/os/scratch_folder.h"

namespace cachalot::process_test {
namespace {

namespace fs = std::filesystem;

constexpr int kRefused = 3;

// `cachalot` alone in a folder of its own, /…/bin, on a file system that runs programs.
class CompanionTest : public testing::Test {
 protected:
  CompanionTest() {
    fs::create_directories(root_ / "bin");
    fs::copy_file(CACHALOT_BINARY, root_ / "bin/cachalot");
  }

  // A program that prints where it lies and what it was told.
  void put_program(const fs::path& file) const {
    fs::create_directories((root_ / file).parent_path());
    const std::string path = root_ / file;
    std::FILE* const to = std::fopen(path.c_str(), "w");
    ASSERT_NE(to, nullptr) << path;
    std::fprintf(to, "#!/bin/sh\necho \"%s: $*\"\n", file.c_str());
    std::fclose(to);
    fs::permissions(path, fs::perms::owner_all);
  }

  // What the copy prints on both streams; the PATH is root/path.
  Outcome run_copy(const std::string& arguments) const {
    const std::string command = "PATH=relative:" + (root_ / "path").string() + " " +
                                (root_ / "bin/cachalot").string() + " " + arguments + " 2>&1";
    Outcome outcome;
    std::FILE* const from = popen(command.c_str(), "r");
    if (from == nullptr) return outcome;
    char line[512];
    while (std::fgets(line, sizeof line, from) != nullptr) outcome.out += line;
    const int status = pclose(from);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
  }

  const os::ScratchFolder scratch_;
  const fs::path root_ = scratch_.path();
};

TEST_F(CompanionTest, BenchIsStartedBesideTheProgramThenInLibexecThenInThePath) {
  put_program("path/cachalot-bench");
  EXPECT_EQ(run_copy("bench rpc --quick").out, "path/cachalot-bench: rpc --quick\n");
  put_program("libexec/cachalot/cachalot-bench");
  EXPECT_EQ(run_copy("bench rpc --quick").out, "libexec/cachalot/cachalot-bench: rpc --quick\n");
  put_program("bin/cachalot-bench");
  EXPECT_EQ(run_copy("bench rpc --quick").out, "bin/cachalot-bench: rpc --quick\n");
}

TEST_F(CompanionTest, AProgramOfSeveralCommandsIsToldWhichOne) {
  put_program("libexec/cachalot/cachalot-memory");
  for (const std::string command : {"alloc-replay", "alloc-trace", "vtensor"}) {
    EXPECT_EQ(run_copy(command + " --help").out,
              "libexec/cachalot/cachalot-memory: " + command + " --help\n");
  }
  put_program("libexec/cachalot/cachalot-simulate");
  for (const std::string command : {"calibrate", "long-prefill", "simulate", "tiers"}) {
    EXPECT_EQ(run_copy(command + " --help").out,
              "libexec/cachalot/cachalot-simulate: " + command + " --help\n");
  }
}

TEST_F(CompanionTest, AMissingProgramIsNamedWithThePlacesAndWhatBuildsIt) {
  const Outcome outcome = run_copy("bench rpc");
  EXPECT_EQ(outcome.exit_code, kRefused) << outcome.out;
  const std::vector<std::string> parts = {"cachalot bench",   "cachalot-bench",
                                          "libexec/cachalot", "PATH",
                                          "make build",       (root_ / "bin").string()};
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
  }
}

TEST_F(CompanionTest, AFileThatIsNoProgramIsNamed) {
  put_program("bin/cachalot-bench");
  fs::permissions(root_ / "bin/cachalot-bench", fs::perms::owner_read);
  const Outcome outcome = run_copy("bench rpc");
  EXPECT_EQ(outcome.exit_code, kRefused) << outcome.out;
  EXPECT_NE(outcome.out.find("bin/cachalot-bench: starting"), std::string::npos) << outcome.out;
}

TEST_F(CompanionTest, HelpOfBenchSaysWhatEachBenchmarkDoesAndHowLongItTakes) {
  const Outcome outcome = run({"bench", "--help"});
  expect_done(outcome);
  EXPECT_NE(outcome.out.find("Usage: cachalot bench "), std::string::npos) << outcome.out;
  for (const std::string name :
       {"rpc",       "lookup",   "put",     "get",       "copy",           "hash",      "policies",
        "alloc",     "takeover", "gather",  "scatter",   "sparse",         "layerwise", "share-tp",
        "cuda",      "vmm",      "vtensor", "peers",     "transfer-sizes", "attention", "all",
        "coherence", "sweep",    "skew",    "background"}) {
    const std::size_t at = outcome.out.find("\n  " + name + " ");
    ASSERT_NE(at, std::string::npos) << name << " in " << outcome.out;
    const std::string line = outcome.out.substr(at + 1, outcome.out.find('\n', at + 1) - at - 1);
    EXPECT_NE(line.find(" s  "), std::string::npos) << line;
  }
}

TEST_F(CompanionTest, ABenchmarkSaysWhatItIsWhenItStarts) {
  const Outcome outcome = run({"bench", "hash", "--quick", "--repeats", "1"});
  expect_done(outcome);
  EXPECT_TRUE(outcome.out.starts_with("bench hash: ")) << outcome.out;
  EXPECT_LT(outcome.out.find(" s\n"), outcome.out.find('\n')) << outcome.out;
}

TEST_F(CompanionTest, HelpListsAllCommands) {
  const Outcome outcome = run({"--help"});
  expect_done(outcome);
  for (const std::string command : {"replay", "serve", "hitrate", "bench", "simulate", "calibrate",
                                    "vtensor", "alloc-trace", "alloc-replay"}) {
    EXPECT_NE(outcome.out.find("\n  " + command + " "), std::string::npos) << command;
  }
}

TEST_F(CompanionTest, AllProgramsAreOfOneVersion) {
  const std::string version = run({"--version"}).out;
  EXPECT_EQ(version, "cachalot " CACHALOT_VERSION "\n");
  EXPECT_EQ(run({"bench", "--version"}).out, "cachalot-bench " CACHALOT_VERSION "\n");
}

}  // namespace
}  // namespace cachalot::process_test
