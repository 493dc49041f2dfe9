// What becomes of results that cannot be written, and of standard files that are closed.
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kUsage = 2, kRefused = 3;

class OutputTest : public ProcessTest {
 protected:
  std::string trace() const {
    return write("trace.jsonl",
                 "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, "
                 "\"hash_ids\": [1, 2]}\n");
  }
  static os::FileDescriptor full() {
    return os::FileDescriptor(open("/dev/full", O_WRONLY | O_CLOEXEC));
  }
};

TEST_F(OutputTest, AClosedStandardFileIsNeverAFileOfThePool) {
  for (const std::vector<int>& closed : std::vector<std::vector<int>>{{0}, {1}, {2}, {0, 1, 2}}) {
    const bool is_heard = closed != std::vector<int>{1} && closed.size() == 1;
    const std::string pool = path("kv");
    const Outcome created =
        run({"pool", "create", pool, "--block-bytes", "4096", "--capacity-blocks", "8"},
            {.closed = closed});
    EXPECT_EQ(created.exit_code, is_heard ? 0 : kRefused);
    if (!is_heard) {
      EXPECT_EQ(listing(), std::set<std::string>());
      create_pool("kv");
    }
    const std::string before = read(pool);
    for (const Arguments& command : std::vector<Arguments>{{"pool", "info", pool}, {"--help"}}) {
      EXPECT_EQ(run(command, {.closed = closed}).exit_code, is_heard ? 0 : kRefused);
    }
    EXPECT_EQ(read(pool), before);
    {
      Serving keeper({"serve", pool});
      const Outcome put = run({"put", "key", "--pool", pool}, {.in = "bytes", .closed = closed});
      if (closed[0] == 0) {
        EXPECT_EQ(put.exit_code, kRefused);
        EXPECT_EQ(run({"lookup", "key", "--pool", pool}).exit_code, 1);
      } else {
        EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "bytes");
      }
      expect_done(run({"stop", pool}));
    }
    expect_done(run({"pool", "info", pool}));
    expect_done(run({"pool", "destroy", pool}));
  }
}

TEST_F(OutputTest, AStdinThatIsClosedIsNamed) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  expect_error(run({"put", "key", "--pool", pool}, {.closed = {0}}), kRefused, {"stdin"});
}

TEST_F(OutputTest, TextThatCannotBeWrittenIsAnError) {
  const std::string pool = create_pool("kv");
  const std::string file = trace();
  const os::FileDescriptor out = full();
  for (const Arguments& command : std::vector<Arguments>{{"--help"},
                                                         {"--version"},
                                                         {"pool", "create", "--help"},
                                                         {"pool", "info", pool},
                                                         {"lookup", "--help"},
                                                         {"hitrate", "--trace", file},
                                                         {"bench", "hash", "--quick"}}) {
    expect_error(run(command, {.out = out.get()}), kRefused, {"stdout"});
    const Outcome closed = run(command, {.closed = {1}});
    expect_error(closed, kRefused, {"stdout"});
  }
  // What went wrong before is the error to tell.
  expect_error(run({"pool", "info", path("missing")}, {.out = out.get()}), kUsage,
               {path("missing")});
}

TEST_F(OutputTest, ATraceThatDoesNotFitOnStdoutNamesIt) {
  const std::string file = trace();
  const os::FileDescriptor out = full();
  for (const Arguments& command : std::vector<Arguments>{
           {"trace", "generate", "--requests", "5"},
           {"trace", "convert", "--trace", file},
           {"alloc-trace", "generate", "--model", "OPT-1.3B", "--iterations", "1"}}) {
    Arguments arguments = command;
    arguments.insert(arguments.end(), {"--out", "-"});
    expect_error(run(arguments, {.out = out.get()}), kRefused, {"stdout: No space left on device"});
  }
}

