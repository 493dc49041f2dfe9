// `cachalot pool grow` and `shrink`.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "program.h"

namespace cachalot::process_test {
namespace {

class PoolGrow : public ProcessTest {
 protected:
  std::string create_growable() {
    expect_done(run({"pool", "create", path("kv"), "--block-bytes", "64KiB", "--size", "16MiB",
                     "--max-size", "256MiB", "--clients", "4"}));
    return path("kv");
  }
  static std::uint64_t capacity(const std::string& pool) {
    return run({"pool", "info", pool, "--json", "-"})
        .json()["geometry"]["capacity_blocks"]
        .get<std::uint64_t>();
  }
};

TEST_F(PoolGrow, GetsAndGivesUpDevicesWhileItIsServed) {
  const std::string pool = create_growable();
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  const std::uint64_t before = capacity(pool);
  const Outcome grown =
      run({"pool", "grow", pool, "--device", path("more"), "--size", "34MiB", "--json", "-"});
  expect_done(grown);
  EXPECT_EQ(grown.json()["capacity_blocks"], before + 512);  // 2 MiB are the device's header
  EXPECT_EQ(grown.json()["device"], path("more"));
  EXPECT_EQ(std::filesystem::file_size(path("more")), 34u << 20);
  expect_done(run({"pool", "grow", pool, "--device", path("last"), "--size", "18MiB"}));
  const nlohmann::json geometry = run({"pool", "info", pool, "--json", "-"}).json()["geometry"];
  EXPECT_EQ(geometry["capacity_blocks"], before + 512 + 256);
  EXPECT_EQ(geometry["added_devices"][0]["path"], path("more"));
  EXPECT_EQ(geometry["added_devices"][0]["bytes"], 32u << 20);
  EXPECT_EQ(geometry["total_bytes"], (16u + 34u + 18u) << 20);
  const std::string file = write("block", std::string(50'000, 'x'));
  for (int i = 0; i < 40; ++i)
    expect_done(run({"put", "k" + std::to_string(i), "--pool", pool, "--file", file}));
  const Outcome early = run({"pool", "shrink", pool, "--device", path("more")});
  expect_error(early, 3, {path("more"), "added later"});
  expect_done(run({"pool", "shrink", pool, "--device", path("last")}));
  expect_done(run({"pool", "grow", pool, "--device", path("as-the-first")}));
  EXPECT_EQ(std::filesystem::file_size(path("as-the-first")), 16u << 20);
  expect_done(run({"pool", "shrink", pool, "--device", path("as-the-first")}));
  expect_done(run({"pool", "shrink", pool, "--device", path("more")}));
  EXPECT_EQ(capacity(pool), before);
  EXPECT_FALSE(std::filesystem::exists(path("more")));
  expect_done(run({"pool", "fsck", pool}));
}

TEST_F(PoolGrow, TheNextKeeperHasTheDevicesAndDestroyRemovesThem) {
  const std::string pool = create_growable();
  std::uint64_t grown = 0;
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"pool", "grow", pool, "--device", path("more"), "--size", "34MiB"}));
    grown = capacity(pool);
    keeper.send(SIGKILL);
    (void)keeper.wait();
  }
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    EXPECT_NE(keeper.ready_line().find(" blocks=" + std::to_string(grown)), std::string::npos)
        << keeper.ready_line();
    expect_done(run({"stop", pool}));
  }
  expect_done(run({"pool", "fsck", pool}));
  expect_done(run({"pool", "destroy", pool}));
  EXPECT_FALSE(std::filesystem::exists(path("more")));
}

TEST_F(PoolGrow, SaysWhatIsWrongAndLeavesNothingBehind) {
  const std::string fixed = create_pool("fixed");
  const std::string pool = create_growable();
  Serving other({"serve", fixed}), keeper({"serve", pool});
  ASSERT_TRUE(other.is_ready() && keeper.is_ready());
  const std::uint64_t before = capacity(pool);
  const auto grow = [&](const std::string& which, const std::string& device,
                        const std::string& size) {
    Arguments all = {"pool", "grow", which, "--device", device};
    if (!size.empty()) all.insert(all.end(), {"--size", size});
    return run(all);
  };
  expect_error(grow(fixed, path("x"), "34MiB"), 3, {fixed, "cannot grow", "--max-size"});
  expect_error(grow(pool, path("x"), "4GiB"), 2, {"--size", "4294967296", "the most"});
  expect_error(grow(pool, path("x"), "1MiB"), 2, {"--size", "1048576"});
  expect_error(grow(pool, path("absent/x"), ""), 2, {path("absent/x")});
  expect_error(grow(pool, "memfd:x", "34MiB"), 2, {"memfd"});
  expect_error(grow(pool, fixed, "34MiB"), 3, {fixed});
  expect_error(grow(pool, fixed, ""), 3, {fixed, "holds a pool"});
  expect_error(grow(pool, write("text", std::string(8 << 20, 'x')), ""), 2, {"is a file"});
  expect_error(run({"pool", "shrink", pool, "--device", path("x")}), 2, {path("x")});
  expect_error(run({"pool", "shrink", pool, "--device", fixed}), 2, {fixed, "was not added"});
  EXPECT_FALSE(std::filesystem::exists(path("x")));
  EXPECT_EQ(capacity(pool), before);
  expect_error(run({"pool", "create", path("y"), "--block-bytes", "64KiB", "--size", "16MiB",
                    "--max-size", "8MiB"}),
               2, {"--max-size"});
  expect_error(run({"pool", "create", path("y"), "--block-bytes", "64KiB", "--size", "16MiB",
                    "--max-size", "1TiB"}),
               2, {"--max-size", "too few"});
  expect_error(run({"pool", "create", path("y"), "--block-bytes", "64KiB", "--size", "64MiB",
                    "--max-size", "1GiB", "--devices", "2"}),
               2, {"devices: 2"});
  EXPECT_FALSE(std::filesystem::exists(path("y")));
}

