// Pools that are being made, that their maker left half-made, or that are still to come.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "os/file_lock.h"
#include "pool/making.h"
#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kUsage = 2, kRefused = 3;

class MakingPool : public ProcessTest {
 protected:
  // As its maker leaves it before the header is written; the maker is this process.
  std::string begin_pool(const std::string& name) {
    const std::string file = write(name, std::string(4 << 20, '\0'));
    const os::FileDescriptor fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
    Result<os::FileLock> lock = pool::lock_as_maker(fd.get());
    EXPECT_TRUE(lock) << lock.error().message;
    if (lock) maker_.emplace(*std::move(lock));
    return file;
  }
  static std::vector<Arguments> openers(const std::string& pool) {
    return {{"pool", "info", pool},
            {"pool", "destroy", pool},
            {"serve", pool},
            {"stop", pool},
            {"put", "key", "--pool", pool, "--file", "/proc/self/comm"},
            {"lookup", "key", "--pool", pool}};
  }
  Arguments serve(const std::string& pool) const {
    return {"serve", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "32"};
  }

  std::optional<os::FileLock> maker_;
};

TEST_F(MakingPool, IsBusyForAllThatDoNotWait) {
  const std::string pool = begin_pool("kv");
  for (const Arguments& command : openers(pool)) {
    SCOPED_TRACE(command[0] + " " + command[1]);
    expect_error(run(command), kRefused, {pool, "is being made"});
  }
  expect_error(run(serve(pool)), kRefused, {pool, "is being made"});
}

TEST_F(MakingPool, IsWaitedForByClientsAndStandbys) {
  const std::string pool = begin_pool("kv");
  Running put({"put", "key", "--pool", pool, "--wait", "600", "--file", "/proc/self/comm"});
  Running standby({"serve", pool, "--standby"});
  ASSERT_TRUE(standby.says("waiting pid="));
  EXPECT_FALSE(put.has_ended());
  // It is made after all: as another file, for the file of this test is none of a pool's.
  ASSERT_EQ(unlink(pool.c_str()), 0);
  create_pool("kv");
  ASSERT_TRUE(standby.says("epoch=1")) << standby.wait().err;
  expect_done(put.wait());
  expect_done(run({"stop", pool}));
  expect_done(standby.wait());
}

TEST_F(MakingPool, IsNoPoolAfterItsMakerDiedAndTheMessageSaysWhatToDo) {
  const std::string pool = begin_pool("kv");
  maker_.reset();
  for (const Arguments& command : openers(pool)) {
    SCOPED_TRACE(command[0] + " " + command[1]);
    expect_error(run(command), kUsage, {pool, "no process is making it", "remove it"});
  }
  // What waits does so for the pool that may come.
  expect_error(run({"lookup", "key", "--pool", pool, "--wait", "3"}), kUsage, {pool, "remove it"});
  expect_error(run({"serve", pool, "--standby"}), kUsage, {pool, "remove it"});
}

TEST_F(MakingPool, IsWaitedForAfterItsMakerDiedByWhatWaits) {
  const std::string pool = begin_pool("kv");
  maker_.reset();
  Running put({"put", "key", "--pool", pool, "--wait", "600", "--file", "/proc/self/comm"});
  // Longer than a maker takes to lock.
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_FALSE(put.has_ended());
  ASSERT_EQ(unlink(pool.c_str()), 0);
  Serving keeper(serve(pool));
  ASSERT_TRUE(keeper.is_ready()) << keeper.wait().err;
  expect_done(put.wait());
}

// Killed where it cannot remove it: by SIGKILL. A service manager starts the same command again.
TEST_F(MakingPool, IsMadeAnewByTheCommandThatItsMakerRan) {
  const std::string pool = path("kv");
  Serving first(serve(pool));
  ASSERT_TRUE(first.is_ready()) << first.wait().err;
  first.send(SIGKILL);
  first.wait();
  const std::uintmax_t bytes = std::filesystem::file_size(pool);
  for (const std::uintmax_t size : {bytes, std::uintmax_t{0}}) {
    SCOPED_TRACE(size);
    std::filesystem::remove(pool);
    write("kv", std::string(size, '\0'));
    Serving again(serve(pool));
    ASSERT_TRUE(again.is_ready()) << again.wait().err;
    EXPECT_NE(again.ready_line().find("epoch=1"), std::string::npos) << again.ready_line();
    expect_done(run({"stop", pool}));
    EXPECT_NE(again.wait().err.find("half-made"), std::string::npos);
  }
}

