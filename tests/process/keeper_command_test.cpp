// `cachalot serve` and `stop`: how a keeper begins and ends.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

class KeeperCommand : public ProcessTest {
 protected:
  static std::int64_t info_pid(const std::string& pool) {
    return run({"pool", "info", pool, "--json", "-"}).json()["keeper"]["pid"].get<std::int64_t>();
  }
  // Exit code 1, after what the keeper printed while all was well.
  static void expect_fault(const Outcome& outcome, const std::vector<std::string>& parts) {
    EXPECT_EQ(outcome.exit_code, 1);
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    }
  }
};

TEST_F(KeeperCommand, EndsCleanlyOnSignalsAndCanBeginAgain) {
  const std::string pool = create_pool("kv");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Serving keeper({"serve", "--pool", pool});
    ASSERT_TRUE(keeper.is_ready());
    keeper.send(signal);
    const Outcome outcome = keeper.wait();
    expect_done(outcome);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(run({"pool", "info", pool, "--json", "-"}).json()["keeper"]["state"], "none");
  }
  Serving fifth({"serve", pool});
  EXPECT_NE(fifth.ready_line().find("epoch=5"), std::string::npos) << fifth.ready_line();
}

TEST_F(KeeperCommand, SaysWhoServesWhatInOneLine) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  EXPECT_TRUE(keeper.ready_line().starts_with("ready pid=")) << keeper.ready_line();
  EXPECT_NE(keeper.ready_line().find(" pool=" + pool + " epoch=1 blocks=32"), std::string::npos)
      << keeper.ready_line();
  const Outcome stopped = run({"stop", "--pool", pool, "--json", "-"});
  expect_done(stopped);
  EXPECT_EQ(stopped.json()["epoch"], 1);
  expect_done(keeper.wait());
}

TEST_F(KeeperCommand, StopWaitsUntilTheKeeperIsGone) {
  const std::string pool = create_pool("kv");
  for (int i = 0; i < 10; ++i) {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"stop", pool}));
    // So that no process is in the next command's way.
    Serving next({"serve", pool});
    ASSERT_TRUE(next.is_ready()) << next.wait().err;
    expect_done(run({"stop", pool}));
  }
  expect_done(run({"pool", "destroy", pool}));
}

TEST_F(KeeperCommand, CreateMakesThePoolOnceAndThenChecksThatItIsTheSame) {
  const Arguments serve = {"serve", path("kv"),          "--create", "--block-bytes",
                           "4096",  "--capacity-blocks", "32",       "--json",
                           "-"};
  for (int i = 1; i <= 2; ++i) {
    Serving keeper(serve);
    ASSERT_TRUE(keeper.is_ready());
    const nlohmann::json ready = nlohmann::json::parse(keeper.ready_line());
    EXPECT_EQ(ready["epoch"], i);
    EXPECT_EQ(ready["capacity_blocks"], 32);
    expect_done(run({"stop", path("kv")}));
    expect_done(keeper.wait());
  }
  Arguments other = serve;
  other[4] = "8192";
  expect_error(run(other), 2, {path("kv"), "block bytes: 4096", "8192"});
  other = serve;
  other.insert(other.end(), {"--domain", "noncoherent"});
  expect_error(run(other), 2, {path("kv"), ": coherent", "say noncoherent"});
}

TEST_F(KeeperCommand, OneOfManyThatMakeAPoolServesIt) {
  const Arguments serve = {"serve", path("kv"),   "--create", "--block-bytes",
                           "64KiB", "--capacity", "64MiB"};
  std::vector<Running> keepers;
  for (int i = 0; i < 5; ++i) keepers.emplace_back(serve);
  int ready = 0;
  for (Running& keeper : keepers) {
    if (keeper.says("ready")) {
      ++ready;
    } else {
      expect_error(keeper.wait(), 3, {path("kv")});
    }
  }
  EXPECT_EQ(ready, 1);
  expect_done(run({"stop", path("kv")}));
}

