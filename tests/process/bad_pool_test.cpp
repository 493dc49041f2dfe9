// Pools that are none, that are full, that another keeper serves, or that no keeper serves.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "pool/pool.h"
#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kAbsent = 1, kUsage = 2, kRefused = 3;

class BadPool : public ProcessTest {
 protected:
  // Every command that opens a pool, on this one.
  std::vector<Arguments> openers(const std::string& pool) const {
    return {{"pool", "info", pool},
            {"pool", "destroy", pool},
            {"serve", pool},
            {"stop", pool},
            {"put", "key", "--pool", pool},
            {"get", "key", "--pool", pool},
            {"lookup", "key", "--pool", pool},
            {"evict", "key", "--pool", pool}};
  }
  // Those of them that need a keeper.
  std::vector<Arguments> users(const std::string& pool) const {
    return {{"stop", pool},
            {"put", "key", "--pool", pool, "--file", "/proc/self/comm"},
            {"get", "key", "--pool", pool},
            {"lookup", "key", "--pool", pool},
            {"evict", "key", "--pool", pool}};
  }
  void expect_all_fail(const std::vector<Arguments>& commands, int exit_code,
                       const std::vector<std::string>& parts) const {
    const auto before = listing();
    for (const Arguments& command : commands) {
      SCOPED_TRACE(command[0] + " " + command[1]);
      expect_error(run(command), exit_code, parts);
    }
    EXPECT_EQ(listing(), before);
  }
  static std::uint64_t free_bytes(const char* folder) {
    struct statvfs fs {};
    EXPECT_EQ(statvfs(folder, &fs), 0);
    return fs.f_bavail * fs.f_bsize;
  }
};

TEST_F(BadPool, AFileThatIsNoPoolIsRefusedAndLeftAlone) {
  const std::string content = noise(4 << 20, 1);
  const std::string file = write("kv", content);
  expect_all_fail(openers(file), kUsage, {file});
  EXPECT_EQ(read(file), content);
  const std::string small = write("small", "hello");
  expect_all_fail(openers(small), kUsage, {small});
  const std::string empty = write("empty", "");
  expect_all_fail(openers(empty), kUsage, {empty});
}

TEST_F(BadPool, APoolOfAnotherVersionSaysWhichIsKnown) {
  const std::string pool = create_pool("kv");
  std::string content = read(pool);
  const std::uint32_t version = 7;
  std::memcpy(content.data() + 8, &version, sizeof version);
  write("kv", content);
  expect_all_fail(openers(pool), kUsage, {pool, "version 7", "knows 2"});
}

TEST_F(BadPool, ADamagedHeaderIsAFault) {
  const std::string pool = create_pool("kv");
  std::string content = read(pool);
  content[20] ^= 1;
  write("kv", content);
  expect_all_fail(openers(pool), kAbsent, {pool, "damaged"});
}

TEST_F(BadPool, ADeviceThatWasCutOffIsAFaultAndNoSignal) {
  const std::string pool = create_pool("kv", {}, 2048);
  ASSERT_EQ(truncate(pool.c_str(), 4 << 20), 0);
  expect_all_fail(openers(pool), kAbsent, {pool});
}

TEST_F(BadPool, DevicesOfTwoPoolsAreNoPool) {
  const std::string a = create_pool("a", {"--devices", "2"});
  const std::string b = create_pool("b", {"--devices", "2"});
  expect_error(run({"pool", "info", a, b + ".1"}), kUsage, {b + ".1", "another pool"});
  expect_error(run({"pool", "info", a + ".1", a}), kUsage, {"device 0", "in order"});
  expect_error(run({"pool", "info", a, a + ".1", b}), kUsage, {"2 device", "3 paths"});
  ASSERT_EQ(unlink((b + ".1").c_str()), 0);
  expect_error(run({"pool", "info", b}), kUsage, {b + ".1"});
}