TEST_F(OutputTest, APlaceForResultsIsTriedBeforeTheWork) {
  const std::string nowhere = path("no/such/file");
  // None of these would get as far as to miss the trace, the pool or its keeper.
  for (const std::string flag : {"--json", "--csv"}) {
    expect_error(run({"hitrate", "--trace", path("missing"), flag, nowhere}), kUsage, {nowhere});
  }
  expect_error(run({"hitrate", "--trace", path("missing"), "--plot", nowhere + ".svg"}), kUsage,
               {nowhere});
  expect_error(run({"hitrate", "--trace", path("missing"), "--plot", path("a.png")}), kUsage,
               {path("a.png"), ".svg"});
  expect_error(run({"hitrate", "--trace", path("missing"), "--csv", "-", "--json", "-"}), kUsage,
               {"--csv", "stdout"});
  expect_error(run({"replay", "--trace", path("missing"), "--json", nowhere}), kUsage, {nowhere});
  expect_error(run({"bench", "all", "--json", nowhere}), kUsage, {nowhere});
  expect_error(run({"pool", "create", path("kv"), "--block-bytes", "4096", "--capacity-blocks", "8",
                    "--json", nowhere}),
               kUsage, {nowhere});
  EXPECT_EQ(listing(), std::set<std::string>());
  const std::string pool = create_pool("kv");
  for (const Arguments& command : std::vector<Arguments>{{"serve", pool},
                                                         {"stop", pool},
                                                         {"pool", "destroy", pool},
                                                         {"pool", "fence", pool, "--client", "0"},
                                                         {"put", "key", "--pool", pool},
                                                         {"get", "key", "--pool", pool},
                                                         {"lookup", "key", "--pool", pool},
                                                         {"evict", "key", "--pool", pool}}) {
    Arguments arguments = command;
    arguments.insert(arguments.end(), {"--json", nowhere});
    expect_error(run(arguments), kUsage, {nowhere});
  }
  expect_error(run({"get", "key", "--pool", pool, "--output", nowhere}), kUsage, {nowhere});
  EXPECT_EQ(listing(), std::set<std::string>{"kv"});
}

TEST_F(OutputTest, WorkThatFailsLeavesNoFileAndChangesNone) {
  const std::string pool = create_pool("kv");
  const std::string old = write("old", "precious");
  Serving keeper({"serve", pool});
  const auto before = listing();
  for (const std::string& file : {path("new"), old}) {
    EXPECT_EQ(run({"get", "key", "--pool", pool, "--output", file}).exit_code, 1);
    EXPECT_EQ(run({"evict", "key", "--pool", pool, "--json", file}).exit_code, 1);
    EXPECT_EQ(run({"hitrate", "--trace", pool, "--json", file, "--csv", file}).exit_code, kUsage);
  }
  EXPECT_EQ(listing(), before);
  EXPECT_EQ(read(old), "precious");
  // What works replaces all of it.
  expect_done(run({"put", "key", "--pool", pool, "--json", old}, {.in = "bytes"}));
  EXPECT_EQ(nlohmann::json::parse(read(old))["bytes"], 5);
  const Outcome on_full = run({"hitrate", "--trace", trace(), "--csv", "/dev/full"});
  EXPECT_EQ(on_full.exit_code, kRefused) << on_full.err;
}

TEST_F(OutputTest, OneFileForTwoResultsIsRefused) {
  const std::string pool = create_pool("kv"), file = path("one"), same = path("./one");
  write("there", "precious");
  const auto before = listing();
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {file, file}, {file, same}, {path("there"), path("./there")}}) {
    for (const Arguments& command : std::vector<Arguments>{
             {"hitrate", "--trace", trace(), "--csv", a, "--json", b},
             {"trace", "convert", "--trace", trace(), "--out", a, "--json", b},
             {"trace", "generate", "--requests", "1", "--out", a, "--json", b},
             {"alloc-trace", "generate", "--model", "OPT-1.3B", "--out", a, "--json", b},
             {"get", "key", "--pool", pool, "--output", a, "--json", b}}) {
      expect_error(run(command), kUsage, {"are both", "--json", b});
    }
  }
  auto after = listing();
  after.erase("trace.jsonl");
  EXPECT_EQ(after, before);
  EXPECT_EQ(read(path("there")), "precious");
  // A device keeps nothing.
  expect_done(run({"hitrate", "--trace", trace(), "--csv", "/dev/null", "--json", "/dev/null"}));
}

