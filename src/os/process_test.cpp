#include "os/process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "os/child.h"
#include "os/futex.h"
#include "os/shared_file.h"
#include "os/topology.h"

namespace cachalot::os {
namespace {

int wait_for_signal() {
  for (;;) pause();
}

TEST(Process, BootIdIsTheSameEveryTimeAndUuidsNever) {
  const auto boot = boot_id();
  ASSERT_TRUE(boot) << boot.error().message;
  EXPECT_EQ(*boot, *boot_id());
  EXPECT_NE(*boot, Uuid{});
  EXPECT_FALSE(*random_uuid() == *random_uuid());
}

TEST(Process, ThisProcessIsAliveUnderItsOwnStartTimeOnly) {
  const auto start = process_start_time(own_pid());
  ASSERT_TRUE(start) << start.error().message;
  EXPECT_GT(*start, 0u);
  EXPECT_TRUE(process_alive(own_pid(), *start));
  EXPECT_FALSE(process_alive(own_pid(), *start + 1));
  EXPECT_TRUE(namespaces());
}

TEST(Process, AChildStartsLaterAndIsGoneWhenItIsAZombieAndAfter) {
  auto child = Child::start(wait_for_signal);
  ASSERT_TRUE(child);
  const auto pid = static_cast<std::uint32_t>(child->pid());
  const auto start = process_start_time(pid);
  ASSERT_TRUE(start);
  EXPECT_GE(*start, *process_start_time(own_pid()));
  EXPECT_TRUE(process_alive(pid, *start));
  child->send(SIGSTOP);
  EXPECT_TRUE(process_alive(pid, *start));
  child->send(SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);  // dead, not reaped
  EXPECT_FALSE(process_alive(pid, *start));
  ASSERT_TRUE(child->wait());
  EXPECT_FALSE(process_alive(pid, *start));
  EXPECT_EQ(process_start_time(pid).error().code, Code::kNotFound);
}

TEST(Process, ANameWithParenthesesAndSpacesDoesNotShiftTheFields) {
  char old_name[16];
  ASSERT_EQ(prctl(PR_GET_NAME, old_name), 0);
  const auto start = process_start_time(own_pid());
  ASSERT_EQ(prctl(PR_SET_NAME, ") Z 1 2) ((3"), 0);
  const auto renamed = process_start_time(own_pid());
  ASSERT_EQ(prctl(PR_SET_NAME, old_name), 0);
  ASSERT_TRUE(renamed) << renamed.error().message;
  EXPECT_EQ(*renamed, *start);
}

TEST(Process, AMainThreadThatLeftDoesNotMakeTheProcessDead) {
  auto child = Child::start([] {
    std::thread(wait_for_signal).detach();
    syscall(SYS_exit, 0);  // of this thread only
    return 0;
  });
  ASSERT_TRUE(child);
  const auto pid = static_cast<std::uint32_t>(child->pid());
  const auto start = process_start_time(pid);
  ASSERT_TRUE(start);
  const std::string status_path = "/proc/" + std::to_string(pid) + "/status";
  std::string status;
  while (status.find("State:\tZ") == std::string::npos) {
    std::ifstream file(status_path);
    status.assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_TRUE(process_alive(pid, *start));
}

TEST(Process, ImpossiblePidsAreNotAlive) {
  for (const std::uint32_t pid : {0u, 0x80000000u, ~0u}) {
    EXPECT_FALSE(process_alive(pid, 1));
    EXPECT_EQ(process_start_time(pid).error().code, Code::kNotFound);
  }
}

TEST(Futex, SaysWhyAWaitEnded) {
  std::atomic<std::uint32_t> word{1};
  EXPECT_EQ(futex_wait(word, 2, kNoTimeout), WaitEnd::kChanged);
  EXPECT_EQ(futex_wait(word, 1, 1'000'000), WaitEnd::kTimedOut);
  EXPECT_EQ(futex_wake(word), 0u);
}

TEST(Futex, WakesAnotherProcessThroughAnotherMapping) {
  const auto file = SharedFile::create("memfd:futex", 4096);
  ASSERT_TRUE(file);
  const auto mapping = file->map();
  ASSERT_TRUE(mapping);
  auto* words = new (mapping->data()) std::atomic<std::uint32_t>[2] {};
  auto child = Child::start([&] {
    const auto own = file->map();
    if (!own) return 3;
    auto* mine = reinterpret_cast<std::atomic<std::uint32_t>*>(own->data());
    mine[1].store(1);  // pairs with the load below: about to sleep
    while (mine[0].load() == 0) {
      if (futex_wait(mine[0], 0, 20'000'000'000u) == WaitEnd::kTimedOut) return 1;
    }
    return 0;
  });
  ASSERT_TRUE(child);
  while (words[1].load() == 0) cpu_relax();
  // Woken before the word changes, so that only a sleeper that a wake reached is counted.
  while (futex_wake(words[0]) == 0) usleep(100);
  words[0].store(1);
  futex_wake(words[0]);
  EXPECT_EQ(child->wait()->text(), "exit code 0");
}

TEST(Topology, PinsToEveryCoreItNames) {
  const std::vector<int> cores = online_cores();
  ASSERT_FALSE(cores.empty());
  std::thread([&] {
    for (const int core : cores) {
      ASSERT_TRUE(pin_to_core(core));
      EXPECT_EQ(sched_getcpu(), core);
      EXPECT_EQ(online_cores(), std::vector<int>{core});
    }
    ASSERT_TRUE(run_on(cores));
    EXPECT_EQ(online_cores(), cores);
    EXPECT_EQ(run_on({}).error().code, Code::kInvalidArgument);
    EXPECT_EQ(online_cores(), cores);
  }).join();
  EXPECT_EQ(online_cores(), cores);
  for (const int core : {-1, 8191, 8192}) {
    EXPECT_EQ(pin_to_core(core).error().code, Code::kInvalidArgument) << core;
  }
}

}  // namespace
}  // namespace cachalot::os