TEST_F(KeeperCommand, AFileWithoutHeaderIsNoPoolAndStays) {
  const std::string file = write("kv", std::string(4 << 20, '\0'));
  expect_error(run({"serve", file, "--create", "--block-bytes", "4096", "--capacity-blocks", "8"}),
               2, {file, "no header", "no process is making it"});
  const std::string junk = write("junk", noise(4 << 20, 1));
  expect_error(run({"serve", junk, "--create", "--block-bytes", "4096", "--capacity-blocks", "8"}),
               2, {junk});
}

TEST_F(KeeperCommand, NobodyNeedsToReadWhatAKeeperPrints) {
  const std::string pool = create_pool("kv");
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  os::FileDescriptor to_read(ends[0]), to_write(ends[1]);
  Running keeper({"serve", pool}, {.out = to_write.get()});
  char letter = 0;
  ASSERT_EQ(::read(to_read.get(), &letter, 1), 1);
  to_read.close();
  keeper.send(SIGTERM);
  const Outcome outcome = keeper.wait();
  expect_done(outcome);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(KeeperCommand, ClientsWaitForAPoolAndItsKeeper) {
  const Arguments wait = {"--pool", path("kv"), "--wait", "600"};
  Arguments put = {"put", "key"};
  put.insert(put.end(), wait.begin(), wait.end());
  Running early(put, {.in = "bytes"});
  create_pool("kv");
  Running stop({"stop", path("kv"), "--wait", "600"});
  EXPECT_FALSE(early.has_ended());
  EXPECT_FALSE(stop.has_ended());
  Serving keeper({"serve", path("kv")});
  expect_done(stop.wait());
  expect_done(keeper.wait());
  Serving next({"serve", path("kv")});
  expect_done(early.wait());
  EXPECT_EQ(run({"get", "key", "--pool", path("kv"), "--wait", "1"}).out, "bytes");
}

TEST_F(KeeperCommand, AStandbyTakesOverFromAKeeperThatDied) {
  const std::string pool = create_pool("kv");
  Serving first({"serve", pool});
  expect_done(run({"put", "key", "--pool", pool}, {.in = "bytes"}));
  Running standby({"serve", pool, "--standby"});
  ASSERT_TRUE(standby.says("standby pid="));
  // What the first one serves while another one waits.
  EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "bytes");
  EXPECT_EQ(standby.out().find("ready"), std::string::npos);
  first.send(SIGKILL);
  ASSERT_TRUE(standby.says("ready pid=")) << standby.wait().err;
  EXPECT_NE(standby.out().find(" epoch=2 "), std::string::npos) << standby.out();
  EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "bytes");
  // A third one waits for a pool that is removed.
  Running third({"serve", pool, "--standby"});
  ASSERT_TRUE(third.says("standby"));
  ASSERT_EQ(unlink(pool.c_str()), 0);
  expect_fault(third.wait(), {pool, "removed"});
}

TEST_F(KeeperCommand, AStandbyEndsOnASignal) {
  const std::string pool = create_pool("kv");
  Serving first({"serve", pool});
  Running standby({"serve", pool, "--standby"});
  ASSERT_TRUE(standby.says("standby"));
  standby.send(SIGTERM);
  expect_done(standby.wait());
}