// One that is there, one that would be made, under other names, and the second device.
TEST_F(OutputTest, AResultNeverTakesThePlaceOfThePool) {
  const std::string pool = path("kv"), link = path("link");
  const Arguments geometry = {"--block-bytes", "4096", "--capacity-blocks", "8", "--devices", "2"};
  std::filesystem::create_symlink("kv.1", link);
  const auto refuses = [&](Arguments command) {
    for (const std::string& file : {pool, path("./kv"), pool + ".1", link}) {
      Arguments arguments = command;
      arguments.push_back(file);
      expect_error(run(arguments), kUsage, {command.back(), file, "a device of the pool"});
    }
  };
  const auto with = [&](Arguments command, const Arguments& more) {
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  refuses(with(with({"pool", "create", pool}, geometry), {"--json"}));
  refuses(with(with({"serve", pool, "--create"}, geometry), {"--json"}));
  refuses({"replay", "--trace", trace(), "--pool", pool, "--json"});
  EXPECT_EQ(listing(), (std::set<std::string>{"link", "trace.jsonl"}));
  expect_done(run(with({"pool", "create", pool}, geometry)));
  Serving keeper({"serve", pool});
  expect_done(run({"put", "key", "--pool", pool}, {.in = "bytes"}));
  const auto sizes = [&] {
    return std::pair(std::filesystem::file_size(pool), std::filesystem::file_size(pool + ".1"));
  };
  const auto before = sizes();
  refuses({"pool", "info", pool, "--json"});
  refuses({"pool", "destroy", pool, "--json"});
  refuses({"pool", "fence", pool, "--unknown", "--json"});
  refuses({"serve", pool, "--json"});
  refuses({"stop", pool, "--json"});
  refuses({"put", "other", "--pool", pool, "--json"});
  refuses({"lookup", "key", "--pool", pool, "--json"});
  refuses({"evict", "key", "--pool", pool, "--json"});
  refuses({"get", "key", "--pool", pool, "--json"});
  refuses({"get", "key", "--pool", pool, "--output"});
  const std::string named = "shm:" + tag() + "_named";
  expect_done(run({"pool", "create", named, "--block-bytes", "4096", "--capacity-blocks", "8"}));
  expect_error(run({"pool", "info", named, "--json", "/dev/shm/" + tag() + "_named"}), kUsage,
               {"a device of the pool"});
  expect_done(run({"pool", "destroy", named}));
  EXPECT_EQ(sizes(), before);
  EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "bytes");
}

TEST_F(OutputTest, APoolThatCannotBeToldOfIsNotLeft) {
  const os::FileDescriptor out = full();
  const Arguments create = {
      "pool", "create", path("kv"), "--block-bytes", "4096", "--capacity-blocks", "8"};
  expect_error(run(create, {.out = out.get()}), kRefused, {"stdout", "No space left"});
  Arguments to_file = create;
  to_file.insert(to_file.end(), {"--json", "/dev/full"});
  EXPECT_EQ(run(to_file).exit_code, kRefused);
  EXPECT_EQ(listing(), std::set<std::string>());
}