TEST_F(MakingPool, AFileThatMayBeAnotherThingIsNotMadeAnew) {
  const std::string other_size = write("kv", std::string(4 << 20, '\0'));
  expect_error(run(serve(other_size)), kUsage, {other_size, "remove it"});
  std::filesystem::remove(other_size);
  Serving maker(serve(other_size));
  ASSERT_TRUE(maker.is_ready());
  expect_done(run({"stop", other_size}));
  maker.wait();
  std::string data(std::filesystem::file_size(other_size), '\0');
  data[1000] = 'x';  // past the line of a header
  std::filesystem::remove(other_size);
  write("kv", data);
  expect_error(run(serve(other_size)), kUsage, {other_size, "remove it"});
  EXPECT_EQ(std::filesystem::file_size(other_size), data.size());
}

TEST_F(MakingPool, AStandbyThatIsThereFirstWaitsAndLeavesThePoolToItsMaker) {
  const std::string pool = path("kv");
  Running standby({"serve", pool, "--standby"});
  ASSERT_TRUE(standby.says("waiting pid="));
  Serving keeper(serve(pool));
  ASSERT_TRUE(keeper.is_ready()) << keeper.wait().err;
  EXPECT_NE(keeper.ready_line().find("epoch=1"), std::string::npos) << keeper.ready_line();
  ASSERT_TRUE(standby.says("standby pid="));
  keeper.send(SIGKILL);
  EXPECT_EQ(keeper.wait().signal, SIGKILL);
  EXPECT_TRUE(standby.says("epoch=2")) << standby.wait().err;
  expect_done(run({"stop", pool}));
  expect_done(standby.wait());
}

TEST_F(MakingPool, AStandbyThatWaitsForAPoolEndsOnASignal) {
  Running standby({"serve", path("kv"), "--standby"});
  ASSERT_TRUE(standby.says("waiting pid="));
  standby.send(SIGTERM);
  expect_done(standby.wait());
}

TEST_F(MakingPool, OneThatWouldBeGoneAtOnceIsNotMade) {
  expect_error(
      run({"pool", "create", "memfd:kv", "--block-bytes", "4096", "--capacity-blocks", "8"}),
      kUsage, {"memfd:kv", "ends with this command"});
}

// A device is there before its pool, as a part of a file is: what it holds is opened, and never written over but by an operator.
TEST_F(MakingPool, ADeviceKeepsThePoolThatItHoldsAlsoADamagedOne) {
  const std::string file = write("device", std::string(32 << 20, '\x5a'));
  const std::string pool = file + "@0+16MiB";
  for (const char* const key : {"first", "second"}) {  // made of noise; then found again
    Serving keeper(serve(pool));
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"put", key, "--pool", pool}, {.in = "hello"}));
    EXPECT_EQ(run({"get", "first", "--pool", pool}).out, "hello");
    expect_done(run({"stop", pool}));
    expect_done(keeper.wait());
  }
  {
    const os::FileDescriptor fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(pwrite(fd.get(), "x", 1, 30), 1);  // in the header's first line
  }
  expect_error(run(serve(pool)), 1, {"header is damaged"});
  expect_done(run({"pool", "fsck", pool, "--repair"}));
  Serving keeper(serve(pool));
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_EQ(run({"get", "second", "--pool", pool}).out, "hello");
  expect_error(run({"pool", "create", pool, "--block-bytes", "4096", "--capacity-blocks", "32"}),
               kRefused, {"holds a pool that a keeper serves"});
}

}  // namespace
}  // namespace cachalot::process_test
