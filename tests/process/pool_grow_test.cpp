// `cachalot pool grow` and `shrink`.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pool/pool.h"
#include "program.h"
#include "testing/pool/chains.h"

namespace cachalot::process_test {
namespace {

class PoolGrow : public ProcessTest {
 protected:
  std::string create_growable(const Arguments& more = {}) {
    Arguments all = {"pool",  "create",     path("kv"), "--block-bytes", "64KiB", "--size",
                     "16MiB", "--max-size", "256MiB",   "--clients",     "4"};
    all.insert(all.end(), more.begin(), more.end());
    expect_done(run(all));
    return path("kv");
  }
  static std::vector<std::string> states(const std::string& pool) {
    std::vector<std::string> all;
    const nlohmann::json info = run({"pool", "info", pool, "--json", "-"}).json();
    for (const nlohmann::json& device : info["geometry"]["added_devices"])
      all.push_back(device["state"]);
    return all;
  }
  // Of doctor, about added devices.
  static int count_warnings(const std::string& pool) {
    int warnings = 0;
    const nlohmann::json found = run({"doctor", "--pool", pool, "--json", "-"}).json();
    for (const nlohmann::json& check : found["checks"])
      warnings += check["check"] == "pool_device" && check["state"] == "warning";
    return warnings;
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
  expect_error(grow(pool, "/dev/dax9.9", ""), 2, {"/dev/dax9.9: no such device"});
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

TEST_F(PoolGrow, SaysWhichSizeADeviceGot) {
  const std::string pool = create_growable();
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  const auto said = [&](const std::string& device, const std::string& size) {
    return run({"pool", "grow", pool, "--device", path(device), "--size", size}).out;
  };
  const std::string whole = said("whole", "6MiB"), rounded = said("rounded", "7MiB");
  EXPECT_NE(whole.find("whole of 6,291,456 bytes: "), std::string::npos) << whole;
  EXPECT_NE(rounded.find("rounded of 6,291,456 bytes (--size 7,340,032: in steps of 2 MiB)"),
            std::string::npos)
      << rounded;
  EXPECT_EQ(
      run({"pool", "shrink", pool, "--device", path("rounded"), "--json", "-"}).json()["bytes"],
      6u << 20);
}

TEST_F(PoolGrow, ADeviceThatWouldAddNoBlockIsRefused) {
  const std::string pool = path("kv");
  expect_done(run({"pool", "create", pool, "--block-bytes", "4MiB", "--capacity-blocks", "4",
                   "--max-size", "1GiB", "--clients", "4"}));
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  const std::uint64_t before = capacity(pool);
  write("part", std::string(4 << 20, '\0'));
  expect_error(run({"pool", "grow", pool, "--device", path("file"), "--size", "4MiB"}), 2,
               {path("file"), "2097152 bytes", "add none"});
  expect_error(run({"pool", "grow", pool, "--device", path("part") + "@0+4MiB"}), 2,
               {path("part"), "add none"});
  EXPECT_FALSE(std::filesystem::exists(path("file")));
  EXPECT_EQ(capacity(pool), before);
  EXPECT_EQ(states(pool), std::vector<std::string>{});
}

TEST_F(PoolGrow, SaysThatAPoolCanHaveNoMoreDevices) {
  const std::string pool = create_growable();
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  Outcome grown;
  for (int i = 0; i < 31; ++i) {
    grown = run({"pool", "grow", pool, "--device", path(std::to_string(i)), "--size", "4MiB"});
    expect_done(grown);
  }
  expect_error(run({"pool", "grow", pool, "--device", path("x"), "--size", "4MiB"}), 3,
               {pool, "31 added devices, the most"});
  EXPECT_EQ(states(pool).size(), 31u);
}

TEST_F(PoolGrow, ThePathIsSaidToBeRequiredOnce) {
  for (const char* const command : {"grow", "shrink", "info"}) {
    const std::string help = run({"pool", command, "--help"}).out;
    EXPECT_NE(help.find("path PATH ... REQUIRED"), std::string::npos) << help;
    EXPECT_NE(help.find("--pool PATH ...  "), std::string::npos) << help;
    EXPECT_EQ(help.find("--pool PATH ... REQUIRED"), std::string::npos) << help;
    EXPECT_NE(help.find("the same as the argument path"), std::string::npos) << help;
  }
}

TEST_F(PoolGrow, EveryCommandThatHasOthersShowsAnExampleOfItsOwn) {
  for (const char* const command : {"context", "pool"}) {
    const std::string help = run({command, "--help"}).out;
    EXPECT_NE(help.find(std::string("Example: cachalot ") + command), std::string::npos) << help;
  }
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
  EXPECT_EQ(states(pool), (std::vector<std::string>{"lost", "lost"}));
  expect_done(run({"pool", "grow", pool, "--device", path("last"), "--size", "18MiB"}));
  EXPECT_EQ(states(pool), (std::vector<std::string>{"serving", "lost"}));
  expect_done(run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"}));
  const Outcome twice = run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"});
  expect_error(twice, 3, {path("more"), "a device of this pool already"});
  EXPECT_EQ(states(pool), (std::vector<std::string>{"serving", "serving"}));
  std::filesystem::remove(path("more"));
  expect_done(run({"pool", "shrink", pool, "--device", path("more")}));
  expect_done(run({"pool", "fsck", pool}));
}

TEST_F(PoolGrow, ADeviceThatWasRemovedWhileItIsServedIsNamed) {
  const std::string pool = create_growable();
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"pool", "grow", pool, "--device", path("more"), "--size", "18MiB"}));
  EXPECT_EQ(states(pool), std::vector<std::string>{"serving"});
  EXPECT_EQ(count_warnings(pool), 0);
  expect_done(run({"pool", "grow", pool, "--device", path("last"), "--size", "18MiB"}));
  expect_done(run({"pool", "shrink", pool, "--device", path("last")}));  // no cause to say anything
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  std::filesystem::rename(path("more"), path("elsewhere"));
  EXPECT_EQ(states(pool), std::vector<std::string>{"lost"});
  const Outcome shown = run({"pool", "info", pool});
  EXPECT_NE(shown.out.find("lost: " + path("more") + ": opening: No such file"), std::string::npos)
      << shown.out;
  const Outcome all = run({"pool", "info", pool, "--all"});
  EXPECT_NE(all.out.find("added device\n"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find("lost"), std::string::npos) << all.out;
  EXPECT_EQ(count_warnings(pool), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // two looks of the keeper
  std::filesystem::rename(path("elsewhere"), path("more"));
  EXPECT_EQ(states(pool), std::vector<std::string>{"serving"});
  keeper.send(SIGTERM);
  const std::string log = keeper.wait().err;
  const std::string line = path("more") + ": this device of the pool was removed meanwhile";
  ASSERT_NE(log.find(line), std::string::npos) << log;
  EXPECT_EQ(log.find(line, log.find(line) + 1), std::string::npos) << log;  // once a minute
}

TEST_F(PoolGrow, WhatWasLostIsForgottenByShrinkAndRemovedByDestroy) {
  const std::string pool = create_growable();
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    for (const char* const device : {"a", "b", "c"})
      expect_done(run({"pool", "grow", pool, "--device", path(device), "--size", "18MiB"}));
    expect_done(run({"stop", pool}));
  }
  std::filesystem::rename(path("a"), path("elsewhere"));
  for (int reign = 0; reign < 6; ++reign) {  // more than there are keeper areas
    Serving keeper({"serve", pool, "--without-lost-devices"});
    ASSERT_TRUE(keeper.is_ready());
    EXPECT_EQ(states(pool), (std::vector<std::string>{"lost", "lost", "lost"}));
    expect_done(run({"stop", pool}));
  }
  {
    Serving keeper({"serve", pool});  // it has all that it should have
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"pool", "shrink", pool, "--device", path("b")}));
    EXPECT_FALSE(std::filesystem::exists(path("b")));
    expect_done(run({"pool", "shrink", pool, "--device", path("a")}));
    EXPECT_EQ(states(pool), (std::vector<std::string>{"lost"}));
    expect_done(run({"pool", "grow", pool, "--device", path("d"), "--size", "18MiB"}));
    EXPECT_EQ(states(pool), (std::vector<std::string>{"serving", "lost"}));
    expect_done(run({"pool", "fsck", pool}));
    expect_done(run({"stop", pool}));
  }
  std::filesystem::remove(path("elsewhere"));
  expect_done(run({"pool", "destroy", pool}));
  EXPECT_EQ(listing(), std::set<std::string>{});
}