TEST_F(KeeperCommand, EventsTakeNoFileAndNoSocketInUse) {
  const std::string pool = create_pool("kv");
  const std::string precious = write("precious", "precious");
  std::filesystem::create_symlink(pool, path("link"));
  for (const std::string& file : {precious, pool, path("link")}) {
    for (const Arguments& flags :
         {Arguments{"--kv-events", "ipc://" + file},
          Arguments{"--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "ipc://" + file}}) {
      for (const bool is_standby : {false, true}) {
        Arguments all{"serve", "--pool", pool};
        all.insert(all.end(), flags.begin(), flags.end());
        if (is_standby) all.push_back("--standby");
        expect_error(run(all), 2, {flags[flags.size() - 2] + ": " + file, "is a "});
      }
    }
  }
  EXPECT_EQ(read(precious), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));

  const std::string events = "ipc://" + path("events"), other = create_pool("other");
  Serving serving({"serve", "--pool", pool, "--kv-events", events});
  ASSERT_TRUE(serving.is_ready());
  expect_error(run({"serve", "--pool", other, "--kv-events", events}), 3,
               {path("events"), "another process listens there"});
  serving.send(SIGSTOP);
  Serving successor({"serve", "--pool", pool, "--kv-events", events, "--take-over"});
  EXPECT_TRUE(successor.is_ready());
  successor.send(SIGTERM);
  EXPECT_EQ(successor.wait().exit_code, 0);
  serving.send(SIGKILL);
  serving.wait();
  // What is left of a process that has ended is replaced.
  Serving next({"serve", "--pool", other, "--kv-events", events});
  EXPECT_TRUE(next.is_ready());
  next.send(SIGTERM);
  EXPECT_EQ(next.wait().exit_code, 0);
}

TEST_F(KeeperCommand, AKeeperThatStallsIsNamedAndCanBeReplaced) {
  const std::string pool = create_pool("kv");
  Serving stalled({"serve", pool});
  stalled.send(SIGSTOP);
  const std::string pid = std::to_string(info_pid(pool));
  expect_error(run({"stop", pool, "--timeout", "1"}), 3,
               {pool, "pid " + pid, "1000 ms", "--take-over"});
  for (const Arguments& command : {Arguments{"put", "key"}, {"get", "key"}, {"evict", "key"}}) {
    Arguments waiting = command;
    waiting.insert(waiting.end(), {"--pool", pool, "--wait", "1"});
    const Outcome outcome = run(waiting, {.in = "bytes"});
    expect_error(outcome, 3, {pool, "pid " + pid, "--take-over"});
    EXPECT_EQ(outcome.err.find("5000 ms"), std::string::npos) << outcome.err;
  }
  expect_error(run({"serve", pool}), 3, {pool, "keeper already"});
  Serving next({"serve", pool, "--take-over"});
  ASSERT_TRUE(next.is_ready()) << next.wait().err;
  EXPECT_NE(next.ready_line().find("epoch=2"), std::string::npos) << next.ready_line();
  expect_done(run({"put", "key", "--pool", pool}, {.in = "bytes"}));
  stalled.send(SIGCONT);
  expect_fault(stalled.wait(), {pool, "another keeper"});
  EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "bytes");
}

// Attached, and waiting for its bytes at the other end of a pipe.
class PutUnderWay {
 public:
  explicit PutUnderWay(const std::string& pool, const std::string& fifo, const Arguments& more) {
    EXPECT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    Arguments put = {"put", "key", "--pool", pool, "--file", fifo};
    put.insert(put.end(), more.begin(), more.end());
    put_.emplace(put);
    // Can be opened when a reader is at the other end.
    while (!in_ && !put_->has_ended()) {
      in_ = os::FileDescriptor(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      sched_yield();
    }
    EXPECT_TRUE(in_) << put_->wait().err;
  }
  void feed() {
    EXPECT_EQ(::write(in_.get(), "bytes", 5), 5);
    in_.close();
  }
  Outcome wait() { return put_->wait(); }

 private:
  std::optional<Running> put_;
  os::FileDescriptor in_;
};

TEST_F(KeeperCommand, APutWaitsForTheNextKeeperHoweverTheLastOneEnded) {
  const std::string pool = create_pool("kv");
  std::string fifo = path("fifo");
  for (const int signal : {SIGTERM, SIGKILL}) {
    Serving first({"serve", pool});
    ASSERT_TRUE(first.is_ready());
    fifo += "x";
    PutUnderWay put(pool, fifo, {"--wait", "60"});
    first.send(signal);
    (void)first.wait();
    put.feed();
    Serving next({"serve", pool});
    ASSERT_TRUE(next.is_ready());
    expect_done(put.wait());
    EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "bytes");
    expect_done(run({"evict", "--all", "--pool", pool}));
  }
}

