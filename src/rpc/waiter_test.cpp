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
using Words = std::initializer_list<DoorbellWords*>;
template <class Work>
bool ends(Words words, Work&& work) {
  auto running = std::async(std::launch::async, std::forward<Work>(work));
  if (running.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return true;
  while (running.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    for (DoorbellWords* one : words) {
      one->state.store(0);
      os::futex_wake(one->state);
    }
  }
  return false;
}

class Waiting : public testing::Test {
 protected:
  HostWaiter waiter(std::uint64_t nap_ns, std::uint64_t spin_ns = 0) {
    return {Doorbell(&words_), {.spin_ns = spin_ns, .nap_ns = nap_ns}};
  }
  // Waits until the waiter has said that it will sleep, as a caller does whose polls find nothing.
  std::uint32_t announce(HostWaiter& own) {
    std::uint32_t round = 0;
    while (words_.state.load() == 0 && round < 10 * kRounds) own.wait(round++);
    return round;
  }

  DoorbellWords words_;
};

TEST_F(Waiting, AnnouncesAndLetsTheCallerPollOnceMoreBeforeItSleeps) {
  HostWaiter own = waiter(kForever);
  std::uint32_t round = 0;
  EXPECT_TRUE(ends({&words_}, [&] { round = announce(own); }));
  EXPECT_EQ(words_.state.load(), 1u);
  EXPECT_EQ(round, kRounds);
}

TEST_F(Waiting, ARingBetweenTheAnnouncementAndTheSleepPreventsTheSleep) {
  HostWaiter own = waiter(kForever);
  const std::uint32_t round = announce(own);
  Doorbell(&words_).ring();
  EXPECT_EQ(words_.state.load(), 0u);
  EXPECT_TRUE(ends({&words_}, [&] { own.wait(round); }));
}

TEST_F(Waiting, AMissedRingCostsOneNapAndNoMore) {
  HostWaiter own = waiter(1'000);
  for (int naps = 0; naps < 20; ++naps) {
    const std::uint32_t round = announce(own);
    ASSERT_EQ(words_.state.load(), 1u);
    ASSERT_TRUE(ends({&words_}, [&] { own.wait(round); }));
    ASSERT_EQ(words_.state.load(), 0u) << "awake, and still announced as asleep";
  }
}

TEST_F(Waiting, FirstSpins) {
  HostWaiter own = waiter(kForever, kForever);
  for (std::uint32_t round = 0; round < 1000 * kRounds; ++round) own.wait(round);
  EXPECT_EQ(words_.state.load(), 0u);
}

TEST_F(Waiting, WhoFoundSomethingTakesItsAnnouncementBack) {
  HostWaiter own = waiter(kForever);
  announce(own);
  own.wait(0);
  EXPECT_EQ(words_.state.load(), 0u);
  EXPECT_EQ(announce(own), kRounds) << "spins anew";
}

TEST_F(Waiting, WithoutADoorbellItNaps) {
  HostWaiter own(Doorbell(), {.spin_ns = 0, .nap_ns = 1'000});
  for (std::uint32_t round = 0; round < 10 * kRounds; ++round) own.wait(round);
  Doorbell().ring();
  Doorbell().ring_if_asleep();
}

// A waiter that would spin for ever, on core `own_core_`, beside a peer on core `peer_core_`.
class WaitingBesideAPeer : public Waiting {
 protected:
  static constexpr int kCore = 3, kOtherCore = 4;

  HostWaiter waiter() {
    HostWaiter::Options options;
    options.spin_ns = options.nap_ns = kForever;
    options.peer_ran_on = [this](int core) {
      ++questions_;
      return core == peer_core_;
    };
    options.own_core = [this] { return own_core_; };
    return {Doorbell(&words_), std::move(options)};
  }
  bool is_announced() const { return words_.state.load() != 0; }

  int own_core_ = kCore, peer_core_ = kCore, questions_ = 0;
};

TEST_F(WaitingBesideAPeer, OnTheSameCoreItSleepsAfterOneMorePoll) {
  HostWaiter own = waiter();
  own.wait(0);
  ASSERT_TRUE(is_announced());
  std::thread peer([&] { Doorbell(&words_).ring(); });
  EXPECT_TRUE(ends({&words_}, [&] { own.wait(1); }));
  peer.join();
  EXPECT_FALSE(is_announced());
}

TEST_F(WaitingBesideAPeer, OnAnotherCoreItSpins) {
  peer_core_ = kOtherCore;
  HostWaiter own = waiter();
  for (std::uint32_t round = 0; round < 100 * kRounds; ++round) own.wait(round);
  EXPECT_FALSE(is_announced());
}

TEST_F(WaitingBesideAPeer, MovedToThePeersCoreItSleepsSoon) {
  own_core_ = kOtherCore;
  HostWaiter own = waiter();
  std::uint32_t round = 0;
  for (; round < 100 * kRounds; ++round) own.wait(round);
  EXPECT_FALSE(is_announced());
  own_core_ = kCore;
  for (; round < 101 * kRounds; ++round) own.wait(round);
  EXPECT_TRUE(is_announced());
}

TEST_F(WaitingBesideAPeer, TellsWhereItRuns) {
  HostWaiter own = waiter();
  const Doorbell seen(&words_);
  EXPECT_FALSE(seen.owner_ran_on(kCore)) << "nothing is known yet";
  own.tell_core();
  EXPECT_TRUE(seen.owner_ran_on(kCore));
  own_core_ = kOtherCore;
  own.wait(0);
  EXPECT_TRUE(seen.owner_ran_on(kOtherCore));
  EXPECT_FALSE(seen.owner_ran_on(kCore));
}

TEST_F(WaitingBesideAPeer, ACoreThatTheKernelDoesNotTellIsNotCompared) {
  HostWaiter own = waiter();
  own_core_ = -1;
  own.tell_core();
  for (const int core : {-1, 0, kCore}) EXPECT_FALSE(Doorbell(&words_).owner_ran_on(core)) << core;
}

// Its sleep would last a whole nap each time.
TEST_F(WaitingBesideAPeer, WithoutADoorbellItSleepsEarlyOnceAndNoMore) {
  HostWaiter::Options options;
  options.spin_ns = kForever;
  options.nap_ns = 1'000;
  options.peer_ran_on = [this](int) { return ++questions_ > 0; };
  HostWaiter own(Doorbell(), std::move(options));
  for (std::uint32_t round = 0; round < 10 * kRounds; ++round) own.wait(round);
  own.wait(0);
  EXPECT_EQ(questions_, 1);
}

// The two sides of the fences: whatever the interleaving, a ring after the work wakes the sleeper,
// which sleeps for ever otherwise.
TEST_F(Waiting, WhoRingsAfterWritingAlwaysWakesTheSleeper) {
  constexpr std::uint64_t kHandOvers = 3'000;
  std::atomic<std::uint64_t> ball{0}, back{0};
  DoorbellWords other;
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
  EXPECT_TRUE(ends({&words_, &other}, [&] { play(back, ball, server, Doorbell(&words_), true); }));
  echo.join();
}

}  // namespace
}  // namespace cachalot::rpc