TEST_F(BadPool, AFullFileSystemIsNoticedWhenThePoolIsMade) {
  const std::string bytes = std::to_string(free_bytes("/dev/shm") + (std::uint64_t{1} << 30));
  const auto create = [&](const Arguments& more) {
    Arguments arguments = {"pool",          "create",         path("kv"),
                           "--block-bytes", "1MiB",           "--capacity",
                           bytes,           "--spare-blocks", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  expect_error(create({}), kRefused, {path("kv"), "available: --size ", " would fit"});
  EXPECT_EQ(listing(), std::set<std::string>());
  expect_error(run({"serve", path("kv"), "--create", "--block-bytes", "1MiB", "--capacity", bytes}),
               kRefused, {path("kv"), "available"});
  EXPECT_EQ(listing(), std::set<std::string>());
}

// A small tmpfs in a mount namespace of its own, where this user may have one.
TEST_F(BadPool, ASecondDeviceThatDoesNotFitTakesTheFirstOneAway) {
  const bool has_tmpfs = run_in_small_tmpfs(path(""), "6m", [&] {
    const Outcome outcome = run({"pool", "create", path("kv"), "--block-bytes", "4096",
                                 "--capacity-blocks", "32", "--clients", "16", "--devices", "2"});
    expect_error(outcome, kRefused, {path("kv.1"), "available"});
    EXPECT_EQ(outcome.err.find("would fit"), std::string::npos) << "both lie in one tmpfs";
    EXPECT_EQ(listing(), std::set<std::string>());
  });
  if (!has_tmpfs) GTEST_SKIP() << "this user cannot mount a tmpfs";
}

TEST_F(BadPool, ASizeThatWouldNotFitIsNotProposed) {
  const bool has_tmpfs = run_in_small_tmpfs(path(""), "5m", [&] {
    const Outcome outcome =
        run({"pool", "create", path("kv"), "--block-bytes", "64KiB", "--capacity", "64MiB"});
    expect_error(outcome, kRefused, {path("kv"), "5242880 available"});
    // The least pool takes more than that.
    EXPECT_EQ(outcome.err.find("would fit"), std::string::npos) << outcome.err;
  });
  if (!has_tmpfs) GTEST_SKIP() << "this user cannot mount a tmpfs";
}

TEST_F(BadPool, ASizeThatNoPoolHasIsRefusedByItsOwnNumber) {
  expect_error(run({"pool", "create", path("kv"), "--block-bytes", "4KiB", "--size", "7EiB"}),
               kUsage, {"--size: 8070450532247928832 bytes are too many"});
}

// Of the system: without a word, the signal for it would end the program.
TEST_F(BadPool, ALimitOnTheSizeOfFilesIsAnError) {
  RunOptions options;
  options.limit = {RLIMIT_FSIZE, 1 << 20};
  expect_error(
      run({"pool", "create", path("kv"), "--block-bytes", "64KiB", "--capacity", "64MiB"}, options),
      kRefused, {path("kv"), "available"});
  EXPECT_EQ(listing(), std::set<std::string>());
  expect_error(run({"trace", "generate", "--kind", "chat", "--requests", "30000", "--out",
                    path("trace.jsonl")},
                   options),
               kRefused, {path("trace.jsonl"), "File too large"});
}

TEST_F(BadPool, AFileThatExistsIsNotOverwritten) {
  const std::string file = write("kv", "precious");
  expect_error(run({"pool", "create", file, "--block-bytes", "4096", "--capacity-blocks", "8"}),
               kRefused, {file, "exists"});
  EXPECT_EQ(read(file), "precious");
  // Nor one of several: the device that was made before it is taken away again.
  const std::string other = write("b.1", "precious");
  expect_error(run({"pool", "create", path("b"), "--block-bytes", "4096", "--capacity-blocks", "8",
                    "--devices", "2"}),
               kRefused, {other, "exists"});
  EXPECT_EQ(listing(), (std::set<std::string>{"kv", "b.1"}));
}

TEST_F(BadPool, APoolWithoutPermissionIsRefused) {
  const std::string pool = create_pool("kv");
  ASSERT_EQ(chmod(pool.c_str(), 0600), 0);
  if (geteuid() != 0) {
    ASSERT_EQ(chmod(pool.c_str(), 0), 0);
  }
  const Outcome outcome = run({"pool", "info", pool}, {.without_rights = true});
  if (outcome.exit_code == kNotStarted) GTEST_SKIP() << "another user cannot run the binary";
  expect_error(outcome, kRefused, {pool, "ermission"});
  EXPECT_EQ(run({"pool", "destroy", pool}, {.without_rights = true}).exit_code, kRefused);
  EXPECT_EQ(listing(), std::set<std::string>{"kv"});
}

TEST_F(BadPool, ASecondKeeperIsRefused) {
  const std::string pool = create_pool("kv");
  Serving first({"serve", pool});
  ASSERT_TRUE(first.is_ready());
  expect_error(run({"serve", pool}), kRefused, {pool, "keeper already", "pid"});
  expect_error(run({"pool", "destroy", pool}), kRefused, {pool, "keeper serves"});
  EXPECT_EQ(listing(), std::set<std::string>{"kv"});
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 0);
}

TEST_F(BadPool, AClientSlotThatIsTakenIsRefused) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  Result<pool::PoolClient> holder = pool->attach({}, 3);
  ASSERT_TRUE(holder) << holder.error().message;
  const std::string pid = std::to_string(getpid());
  for (const char* command : {"get", "lookup", "evict"}) {
    expect_error(run({command, "key", "--pool", path, "--client-slot", "3"}), kRefused,
                 {"slot 3", "pid " + pid});
  }
  expect_error(run({"put", "key", "--pool", path, "--client-slot", "3"}, {.in = "bytes"}), kRefused,
               {"slot 3", "pid " + pid});
  // Any other will do, until there is none.
  EXPECT_EQ(run({"lookup", "key", "--pool", path}).exit_code, kAbsent);
  std::vector<pool::PoolClient> others;
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    Result<pool::PoolClient> other = pool->attach({}, slot);
    ASSERT_TRUE(other);
    others.push_back(*std::move(other));
  }
  expect_error(run({"lookup", "key", "--pool", path}), kRefused, {"all 4 client slots"});
  expect_error(run({"lookup", "key", "--pool", path, "--client-slot", "5"}), kUsage, {"slot 5"});
  // The operators' slot is for a client that asks for it by number.
  EXPECT_EQ(run({"lookup", "key", "--pool", path, "--client-slot", "4"}).exit_code, kAbsent);
  expect_error(run({"lookup", "key", "--pool", path, "--host", "1"}), kUsage, {"host number 1"});
}

