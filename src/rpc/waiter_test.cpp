#include "rpc/waiter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <initializer_list>
#include <thread>

#include "os/futex.h"

namespace cachalot::rpc {
namespace {

constexpr std::uint64_t kForever = 3'600'000'000'000u;
constexpr std::uint32_t kRounds = 16;  // between two looks at the clock

// Runs `work`; false if it hangs, and then rings until it does not. No test here lasts seconds.
using Words = std::initializer_list<std::atomic<std::uint32_t>*>;
template <class Work>
bool ends(Words words, Work&& work) {
  auto running = std::async(std::launch::async, std::forward<Work>(work));
  if (running.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return true;
  while (running.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    for (std::atomic<std::uint32_t>* word : words) {
      word->store(0);
      os::futex_wake(*word);
    }
  }
  return false;
}

class Waiting : public testing::Test {
 protected:
  HostWaiter waiter(std::uint64_t nap_ns, std::uint64_t spin_ns = 0) {
    return {Doorbell(&word_), {.spin_ns = spin_ns, .nap_ns = nap_ns}};
  }
  // Waits until the waiter has said that it will sleep, as a caller does whose polls find nothing.
  std::uint32_t announce(HostWaiter& own) {
    std::uint32_t round = 0;
    while (word_.load() == 0 && round < 10 * kRounds) own.wait(round++);
    return round;
  }

  std::atomic<std::uint32_t> word_{0};
};

TEST_F(Waiting, AnnouncesAndLetsTheCallerPollOnceMoreBeforeItSleeps) {
  HostWaiter own = waiter(kForever);
  std::uint32_t round = 0;
  EXPECT_TRUE(ends({&word_}, [&] { round = announce(own); }));
  EXPECT_EQ(word_.load(), 1u);
  EXPECT_EQ(round, kRounds);
}

TEST_F(Waiting, ARingBetweenTheAnnouncementAndTheSleepPreventsTheSleep) {
  HostWaiter own = waiter(kForever);
  const std::uint32_t round = announce(own);
  Doorbell(&word_).ring();
  EXPECT_EQ(word_.load(), 0u);
  EXPECT_TRUE(ends({&word_}, [&] { own.wait(round); }));
}

TEST_F(Waiting, AMissedRingCostsOneNapAndNoMore) {
  HostWaiter own = waiter(1'000);
  for (int naps = 0; naps < 20; ++naps) {
    const std::uint32_t round = announce(own);
    ASSERT_EQ(word_.load(), 1u);
    ASSERT_TRUE(ends({&word_}, [&] { own.wait(round); }));
    ASSERT_EQ(word_.load(), 0u) << "awake, and still announced as asleep";
  }
}

TEST_F(Waiting, FirstSpins) {
  HostWaiter own = waiter(kForever, kForever);
  for (std::uint32_t round = 0; round < 1000 * kRounds; ++round) own.wait(round);
  EXPECT_EQ(word_.load(), 0u);
}

TEST_F(Waiting, WhoFoundSomethingTakesItsAnnouncementBack) {
  HostWaiter own = waiter(kForever);
  announce(own);
  own.wait(0);
  EXPECT_EQ(word_.load(), 0u);
  EXPECT_EQ(announce(own), kRounds) << "spins anew";
}

TEST_F(Waiting, WithoutADoorbellItNaps) {
  HostWaiter own(Doorbell(), {.spin_ns = 0, .nap_ns = 1'000});
  for (std::uint32_t round = 0; round < 10 * kRounds; ++round) own.wait(round);
  Doorbell().ring();
  Doorbell().ring_if_asleep();
}

// The two sides of the fences: whatever the interleaving, a ring after the work wakes the sleeper,
// which sleeps for ever otherwise.
TEST_F(Waiting, WhoRingsAfterWritingAlwaysWakesTheSleeper) {
  constexpr std::uint64_t kHandOvers = 3'000;
  std::atomic<std::uint64_t> ball{0}, back{0};
  std::atomic<std::uint32_t> other{0};
  const auto play = [](std::atomic<std::uint64_t>& mine, std::atomic<std::uint64_t>& theirs,
                       HostWaiter own, Doorbell doorbell, bool serves) {
    for (std::uint64_t n = 1; n <= kHandOvers; ++n) {
      if (serves) {
        theirs.store(n, std::memory_order_relaxed);
        doorbell.ring();
      }
      for (std::uint32_t round = 0; mine.load(std::memory_order_relaxed) < n; ++round) {
        own.wait(round);
      }
      if (!serves) {
        theirs.store(n, std::memory_order_relaxed);
        doorbell.ring();
      }
    }
  };
  std::thread echo(play, std::ref(ball), std::ref(back), waiter(kForever), Doorbell(&other), false);
  HostWaiter server(Doorbell(&other), {.spin_ns = 0, .nap_ns = kForever});
  EXPECT_TRUE(ends({&word_, &other}, [&] { play(back, ball, server, Doorbell(&word_), true); }));
  echo.join();
}

}  // namespace
}  // namespace cachalot::rpc
