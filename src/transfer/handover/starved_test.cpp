// Hand-overs on a processor that other programs use: each step waits for its turn, and for nothing else.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "testing/transfer/live_instance.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

// All threads that this one begins, and the programs beside them, share one processor.
class Shared {
 public:
  explicit Shared(int programs) {
    sched_getaffinity(0, sizeof before_, &before_);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
    const pid_t parent = getpid();
    for (int i = 0; i < programs; ++i) {
      const pid_t child = fork();
      if (child > 0) children_.push_back(child);
      if (child != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (getppid() == parent) {
        for (volatile int spin = 0; spin < 1'000'000;) spin = spin + 1;
      }
      _exit(0);
    }
  }
  ~Shared() {
    for (const pid_t child : children_) kill(child, SIGKILL);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
    sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_ = {};
  std::vector<pid_t> children_;
};

long switches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

class Starved : public ::testing::TestWithParam<const char*> {};

TEST_P(Starved, AHandoverWaitsForFewTurns) {
  const Shared processor(12);
  base::Rng rng(7);
  const std::uint64_t tokens = 50;
  const KvGeometry model = small_model(Attention::kLatent);
  LiveInstance prefill("p", model, 1, 1, tokens, rng, GetParam());
  // Of two ranks that hold the same bytes one fetches, and the other one copies.
  LiveInstance decode("d", model, 2, 1, tokens, rng, GetParam(), "test", "", {0, 0});
  for (TransferRank& rank : decode.ranks) {
    ASSERT_TRUE(
        rank.set_instance_addresses({decode.ranks[0].addresses(), decode.ranks[1].addresses()})
            .ok());
  }
  prefill.memory.fill(0, tokens);
  std::vector<std::uint64_t> times;
  long turns = 0;
  for (int i = 0; i < 8; ++i) {
    const OfferId id = *random_offer_id();
    const std::uint64_t begin_ns = base::SteadyClock::read();
    const long before = switches();
    ASSERT_TRUE(prefill.ranks[0]
                    .offer({.id = id,
                            .pages = prefill.pages(0, tokens),
                            .tokens = tokens,
                            .deadline_ns = kLong})
                    .ok());
    std::vector<AskId> asks;
    for (std::size_t r = 0; r < 2; ++r) {
      asks.push_back(*decode.ranks[r].ask(
          prefill.reference(id, tokens), {.pages = decode.pages(r, tokens), .deadline_ns = kLong}));
    }
    for (std::size_t r = 0; r < 2; ++r) {
      const AskStatus status = *decode.ranks[r].wait(asks[r]);
      ASSERT_EQ(status.state, HandoverState::kDone) << status.error.message;
      decode.ranks[r].release(asks[r]);
    }
    times.push_back((base::SteadyClock::read() - begin_ns) / 1'000'000);
    turns = switches() - before;
  }
  std::printf("the first %llu ms, later %llu to %llu ms; the last one waited %ld times\n",
              static_cast<unsigned long long>(times.front()),
              static_cast<unsigned long long>(*std::min_element(times.begin() + 1, times.end())),
              static_cast<unsigned long long>(*std::max_element(times.begin() + 1, times.end())),
              turns);
  // Asks, plans, windows and bytes for both ranks are some twenty messages. A thread that polls waits hundreds of times.
  EXPECT_LE(turns, 100);
}

INSTANTIATE_TEST_SUITE_P(Handover, Starved, ::testing::Values("auto", "tcp:127.0.0.1:0"),
                         [](const auto& named) {
                           return named.param[0] == 'a' ? "Memory" : "Tcp";
                         });

}  // namespace
}  // namespace cachalot