// Locks on slots do not reach other machines.
TEST_F(BadPool, AClientSlotOfAnotherHostIsRefused) {
  const std::string pool = create_pool("kv", {"--hosts", "2"});
  Serving keeper({"serve", pool});
  const auto lookup = [&](const std::string& host, const std::string& slot) {
    return run({"lookup", "key", "--pool", pool, "--host", host, "--client-slot", slot});
  };
  expect_error(lookup("1", "0"), kUsage, {"client slot 0", "host 1", "expected 3 to 5"});
  expect_error(lookup("0", "3"), kUsage, {"client slot 3", "host 0"});
  EXPECT_EQ(lookup("0", "0").exit_code, kAbsent);
  EXPECT_EQ(lookup("1", "4").exit_code, kAbsent);
  expect_done(run({"evict", "--all", "--pool", pool, "--host", "1", "--client-slot", "5"}));
}

TEST_F(BadPool, ADamagedBlockIsNotCalledAbsent) {
  const std::string pool = create_pool("kv", {"--domain", "noncoherent"});
  Serving keeper({"serve", pool});
  const std::string block = noise(1200, 3);
  expect_done(run({"put", "key", "--pool", pool}, {.in = block}));
  const std::size_t at = read(pool).find(block);
  ASSERT_NE(at, std::string::npos);
  const os::FileDescriptor file(open(pool.c_str(), O_WRONLY | O_CLOEXEC));
  const char wrong = static_cast<char>(block[700] ^ 1);
  ASSERT_EQ(pwrite(file.get(), &wrong, 1, static_cast<off_t>(at + 700)), 1);
  expect_error(run({"get", "key", "--pool", pool}), kAbsent, {"checksum", "cachalot evict"});
  expect_done(run({"evict", "key", "--pool", pool}));
  expect_error(run({"get", "key", "--pool", pool}), kAbsent, {"not in the pool"});
}

TEST_F(BadPool, APoolWithoutKeeperIsRefusedByEveryUser) {
  const std::string pool = create_pool("kv");
  expect_all_fail(users(pool), kRefused, {"no keeper", "cachalot serve"});
}

