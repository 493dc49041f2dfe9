#include "testing/memory/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace cachalot::memory {
namespace {

std::string interleaving(std::uint64_t seed) {
  Scheduler scheduler(seed);
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    scheduler.add(std::string(1, name), [&scheduler, &order, name] {
      for (int i = 0; i < 100; ++i) {
        order += name;
        scheduler.yield();
      }
    });
  }
  EXPECT_EQ(scheduler.run(10'000).ending, Ending::kAllDone);
  return order;
}

TEST(Scheduler, RunsTheSameOrderForTheSameSeed) {
  EXPECT_EQ(interleaving(7), interleaving(7));
  EXPECT_NE(interleaving(7), interleaving(8));
  const std::string order = interleaving(7);
  EXPECT_EQ(std::count(order.begin(), order.end(), 'b'), 100);
  EXPECT_LT(order.find('c'), order.rfind('a'));
}

TEST(Scheduler, EndsATurnAtSomeStep) {
  Scheduler scheduler(1);
  bool other_ran = false;
  scheduler.add("waits", [&] {
    while (!other_ran) scheduler.step();
  });
  scheduler.add("other", [&] { other_ran = true; });
  EXPECT_EQ(scheduler.run(100'000).ending, Ending::kAllDone);
}

TEST(Scheduler, StopsAtItsBudgetAndGoesOnLater) {
  Scheduler scheduler(3);
  bool open = false;
  scheduler.add("waits", [&] {
    while (!open) scheduler.step();
  });
  const Outcome first = scheduler.run(1'000);
  EXPECT_EQ(first.ending, Ending::kBudgetSpent);
  EXPECT_EQ(first.steps, 1'000u);
  EXPECT_EQ(scheduler.unfinished(), "waits");
  EXPECT_FALSE(scheduler.stopping());
  open = true;
  EXPECT_EQ(scheduler.run(1'000).ending, Ending::kAllDone);
  EXPECT_EQ(scheduler.unfinished(), "");
}

TEST(Scheduler, AsksDaemonsToStopOnceAllWorkersAreDone) {
  Scheduler scheduler(4);
  std::uint64_t rounds = 0;
  bool worked = false;
  scheduler.add(
      "daemon",
      [&] {
        while (!scheduler.stopping()) {
          ++rounds;
          scheduler.yield();
        }
        EXPECT_TRUE(worked);
      },
      Scheduler::Role::kDaemon);
  scheduler.add("worker", [&] {
    for (int i = 0; i < 50; ++i) scheduler.yield();
    worked = true;
  });
  EXPECT_EQ(scheduler.run(100'000).ending, Ending::kAllDone);
  EXPECT_GT(rounds, 0u);
}

TEST(Scheduler, LetsWaitingByTheClockEnd) {
  Scheduler scheduler(5);
  scheduler.add("sleeper", [&] {
    const std::uint64_t deadline_ns = scheduler.now_ns() + 1'000'000;
    while (scheduler.now_ns() < deadline_ns) {
    }
  });
  EXPECT_EQ(scheduler.run(20'000).ending, Ending::kAllDone);
  EXPECT_GE(scheduler.steps(), 1'000'000 / Scheduler::kStepNs);
}

TEST(Scheduler, NeverRunsAnAbandonedFiberAgain) {
  Scheduler scheduler(6);
  std::uint64_t rounds = 0, rounds_then = 0;
  const std::size_t victim = scheduler.add("victim", [&] {
    const std::string on_the_heap(1000, 'x');
    while (on_the_heap[0] == 'x') {
      ++rounds;
      scheduler.yield();
    }
  });
  scheduler.add("killer", [&] {
    while (rounds < 10) scheduler.yield();
    scheduler.abandon(victim);
    rounds_then = rounds;
    for (int i = 0; i < 1000; ++i) scheduler.yield();
  });
  EXPECT_EQ(scheduler.run(100'000).ending, Ending::kAllDone);
  EXPECT_EQ(rounds, rounds_then);
}

TEST(Scheduler, LetsAFiberAddFibers) {
  Scheduler scheduler(7);
  int done = 0;
  scheduler.add("parent", [&] {
    for (int i = 0; i < 20; ++i) scheduler.add("child", [&] { ++done; });
  });
  EXPECT_EQ(scheduler.run(10'000).ending, Ending::kAllDone);
  EXPECT_EQ(done, 20);
}

TEST(Fiber, KeepsFloatingPointAndExceptionsApart) {
  Scheduler scheduler(8);
  double sums[2] = {};
  int caught = 0;
  for (double& sum : sums) {
    scheduler.add("sums", [&] {
      double value = 0;
      for (int i = 1; i <= 1000; ++i) {
        value += 1.0 / i;
        scheduler.yield();
        try {
          if (i % 100 == 0) throw i;
        } catch (int) {
          ++caught;
        }
      }
      sum = value;
    });
  }
  EXPECT_EQ(scheduler.run(100'000).ending, Ending::kAllDone);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_NEAR(sums[0], 7.485, 0.001);
  EXPECT_EQ(caught, 20);
}

[[gnu::noinline]] int recurse(int depth) {
  volatile char frame[4096];
  frame[depth % 4096] = 1;
  return depth < 0 ? 0 : recurse(depth + 1) + frame[(depth + 1) % 4096];
}

TEST(FiberDeathTest, StopsAtTheGuardPageBelowItsStack) {
  EXPECT_DEATH(
      {
        Scheduler scheduler(9);
        scheduler.add("deep", [] { recurse(0); });
        scheduler.run(1'000);
      },
      "");
}

}  // namespace
}  // namespace cachalot::memory