// A part of a file may lie in the middle of a pool, whose blocks would change without a word.
TEST_F(PoolGrow, NoPoolIsWrittenOver) {
  const std::string pool = create_growable(), other = create_pool("other");
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"}));
  expect_done(run({"put", "a", "--pool", pool}, {.in = "bytes"}));
  const auto expect_refused = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
    EXPECT_NE(outcome.err.find("expected a range that is free"), std::string::npos) << outcome.err;
  };
  for (const std::string& part : {pool + "@0+8MiB", pool + "@8MiB+8MiB", path("more") + "@0+4MiB",
                                  path("more") + "@4MiB+12MiB", other + "@0+4MiB"}) {
    SCOPED_TRACE(part);
    expect_refused(run({"pool", "grow", pool, "--device", part}));
    expect_refused(run({"bench", "skew", "--quick", "--repeats", "1", "--device", part, "--device",
                        path("1"), "--device", path("2"), "--device", path("3")}));
    if (part.starts_with(other)) continue;  // it is not served: a pool may take its place
    const Outcome created = run({"pool", "create", part, "--block-bytes", "4096",
                                 "--capacity-blocks", "32", "--clients", "2"});
    EXPECT_EQ(created.exit_code, 3) << created.out;
  }
  EXPECT_EQ(run({"get", "a", "--pool", pool}).out, "bytes");
  expect_done(run({"pool", "fsck", pool}));
}

TEST_F(PoolGrow, ADeviceThatWasLostIsAddedAgainEmpty) {
  const std::string pool = create_growable();
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"}));
    expect_done(run({"pool", "grow", pool, "--device", path("last"), "--size", "18MiB"}));
    expect_done(run({"stop", pool}));
  }
  std::filesystem::remove(path("more"));
  expect_error(run({"serve", pool}), 3,
               {path("more"), "No such file", "put it back", "--without-lost-devices"});
  const std::string config = write("config", "without-lost-devices = true\n");
  Serving keeper({"serve", pool, "--config", config});
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_EQ(run({"pool", "info", pool, "--json", "-"}).json()["geometry"]["added_devices"].size(),
            0u);
  expect_done(run({"pool", "grow", pool, "--device", path("last"), "--size", "18MiB"}));
  expect_done(run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"}));
  const Outcome twice = run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"});
  expect_error(twice, 3, {path("more"), "a device of this pool already"});
  std::filesystem::remove(path("more"));
  expect_done(run({"pool", "shrink", pool, "--device", path("more")}));
  expect_done(run({"pool", "fsck", pool}));
}

class StandbyOfAPoolThatHasGrown : public PoolGrow {
 protected:
  void SetUp() override {
    pool_ = create_growable();
    keeper_.emplace(Arguments{"serve", pool_});
    ASSERT_TRUE(keeper_->is_ready());
    expect_done(run({"pool", "grow", pool_, "--device", path("more"), "--size", "18MiB"}));
    grown_ = capacity(pool_);
    std::filesystem::rename(path("more"), path("elsewhere"));
  }
  void kill_keeper() {
    keeper_->send(SIGKILL);
    (void)keeper_->wait();
  }
  std::string pool_;
  std::optional<Serving> keeper_;
  std::uint64_t grown_ = 0;
};

TEST_F(StandbyOfAPoolThatHasGrown, WaitsForADeviceThatItCannotOpen) {
  Running standby({"serve", pool_, "--standby", "--wait-for-devices", "0"});
  ASSERT_TRUE(standby.says("standby"));
  kill_keeper();
  const auto says = [&](const std::string& text) {
    return run({"pool", "info", pool_, "--json", "-"}).json()["keeper"]["state"] == text;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(says("none"));
  std::filesystem::rename(path("elsewhere"), path("more"));
  ASSERT_TRUE(standby.says("ready"));
  EXPECT_EQ(capacity(pool_), grown_);
  standby.send(SIGTERM);
  const Outcome ended = standby.wait();
  EXPECT_NE(ended.err.find("cannot open a device of the pool"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("waits: an added device cannot be used"), std::string::npos)
      << ended.err;
}

TEST_F(StandbyOfAPoolThatHasGrown, DoesNotWaitForEver) {
  Running standby({"serve", pool_, "--standby", "--wait-for-devices", "1"});
  ASSERT_TRUE(standby.says("standby"));
  kill_keeper();
  ASSERT_TRUE(standby.says("ready"));
  EXPECT_LT(capacity(pool_), grown_);
  standby.send(SIGTERM);
  const Outcome ended = standby.wait();
  EXPECT_NE(ended.err.find("goes on without 1 of the pool's 1 added devices"), std::string::npos)
      << ended.err;
}

TEST_F(StandbyOfAPoolThatHasGrown, DoesNotWaitIfItWasTold) {
  Running standby(
      {"serve", pool_, "--standby", "--wait-for-devices", "0", "--without-lost-devices"});
  ASSERT_TRUE(standby.says("standby"));
  kill_keeper();
  ASSERT_TRUE(standby.says("ready"));
  EXPECT_LT(capacity(pool_), grown_);
}

}  // namespace
}  // namespace cachalot::process_test
