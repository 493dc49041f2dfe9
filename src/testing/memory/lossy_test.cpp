// Small protocols of the kind the pool uses, on simulated hosts: right ones survive every mood and
// seed, and each rule of the pool protocol that is broken gets noticed.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "testing/memory/lossy_memory.h"

namespace cachalot::memory {
namespace {

constexpr Mood kMoods[] = {Mood::kCalm, Mood::kNormal, Mood::kNasty};
constexpr const char* kMoodNames[] = {"calm", "normal", "nasty"};
constexpr int kSeeds = 20;
constexpr std::size_t kPayloadBytes = 256;
// Steps that count as a hang, a round: many times what the slowest mood needs on average.
constexpr std::uint64_t kRingSteps = 4'000, kReadSteps = 8'000, kTellSteps = 16'000;
// Sanitizers and -O0 make a run slower by these factors, not other.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSlowness = 25;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSlowness = 4;
#elif !defined(__OPTIMIZE__)
constexpr std::uint64_t kSlowness = 4;
#else
constexpr std::uint64_t kSlowness = 1;
#endif
using Payload = std::vector<std::uint64_t>;

struct Verdict {
  bool corrupt = false;
  bool hung = false;
  std::uint64_t fingerprint = 0;
  std::uint64_t accesses = 0;
  std::uint64_t steps = 0;
  bool good() const { return !corrupt && !hung; }
};

Payload payload_of(std::uint64_t number) {
  Payload payload(kPayloadBytes / 8);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = base::mix64(number * 1000 + i);
  return payload;
}

// Two hosts that share a device and break one rule, or none.
class World {
 public:
  World(std::uint64_t seed, Mood mood, Rule rule)
      : scheduler(seed, adversary(mood).pace),
        memory(scheduler, {.bytes_each = 64 << 10, .adversary = adversary(mood)}),
        a(memory.add_host()),
        b(memory.add_host()) {
#ifdef CACHALOT_RULE_SWITCHES
    a.break_rule(rule);
    b.break_rule(rule);
#else
    EXPECT_EQ(rule, Rule::kNone);
#endif
  }

  std::byte* at(const LossyHost& host, std::size_t line) const {
    return host.view().bases[0] + line * kLineBytes;
  }

  void publish(LossyHost& host, std::size_t number, std::uint64_t value) {
    Line line = {};
    line.words[0] = value;
    line.words[3] = base::mix64(value);
    seal_.seal(line, number);
    host.write_line(at(host, number), line);
  }

  // Rule R5: what checks, twice the same. Zero where there is nothing of the kind.
  Line confirmed(LossyHost& host, std::size_t number) {
    const Line first = host.read_line(at(host, number));
    if (!seal_.checks(first, number)) return {};
    return host.read_line(at(host, number)) == first ? first : Line{};
  }

  void write_payload(LossyHost& host, std::size_t line, std::uint64_t number) {
    host.write_bulk(at(host, line), payload_of(number).data(), kPayloadBytes, nullptr);
  }
  bool has_payload(LossyHost& host, std::size_t line, std::uint64_t number) {
    Payload payload(kPayloadBytes / 8);
    host.read_bulk(payload.data(), at(host, line), kPayloadBytes, nullptr);
    return payload == payload_of(number);
  }

  Verdict run(std::uint64_t step_budget) {
    const Outcome outcome = scheduler.run(step_budget);
    verdict.hung = outcome.ending == Ending::kBudgetSpent;
    verdict.fingerprint = memory.fingerprint();
    verdict.accesses = memory.counts().accesses();
    verdict.steps = outcome.steps;
    return verdict;
  }

  Scheduler scheduler;
  LossyMemory memory;
  LossyHost& a;
  LossyHost& b;
  Verdict verdict;