TEST_F(PoolGrow, DestroyRemovesWhatLiesBehindAMissingDevice) {
  const std::string pool = create_growable();
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    for (const char* const device : {"a", "b"})
      expect_done(run({"pool", "grow", pool, "--device", path(device), "--size", "18MiB"}));
    expect_done(run({"stop", pool}));
  }
  std::filesystem::remove(path("a"));
  expect_done(run({"pool", "destroy", pool}));
  EXPECT_EQ(listing(), std::set<std::string>{});
}

// What fsck says of an added device, and what --repair leaves.
class FsckOfAPoolThatHasGrown : public PoolGrow {
 protected:
  void SetUp() override {
    pool_ = create_growable({"--domain", "noncoherent"});
    Serving keeper({"serve", pool_});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"pool", "grow", pool_, "--device", path("more"), "--size", "18MiB"}));
    fill();
    expect_done(run({"stop", pool_}));
    expect_done(run({"pool", "fsck", pool_}));
  }
  // Until blocks lie on the added device.
  void fill() const {
    Result<pool::Pool> pool = pool::Pool::open({pool_});
    ASSERT_TRUE(pool);
    Result<pool::PoolClient> client = pool->attach({});
    ASSERT_TRUE(client);
    for (std::uint64_t name = 0; name < kStored; name += 20)
      pool::put_chain(client->client(), 64 << 10, name, 20);
  }
  void overwrite(std::uint64_t offset, const std::string& bytes) const {
    std::fstream file(path("more"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  }
  nlohmann::json check(const Arguments& more = {}) const {
    Arguments all = {"pool", "fsck", pool_, "--json", "-"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = run(all);
    exit_code_ = outcome.exit_code;
    return outcome.json();
  }
  // That the device is at fault, in a line of its own, with these words; and that a repair gives it up.
  void expect_given_up(const std::string& why) {
    const nlohmann::json found = check();
    EXPECT_EQ(exit_code_, 1);
    ASSERT_EQ(found["counts"].value("added_device", 0), 1) << found.dump(1);
    EXPECT_EQ(found["faults"][0]["path"], path("more"));
    EXPECT_NE(found["faults"][0]["what"].get<std::string>().find(why), std::string::npos)
        << found["faults"][0];
    EXPECT_FALSE(found["counts"].contains("entry_content")) << found["counts"];
    EXPECT_GT(found["lost_blocks"], 20);
    const Outcome shown = run({"pool", "fsck", pool_});
    EXPECT_NE(shown.out.find("fault added_device: " + path("more")), std::string::npos)
        << shown.out;
    EXPECT_NE(shown.out.find("--repair gives these devices up"), std::string::npos) << shown.out;
    expect_done(run({"pool", "fsck", pool_, "--repair"}));
    EXPECT_EQ(check()["clean"], true);
    EXPECT_EQ(states(pool_), std::vector<std::string>{"lost"});
    Serving keeper({"serve", pool_});
    EXPECT_TRUE(keeper.is_ready());
  }
  static constexpr std::uint64_t kStored = 360;
  std::string pool_;
  mutable int exit_code_ = -1;
};

TEST_F(FsckOfAPoolThatHasGrown, NamesADeviceThatIsMissing) {
  std::filesystem::remove(path("more"));
  expect_given_up("No such file");
}

TEST_F(FsckOfAPoolThatHasGrown, NamesADeviceOfAnotherSerial) {
  std::filesystem::rename(path("more"), path("first"));
  const std::string other = path("other");
  expect_done(run({"pool", "create", other, "--block-bytes", "64KiB", "--size", "16MiB",
                   "--max-size", "256MiB", "--clients", "4"}));
  Serving keeper({"serve", other});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"pool", "grow", other, "--device", path("more"), "--size", "18MiB"}));
  expect_given_up("was not added to this pool");
}