TEST_F(KeeperCommand, AKeeperThatWasKilledIsNoKeeper) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  PutUnderWay put(pool, path("fifo"), {});
  keeper.send(SIGKILL);
  (void)keeper.wait();
  put.feed();
  expect_error(put.wait(), 3, {pool, "no keeper"});
}

TEST_F(KeeperCommand, AKeeperWhosePoolWasRemovedEnds) {
  for (const std::string device : {".1", ""}) {
    const std::string pool = create_pool("kv" + device + "x", {"--devices", "2"});
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    ASSERT_EQ(unlink((pool + device).c_str()), 0);
    expect_fault(keeper.wait(), {pool + device, "removed"});
  }
}

TEST_F(KeeperCommand, ASecondOneSaysThatThereIsOneBeforeWhatBothWouldUse) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool, "--metrics", "127.0.0.1:0", "--storage", "file:" + path("st"),
                  "--storage-capacity", "64MiB"});
  ASSERT_TRUE(keeper.is_ready());
  const std::string line = keeper.ready_line();
  const std::string port = line.substr(line.rfind(':') + 1);
  expect_error(run({"serve", pool, "--metrics", "127.0.0.1:" + port, "--storage",
                    "file:" + path("st"), "--storage-capacity", "64MiB"}),
               3, {pool, "has a keeper already: pid"});
}

TEST_F(KeeperCommand, AHostOfAPoolOfOneMachineIsRefusedBeforeThePoolIsMade) {
  for (const Arguments& checks : {Arguments{}, Arguments{"--check-config"}}) {
    Arguments words = {"serve",         "--pool", path("kv"),          "--create",
                       "--block-bytes", "4096",   "--capacity-blocks", "8",
                       "--host",        "1"};
    words.insert(words.end(), checks.begin(), checks.end());
    expect_error(run(words), 2, {"--host", "--hosts"});
    EXPECT_EQ(listing(), std::set<std::string>());
  }
}

TEST_F(KeeperCommand, ACheckOfStorageReadsItsTextAndTouchesNothing) {
  const Arguments serve = {"serve",
                           "--pool",
                           path("kv"),
                           "--create",
                           "--block-bytes",
                           "4096",
                           "--capacity-blocks",
                           "8",
                           "--storage-capacity",
                           "64MiB",
                           "--check-config",
                           "--storage"};
  const auto check = [&](const std::string& storage) {
    Arguments words = serve;
    words.push_back(storage);
    return run(words);
  };
  EXPECT_EQ(check("file:" + path("st")).exit_code, 0);
  expect_error(check("file:"), 2, {"file:", "names no path"});
  expect_error(check("file:" + path("st") + "?sync=yes"), 2, {"sync is \"yes\""});
  expect_error(check("redis://127.0.0.1:1/kv"), 2, {"database's number"});
  EXPECT_EQ(check("redis://127.0.0.1:1").exit_code, 0);  // no server is asked
  EXPECT_EQ(listing(), std::set<std::string>());
}

TEST_F(KeeperCommand, AnErrorOfAFlagIsAnObjectToo) {
  for (const Arguments& wrong :
       {Arguments{"--nope"}, Arguments{"--pool="}, Arguments{"--size"}, Arguments{"--ttl", "x"}}) {
    Arguments words = {"serve", "--log-format", "json"};
    words.insert(words.end(), wrong.begin(), wrong.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_TRUE(outcome.err.starts_with("{\"time\":")) << outcome.err;
    EXPECT_NE(outcome.err.find("see `cachalot serve --help`"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace cachalot::process_test
