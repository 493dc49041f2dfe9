// What a replay leaves behind when something goes wrong: an error that names it, and nothing else.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "pool/pool.h"
#include "replays.h"

namespace cachalot::replay {
namespace {

using memory::DomainKind;

// Processes that this thread started, in the order in which it did.
std::vector<pid_t> children() {
  const std::string task = std::to_string(syscall(SYS_gettid));
  std::ifstream list("/proc/self/task/" + task + "/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  return pids;
}

// Kills the n-th process of a replay as soon as it runs.
class Killer : public ProgressSink {
 public:
  explicit Killer(std::size_t which) : which_(which) {}
  void on_progress(const Progress&) override {
    const std::vector<pid_t> pids = children();
    if (which_ < pids.size()) kill(pids[which_], SIGKILL);
  }

 private:
  std::size_t which_;
};

class Stopper : public ProgressSink {
 public:
  bool should_stop() override { return ++calls_ > 5; }

 private:
  int calls_ = 0;
};

// Takes the replay's pool over as soon as it runs.
class Usurper : public ProgressSink {
 public:
  explicit Usurper(std::string path) : path_(std::move(path)) {}
  void on_progress(const Progress&) override {
    if (keeper_) return;
    Result<pool::Pool> pool = pool::Pool::open({path_});
    ASSERT_TRUE(pool) << pool.error().message;
    pool_.emplace(*std::move(pool));
    Result<pool::PoolKeeper> keeper = pool_->serve({}, pool::Succession::kOverTheLiving);
    ASSERT_TRUE(keeper) << keeper.error().message;
    keeper_.emplace(*std::move(keeper));
  }

 private:
  std::string path_;
  std::optional<pool::Pool> pool_;
  std::optional<pool::PoolKeeper> keeper_;  // goes first
};

class FailingReplay : public testing::Test {
 protected:
  void SetUp() override {
    path_ = "/dev/shm/cachalot_replay_test_" + std::to_string(getpid());
    // At the trace's own pace: it would take an hour.
    options_ = conversation(DomainKind::kNoncoherent, 2, 1000, 4096);
    options_.speed = 1;
    options_.pool_paths = {path_};
    options_.devices = 3;
  }
  void expect_nothing_left() {
    EXPECT_TRUE(children().empty());
    for (const char* end : {"", ".1", ".2"}) EXPECT_FALSE(std::filesystem::exists(path_ + end));
  }

  std::string path_;
  ReplayOptions options_;
};

TEST_F(FailingReplay, NamesTheEngineThatWasKilled) {
  Killer killer(2);
  const Result<ReplayReport> report = replay(options_, killer);
  ASSERT_FALSE(report);
  EXPECT_NE(std::string(report.error().message).find("engine 1 (pid "), std::string::npos)
      << report.error().message;
  EXPECT_NE(std::string(report.error().message).find("signal 9 (KILL)"), std::string::npos);
  expect_nothing_left();
}

TEST_F(FailingReplay, NamesTheKeeperThatWasKilled) {
  Killer killer(0);
  const Result<ReplayReport> report = replay(options_, killer);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kNoKeeper);
  EXPECT_NE(std::string(report.error().message).find("the keeper (pid "), std::string::npos)
      << report.error().message;
  expect_nothing_left();
}

TEST_F(FailingReplay, EndsWhenItIsToldTo) {
  Stopper stopper;
  const Result<ReplayReport> report = replay(options_, stopper);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kTimeout) << report.error().message;
  expect_nothing_left();
}

TEST_F(FailingReplay, LeavesAPoolAloneThatSomebodyElseServesByNow) {
  {
    Usurper usurper(path_);
    const Result<ReplayReport> report = replay(options_, usurper);
    ASSERT_FALSE(report);
    for (const char* end : {"", ".1", ".2"}) EXPECT_TRUE(std::filesystem::exists(path_ + end));
  }
  EXPECT_TRUE(pool::Pool::destroy({path_}));
  expect_nothing_left();
}

TEST_F(FailingReplay, LeavesAPoolAloneThatWasThereBefore) {
  std::ofstream(path_) << "somebody else's";
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options_, sink);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kBusy) << report.error().message;
  EXPECT_EQ(std::filesystem::file_size(path_), 15u);
  std::filesystem::remove(path_);
  expect_nothing_left();
}

TEST_F(FailingReplay, HasNoTraceOrNoSpaceAndSaysWhich) {
  ProgressSink sink;
  options_.trace = "/no/such/trace";
  const Result<ReplayReport> no_trace = replay(options_, sink);
  ASSERT_FALSE(no_trace);
  EXPECT_NE(std::string(no_trace.error().message).find("/no/such/trace"), std::string::npos)
      << no_trace.error().message;
  options_.trace = kConversation;
  options_.block_bytes = std::uint64_t{1} << 30;
  options_.capacity_blocks = 1 << 20;
  const Result<ReplayReport> no_space = replay(options_, sink);
  ASSERT_FALSE(no_space);
  EXPECT_EQ(no_space.error().code, Code::kNoSpace) << no_space.error().message;
  expect_nothing_left();
}

TEST_F(FailingReplay, RemovesThePoolItMadeAfterASuccessToo) {
  options_.speed = 0;
  options_.limit_requests = 50;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options_, sink);
  ASSERT_TRUE(report) << report.error().message;
  expect_nothing_left();
}

}  // namespace
}  // namespace cachalot::replay