 private:
  LineSeal seal_{1, 2};
};

// A ring of payloads, each named by a flag line; the consumer counts in a line of its own.
Verdict ring(std::uint64_t seed, Mood mood, Rule rule, std::uint64_t messages) {
  constexpr std::uint64_t kSlots = 8;
  constexpr std::size_t kConsumed = 40, kPayloads = 64;
  World world(seed, mood, rule);
  bool& corrupt = world.verdict.corrupt;
  const auto payload_line = [](std::uint64_t n) { return kPayloads + n % kSlots * 4; };
  world.scheduler.add("producer", [&] {
    std::uint64_t consumed = 0;
    for (std::uint64_t n = 1; n <= messages && !corrupt; ++n) {
      while (n > consumed + kSlots && !corrupt) {
        const std::uint64_t seen = world.confirmed(world.a, kConsumed).words[0];
        if (seen >= n) corrupt = true;
        if (seen > consumed) consumed = seen;
      }
      world.write_payload(world.a, payload_line(n), n);
      world.a.order();
      world.publish(world.a, n % kSlots, n);
    }
    world.a.complete();
  });
  world.scheduler.add("consumer", [&] {
    for (std::uint64_t n = 1; n <= messages && !corrupt; ++n) {
      std::uint64_t seen = 0;
      while (seen < n && !corrupt) seen = world.confirmed(world.b, n % kSlots).words[0];
      if (seen > n || !world.has_payload(world.b, payload_line(n), n)) corrupt = true;
      world.publish(world.b, kConsumed, n);
    }
    world.b.complete();
  });
  return world.run(messages * kRingSteps);
}

// Places that are overwritten under their readers, which read the entry again afterwards (R6).
Verdict validated_reads(std::uint64_t seed, Mood mood, Rule rule, std::uint64_t rounds) {
  constexpr std::size_t kPlaces = 4, kPayloads = 64;
  World world(seed, mood, rule);
  bool& corrupt = world.verdict.corrupt;
  bool done = false;
  std::uint64_t accepted = 0;
  world.scheduler.add("writer", [&] {
    base::Rng rng(seed);
    for (std::uint64_t n = 1; n <= rounds && !corrupt; ++n) {
      const std::size_t place = rng.below(kPlaces);
      world.publish(world.a, place, 0);  // a tombstone, complete before the next write there
      world.a.complete();
      world.write_payload(world.a, kPayloads + place * 4, n);
      world.a.order();
      world.publish(world.a, place, n);
      for (std::uint64_t rest = rng.below(64); rest > 0; --rest) world.scheduler.yield();
    }
    world.a.complete();
    done = true;
  });
  world.scheduler.add("reader", [&] {
    base::Rng rng(~seed);
    while (!corrupt && !(done && accepted > 0)) {
      const std::size_t place = rng.below(kPlaces);
      const Line entry = world.confirmed(world.b, place);
      if (entry.words[0] == 0) continue;
      const bool right = world.has_payload(world.b, kPayloads + place * 4, entry.words[0]);
      const bool valid = world.b.broken(Rule::kR6ValidateAfterReading) ||
                         world.b.read_line(world.at(world.b, place)) == entry;
      if (!valid) continue;
      ++accepted;
      if (!right) corrupt = true;
    }
  });
  return world.run(rounds * kReadSteps);
}

// Telling by another way than the pool.
Verdict telling(std::uint64_t seed, Mood mood, Rule rule, std::uint64_t rounds) {
  World world(seed, mood, rule);
  std::uint64_t told = 0, heard = 0;
  world.scheduler.add("teller", [&] {
    for (std::uint64_t n = 1; n <= rounds; ++n) {
      world.write_payload(world.a, 64, n);
      world.a.complete();
      told = n;
      while (heard < n) world.scheduler.yield();
    }
  });
  world.scheduler.add("listener", [&] {
    for (std::uint64_t n = 1; n <= rounds; ++n) {
      while (told < n) world.scheduler.yield();
      if (!world.has_payload(world.b, 64, n)) world.verdict.corrupt = true;
      heard = world.verdict.corrupt ? rounds : n;
      if (world.verdict.corrupt) return;
    }
  });
  return world.run(rounds * kTellSteps);
}

using Protocol = Verdict (*)(std::uint64_t seed, Mood mood, Rule rule, std::uint64_t rounds);

void expect_survives(Protocol protocol, std::uint64_t all_rounds) {
  const std::uint64_t rounds = all_rounds / kSlowness;
  for (const Mood mood : kMoods) {
    std::uint64_t accesses = 0, steps = 0;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      const Verdict verdict = protocol(static_cast<std::uint64_t>(seed), mood, Rule::kNone, rounds);
      EXPECT_TRUE(verdict.good()) << "mood " << static_cast<int>(mood) << ", seed " << seed;
      accesses += verdict.accesses;
      steps += verdict.steps;
    }
    std::printf("  %-6s %9llu accesses, %.0f steps a round\n", kMoodNames[static_cast<int>(mood)],
                static_cast<unsigned long long>(accesses),
                static_cast<double>(steps) / static_cast<double>(rounds * kSeeds));
  }
}

TEST(Lossy, KeepsARingOfPayloadsRightInEveryMood) {
  expect_survives(ring, 2'000);
}
TEST(Lossy, KeepsValidatedReadsRightInEveryMood) {
  expect_survives(validated_reads, 800);
}
TEST(Lossy, ShowsWhatIsCompleteToWhoIsTold) {
  expect_survives(telling, 1'000);
}

TEST(Lossy, RunsTheSameForTheSameSeed) {
  for (const Mood mood : kMoods) {
    const Verdict first = ring(5, mood, Rule::kNone, 500);
    const Verdict again = ring(5, mood, Rule::kNone, 500);
    EXPECT_EQ(first.fingerprint, again.fingerprint);
    EXPECT_EQ(first.steps, again.steps);
    EXPECT_NE(first.fingerprint, ring(6, mood, Rule::kNone, 500).fingerprint);
  }
}

#ifdef CACHALOT_RULE_SWITCHES

struct Breakage {
  Rule rule;
  const char* rule_name;
  Protocol protocol;
  const char* protocol_name;
};

TEST(Lossy, GetsEveryBrokenRuleNoticed) {
  const Breakage breakages[] = {
      {Rule::kR2NothingDirty, "R2 nothing dirty", ring, "ring"},
      {Rule::kR3FlushBeforeRead, "R3 flush before read", ring, "ring"},
      {Rule::kR3FenceBeforeFlush, "R3 fence before flush", validated_reads, "validated reads"},
      {Rule::kR3FenceAfterFlush, "R3 fence after flush", ring, "ring"},
      {Rule::kR4OrderBeforePublish, "R4 order before publish", ring, "ring"},
      {Rule::kR4CompleteBeforeTelling, "R4 complete before telling", telling, "telling"},
      {Rule::kR6ValidateAfterReading, "R6 validate after reading", validated_reads,
       "validated reads"},
  };
  const std::uint64_t rounds = kSlowness > 1 ? 100 : 300;
  std::printf("  noticed in so many of %d seeds (of these by a hang):\n", kSeeds);
  std::printf("  %-28s %-16s %10s %10s %10s\n", "broken rule", "protocol", "calm", "normal",
              "nasty");
  for (const Breakage& breakage : breakages) {
    std::printf("  %-28s %-16s", breakage.rule_name, breakage.protocol_name);
    for (const Mood mood : kMoods) {
      int noticed = 0, hung = 0;
      for (int seed = 1; seed <= kSeeds; ++seed) {
        const Verdict verdict =
            breakage.protocol(static_cast<std::uint64_t>(seed), mood, breakage.rule, rounds);
        if (!verdict.good()) ++noticed;
        if (verdict.hung) ++hung;
      }
      std::printf("  %3d (%3d)", noticed, hung);
      EXPECT_GT(noticed, 0) << breakage.rule_name << ", mood " << static_cast<int>(mood);
    }
    std::printf("\n");
  }
}

#endif

}  // namespace
}  // namespace cachalot::memory