TEST_F(BadPool, APoolWhoseKeeperWasKilledIsRefusedUntilAnotherOneServesIt) {
  const std::string pool = create_pool("kv", {"--domain", "noncoherent"});
  const std::string bytes = noise(4000, 3);
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"put", "key", "--pool", pool}, {.in = bytes}));
    keeper.send(SIGKILL);
    EXPECT_EQ(keeper.wait().signal, SIGKILL);
  }
  expect_all_fail(users(pool), kRefused, {"no keeper", "cachalot serve"});
  const Outcome info = run({"pool", "info", pool, "--json", "-"});
  expect_done(info);
  EXPECT_EQ(info.json()["keeper"]["state"], "none");
  Serving successor({"serve", pool});
  ASSERT_TRUE(successor.is_ready());
  const Outcome got = run({"get", "key", "--pool", pool});
  expect_done(got);
  EXPECT_EQ(got.out, bytes);
}

TEST_F(BadPool, WhatCannotBeStoredIsRefused) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  const Arguments put = {"put", "key", "--pool", pool};
  expect_error(run(put, {.in = noise(4097, 1)}), kUsage, {"stdin", "4096"});
  expect_error(run(put, {.in = ""}), kUsage, {"stdin", "empty"});
  expect_error(run({"put", "", "--pool", pool}, {.in = "x"}), kUsage, {"key"});
  expect_error(run({"put", "key", "--pool", pool, "--file", path("missing")}), kUsage,
               {path("missing")});
  expect_error(run({"put", "key", "--pool", pool, "--file", path("")}), kUsage, {path("")});
  expect_error(run({"put", "key", "--pool", pool, "--parent", "stranger"}, {.in = "x"}), kAbsent,
               {"parent", "stranger"});
  expect_error(run({"get", "key", "--pool", pool}), kAbsent, {"not in the pool"});
  expect_error(run({"evict", "key", "--pool", pool}), kAbsent, {"not in the pool"});
  expect_error(run({"evict", "--pool", pool}), kUsage, {"--all"});
  expect_error(run({"evict", "key", "--all", "--pool", pool}), kUsage, {"--all"});
  expect_error(run({"get", "key", "--pool", pool, "--json", "-"}), kUsage, {"--output"});
  EXPECT_EQ(run({"lookup", "key", "--pool", pool}).exit_code, kAbsent);
}

// Small enough to be full, in a mount namespace of its own, where this user may have one.
TEST_F(BadPool, ASparseCopyOnAFullFileSystemIsRefusedAndNoSignal) {
  const bool has_tmpfs = run_in_small_tmpfs(path(""), "12m", [&] {
    const std::string pool = create_pool("kv");
    const std::string content = read(pool);
    EXPECT_EQ(unlink(pool.c_str()), 0);
    {
      os::FileDescriptor copy(::open(pool.c_str(), O_CREAT | O_RDWR, 0600));
      EXPECT_EQ(ftruncate(copy.get(), static_cast<off_t>(content.size())), 0);
      constexpr std::size_t kPage = 4096;
      const std::string zeros(kPage, '\0');
      for (std::size_t at = 0; at < content.size(); at += kPage) {
        if (content.compare(at, kPage, zeros) == 0) continue;
        EXPECT_EQ(pwrite(copy.get(), content.data() + at, kPage, static_cast<off_t>(at)),
                  static_cast<ssize_t>(kPage));
      }
    }
    write("filler", std::string(free_bytes(path("").c_str()), 'x'));
    expect_error(run({"pool", "info", pool}), kRefused, {pool, "sparse", "available"});
    expect_error(run({"serve", pool}), kRefused, {pool, "sparse", "available"});
    expect_error(run({"pool", "fsck", pool}), kRefused, {pool, "sparse", "available"});
    expect_error(run({"pool", "fsck", pool, "--repair"}), kRefused, {pool, "sparse", "available"});
    EXPECT_EQ(unlink(path("filler").c_str()), 0);
    expect_done(run({"pool", "fsck", pool}));
    expect_done(run({"pool", "info", pool}));
    EXPECT_EQ(read(pool), content);
    Serving keeper({"serve", pool});
    EXPECT_TRUE(keeper.is_ready());
  });
  if (!has_tmpfs) GTEST_SKIP() << "this user cannot mount a tmpfs";
}

}  // namespace
}  // namespace cachalot::process_test