TEST_F(OutputTest, ALinkIsWhatItStandsForThereOrNot) {
  std::filesystem::create_symlink("real", path("link"));
  const Arguments results[] = {{"hitrate", "--trace", trace(), "--json", path("link")},
                               {"trace", "generate", "--requests", "1", "--out", path("link")}};
  for (const Arguments& command : results) {
    for (const bool is_there : {false, true}) {
      if (is_there) {
        write("real", std::string(100'000, 'x'));
        std::filesystem::permissions(path("real"), std::filesystem::perms(0640));
      }
      expect_done(run(command));
      EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
      EXPECT_EQ(read(path("real")).front(), '{');
      EXPECT_LT(read(path("real")).size(), 100'000u);
      if (is_there) {
        EXPECT_EQ(std::filesystem::status(path("real")).permissions(),
                  std::filesystem::perms(0640));
      }
      std::filesystem::remove(path("real"));
    }
  }
}

// In a small tmpfs in a mount namespace of its own, where this user may have one.
TEST_F(OutputTest, HalfABlockIsNotLeftOnAFullDiskNorInTheOldOnesPlace) {
  const std::string pool = path("kv");
  expect_done(run({"pool", "create", pool, "--block-bytes", "8192", "--capacity-blocks", "8"}));
  Serving keeper({"serve", pool});
  expect_done(run({"put", "key", "--pool", pool}, {.in = noise(4096, 1)}));
  expect_done(run({"put", "long", "--pool", pool}, {.in = noise(8192, 1)}));
  const std::string small = path("small");
  std::filesystem::create_directory(small);
  const bool has_tmpfs = run_in_small_tmpfs(small, "4k", [&] {
    write("small/filler", std::string(4096, 'x'));
    expect_error(run({"get", "key", "--pool", pool, "--output", small + "/copy"}), kRefused,
                 {small + "/copy"});
    EXPECT_FALSE(std::filesystem::exists(small + "/copy"));
    write("small/filler", "precious");
    expect_error(run({"get", "long", "--pool", pool, "--output", small + "/filler"}), kRefused,
                 {small + "/filler"});
    EXPECT_EQ(read(small + "/filler"), "precious");
  });
  if (!has_tmpfs) GTEST_SKIP() << "this user cannot mount a tmpfs";
}

TEST_F(OutputTest, ARowWithoutALimitSaysSo) {
  const Outcome outcome = run({"bench", "hash", "--quick", "--json", "-"});
  expect_done(outcome);
  int without = 0;
  const nlohmann::json report = outcome.json();
  for (const nlohmann::json& row : report["rows"]) {
    EXPECT_EQ(row.at("ratio").is_null(), row.at("baseline_value").is_null()) << row;
    EXPECT_TRUE(row["ratio"].is_null() || row["ratio"] > 0) << row;
    without += row["ratio"].is_null() ? 1 : 0;
  }
  EXPECT_GT(without, 0);
}

TEST_F(OutputTest, AnExportGoesIntoPipesAndDevicesAndThroughLinks) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  expect_done(run({"put", "key", "--pool", pool}, {.in = "bytes"}));
  const auto exports = [&](const std::string& to) {
    return run({"pool", "export", pool, "--namespace", "default", "--to", to});
  };
  expect_done(exports(path("file")));
  const std::string whole = read(path("file"));
  EXPECT_GT(whole.size(), 64u);

  const Outcome piped = exports("-");
  EXPECT_EQ(piped.exit_code, 0);
  EXPECT_EQ(piped.out, whole);
  EXPECT_NE(piped.err.find("exported 1 block"), std::string::npos) << piped.err;
  expect_error(exports("/dev/full"), kRefused, {"/dev/full", "No space left"});
  expect_done(exports("/dev/null"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));

  write("target", "old");
  std::filesystem::create_symlink("target", path("link"));
  expect_done(exports(path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(read(path("target")), whole);

  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string pipe = path("pipe");
  const std::string got = said_by("cachalot pool export " + pool + " --namespace default --to " +
                                  pipe + " > /dev/null & timeout 60 cat " + pipe + "; wait");
  EXPECT_EQ(got, whole);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
}

TEST_F(OutputTest, ABlockThatGoesToStdoutIsNotMixedWithText) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  expect_done(run({"put", "key", "--pool", pool}, {.in = "bytes"}));
  const Outcome got = run({"get", "key", "--pool", pool, "--output", "/dev/stdout"});
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_EQ(got.out, "bytes");
}

TEST_F(OutputTest, AnImportOfWhichNothingFitsIsAnError) {
  const std::string large = create_pool("large"), small = path("small");
  {
    Serving keeper({"serve", large});
    expect_done(run({"put", "key", "--pool", large}, {.in = std::string(4096, 'a')}));
    expect_done(run({"pool", "export", large, "--namespace", "default", "--to", path("file")}));
  }
  expect_done(run({"pool", "create", small, "--block-bytes", "64", "--capacity-blocks", "8"}));
  Serving keeper({"serve", small});
  const Outcome outcome = run({"pool", "import", small, "--from", path("file")});
  EXPECT_EQ(outcome.exit_code, kRefused);
  EXPECT_NE(outcome.err.find("no block of"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("blocks have 64 bytes"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace cachalot::process_test