TEST_F(FsckOfAPoolThatHasGrown, NamesADeviceThatIsTooShort) {
  std::filesystem::resize_file(path("more"), 8u << 20);
  expect_given_up("has 8388608 bytes");
}

TEST_F(FsckOfAPoolThatHasGrown, NamesADeviceWithoutItsSerial) {
  overwrite(0, std::string(192, 'x'));
  expect_given_up("is not a pool");
}

TEST_F(FsckOfAPoolThatHasGrown, WritesTheHeaderAgainWhereTheSerialProvesTheDevice) {
  overwrite(20, "x");
  const nlohmann::json found = check();
  EXPECT_EQ(exit_code_, 1);
  ASSERT_EQ(found["counts"].value("added_header", 0), 1) << found.dump(1);
  EXPECT_EQ(found["faults"][0]["path"], path("more"));
  expect_error(run({"serve", pool_}), 3, {path("more"), "--without-lost-devices"});
  const nlohmann::json repaired = check({"--repair"});
  EXPECT_EQ(exit_code_, 0);
  EXPECT_EQ(repaired["repaired"]["accounting"]["live_blocks"], kStored);
  EXPECT_EQ(states(pool_), std::vector<std::string>{"serving"});
}

TEST_F(FsckOfAPoolThatHasGrown, NamesTheDeviceOfADamagedPayload) {
  overwrite((2u << 20) + (1u << 20), std::string(128u << 10, 'x'));
  const nlohmann::json found = check();
  EXPECT_EQ(exit_code_, 1);
  ASSERT_GT(found["counts"].value("payload", 0), 0) << found["counts"];
  EXPECT_EQ(found["faults"][0]["path"], path("more"));
  EXPECT_GT(found["faults"][0]["offset"], 2u << 20);
  EXPECT_LT(found["faults"][0]["offset"], 4u << 20);
}

TEST_F(FsckOfAPoolThatHasGrown, TheDeviceItselfIsNoPool) {
  expect_error(run({"pool", "fsck", path("more")}), 2,
               {path("more"), "give the pool's first device"});
  expect_error(run({"pool", "info", path("more")}), 2,
               {path("more"), "give the pool's first device"});
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
