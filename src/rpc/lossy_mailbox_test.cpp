// A server and two channels on simulated hosts without coherence, in all moods.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/memory/lossy_memory.h"
#include "testing/rpc/test_mailboxes.h"

namespace cachalot::rpc {
namespace {

using memory::LossyHost;
using memory::Mood;
using memory::Rule;
using memory::Scheduler;

constexpr std::uint32_t kClients = 2;
constexpr std::uint64_t kRequests = 1'200;       // of each client; about 3 lines each way
constexpr std::uint64_t kLook = 50'000;          // steps between two looks for faults
constexpr std::uint64_t kHangSteps = 4'000'000;  // many times what a run takes

class YieldWaiter final : public Waiter {
 public:
  explicit YieldWaiter(Scheduler& scheduler) : scheduler_(scheduler) {}
  void wait(std::uint32_t) override { scheduler_.yield(); }

 private:
  Scheduler& scheduler_;
};

struct Outcome {
  std::string fault;
  std::uint64_t lines = 0;  // through the shortest request ring
  std::uint64_t fingerprint = 0;
};

class World {
 public:
  World(std::uint64_t seed, Mood mood, Rule broken)
      : seed_(seed),
        scheduler_(seed, memory::adversary(mood).pace),
        memory_(scheduler_, {.bytes_each = kClients * kTestMailboxLines * memory::kLineBytes,
                             .adversary = memory::adversary(mood)}),
        waiter_(scheduler_) {
    for (std::uint32_t i = 0; i < 1 + kClients; ++i) {
      LossyHost& host = memory_.add_host();
#ifdef CACHALOT_RULE_SWITCHES
      host.break_rule(broken);
#else
      EXPECT_EQ(broken, Rule::kNone);
#endif
      regions_.push_back(test_region(host, host.view().bases[0]));
    }
  }

  Outcome run() {
    TestServer server(regions_[0], kClients);
    for (std::uint32_t i = 0; i < kClients; ++i) server.open(place(i));
    scheduler_.add(
        "server",
        [&] {
          while (!scheduler_.stopping() && server.fault().empty()) {
            if (server.poll() == 0) scheduler_.yield();
          }
        },
        Scheduler::Role::kDaemon);
    std::vector<std::unique_ptr<TestClient>> clients;
    for (std::uint32_t i = 0; i < kClients; ++i) {
      clients.push_back(
          std::make_unique<TestClient>(regions_[1 + i], place(i), waiter_, scheduler_));
      scheduler_.add("client", [this, i, &clients] { use(*clients[i], i); });
    }
    Outcome outcome;
    outcome.lines = ~0ull;
    for (std::uint64_t steps = 0; steps < kHangSteps && outcome.fault.empty(); steps += kLook) {
      const bool is_done = scheduler_.run(kLook).ending == memory::Ending::kAllDone;
      outcome.fault = server.fault();
      for (std::uint32_t i = 0; i < kClients; ++i) {
        if (outcome.fault.empty()) outcome.fault = clients[i]->fault();
      }
      if (is_done) break;
    }
    for (std::uint32_t i = 0; i < kClients; ++i) {
      outcome.lines = std::min(outcome.lines, lines_[i]);
    }
    if (outcome.fault.empty() && !scheduler_.unfinished().empty()) {
      outcome.fault = "hangs: " + scheduler_.unfinished();
    }
    for (std::uint32_t i = 0; outcome.fault.empty() && i < kClients; ++i) {
      if (server.taken(i) != kRequests || clients[i]->answered() != kRequests) {
        outcome.fault = "requests or answers are missing";
      }
    }
    outcome.fingerprint = memory_.fingerprint();
    return outcome;
  }

 private:
  static TestPlace place(std::uint32_t client) {
    return {client, client + 40, kMostRingLines, true};
  }

  // Random requests with as many in flight as the credit allows, or few.
  void use(TestClient& client, std::uint32_t number) {
    base::Rng rng(seed_ * 10 + number);
    while (client.sent() < kRequests && client.fault().empty()) {
      const Ask ask = random_ask(rng);
      if (rng.chance(0.05)) {
        const auto left = static_cast<std::uint32_t>(rng.below(4));
        if (!client.wait(left, ~0ull)) return;
      }
      while (!client.can_send(ask) && client.fault().empty()) {
        if (client.poll() == 0) scheduler_.yield();
      }
      if (!client.fault().empty()) return;
      rng.chance(0.2) ? client.send(ask) : client.stage(ask);
      lines_[number] += ask.lines;
    }
    while (client.channel().outstanding() != 0 && client.fault().empty()) {
      if (client.poll() == 0) scheduler_.yield();
    }
  }

  std::uint64_t seed_;
  Scheduler scheduler_;
  memory::LossyMemory memory_;
  YieldWaiter waiter_;
  std::vector<memory::SealedRegion> regions_;
  std::uint64_t lines_[kClients] = {};
};

Outcome run(std::uint64_t seed, Mood mood, Rule broken = Rule::kNone) {
  return World(seed, mood, broken).run();
}

class LossyMailbox : public testing::TestWithParam<Mood> {};

TEST_P(LossyMailbox, HandsOverEveryRequestAndAnswerThroughManyLaps) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Outcome outcome = run(seed, GetParam());
    EXPECT_EQ(outcome.fault, "");
    EXPECT_GE(outcome.lines, 8 * kMostRingLines);
  }
}

TEST_P(LossyMailbox, RunsTheSameForTheSameSeed) {
  EXPECT_EQ(run(1, GetParam()).fingerprint, run(1, GetParam()).fingerprint);
}

#ifdef CACHALOT_RULE_SWITCHES
// In how many of three seeds something is wrong.
int noticed(Mood mood, Rule rule) {
  int faults = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    faults += run(seed, mood, rule).fault.empty() ? 0 : 1;
  return faults;
}

// A stale line is never taken for a new one: a reader that does not invalidate waits, for ever where
// lines seldom leave the cache by themselves.
TEST(LossyMailboxInCalm, HangsWhereReadsDoNotInvalidate) {
  EXPECT_EQ(noticed(Mood::kCalm, Rule::kR3FlushBeforeRead), 3);
}

TEST_P(LossyMailbox, TornLinesAreNoticedWhereLinesAreNotChecked) {
  EXPECT_EQ(noticed(GetParam(), Rule::kR5CheckLines), 3);
}
#endif

std::string name_of(const testing::TestParamInfo<Mood>& mood) {
  constexpr const char* kMoodNames[] = {"calm", "normal", "nasty"};
  return kMoodNames[static_cast<int>(mood.param)];
}
INSTANTIATE_TEST_SUITE_P(Moods, LossyMailbox,
                         testing::Values(Mood::kCalm, Mood::kNormal, Mood::kNasty), name_of);

}  // namespace
}  // namespace cachalot::rpc
