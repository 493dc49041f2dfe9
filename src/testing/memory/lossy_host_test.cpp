// What the simulated hosts may and may not show, as the litmus tests of memory models do.
#include "testing/memory/lossy_host.h"

#include <gtest/gtest.h>

#include <vector>

#include "testing/memory/lossy_memory.h"

namespace cachalot::memory {
namespace {

constexpr Mood kMoods[] = {Mood::kCalm, Mood::kNormal, Mood::kNasty};
#ifdef __SANITIZE_THREAD__
constexpr int kSeeds = 5;
#else
constexpr int kSeeds = 20;
#endif
constexpr std::uint64_t kBudget = 20'000'000;

// Two hosts and one device of 64 KiB.
struct World {
  World(std::uint64_t seed, Mood mood)
      : scheduler(seed, adversary(mood).pace),
        memory(scheduler, {.bytes_each = 64 << 10, .adversary = adversary(mood)}) {}

  void run() {
    EXPECT_EQ(scheduler.run(kBudget).ending, Ending::kAllDone) << scheduler.unfinished();
  }

  Scheduler scheduler;
  LossyMemory memory;
  LossyHost& a = memory.add_host();
  LossyHost& b = memory.add_host();
};

std::byte* line_at(const LossyHost& host, std::size_t line) {
  return host.view().bases[0] + line * kLineBytes;
}
std::uint64_t read_word(LossyHost& host, std::size_t line) {
  return host.read_line(line_at(host, line)).words[3];
}
void write_word(LossyHost& host, std::size_t line, std::uint64_t value) {
  Line filled;
  for (std::uint64_t& word : filled.words) word = value;
  host.write_line(line_at(host, line), filled);
}

template <class F>
void for_all_worlds(F&& f) {
  for (const Mood mood : kMoods) {
    for (int seed = 1; seed <= kSeeds; ++seed) {
      SCOPED_TRACE(testing::Message() << "mood " << static_cast<int>(mood) << " seed " << seed);
      f(mood, static_cast<std::uint64_t>(seed));
    }
  }
}

TEST(LossyHostDeathTest, MakesAnAccessThatBypassesItCrash) {
  World world(1, Mood::kCalm);
  const volatile std::byte* at = world.a.view().bases[0];
  EXPECT_DEATH({ [[maybe_unused]] const std::byte value = *at; }, "");
}

TEST(LossyHostDeathTest, RefusesAddressesOutsideTheDevices) {
  World world(1, Mood::kCalm);
  std::byte* base = world.a.view().bases[0];
  EXPECT_DEATH(world.a.read_line(base - kLineBytes), "line_number|bug");
  EXPECT_DEATH(world.a.read_line(base + (64 << 10)), "bug");
  EXPECT_DEATH(world.a.read_line(base + 8), "bug");
  std::vector<Line> lines(1025);
  EXPECT_DEATH(world.a.read_lines(base, 1025, lines.data()), "bug");
}

TEST(LossyHost, KeepsDevicesApart) {
  Scheduler scheduler(1);
  LossyMemory memory(scheduler, {.devices = 3, .bytes_each = 4 << 20});
  LossyHost& host = memory.add_host();
  const PoolView view = host.view();
  ASSERT_EQ(view.bases.size(), 3u);
  EXPECT_EQ(view.bytes_each, 4u << 20);
  for (std::uint64_t device = 0; device < 3; ++device) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.bases[device]) % (2 << 20), 0u);
    Line line = {};
    line.words[0] = device + 1;
    host.write_line(view.bases[device] + (4 << 20) - kLineBytes, line);
  }
  host.complete();
  for (std::uint64_t device = 0; device < 3; ++device) {
    EXPECT_EQ(memory.device().line((device + 1) * (4 << 20) / kLineBytes - 1).words[0], device + 1);
  }
}

TEST(LossyHost, ReadsBackWhatItWroteBeforeAnybodyElseDoes) {
  for_all_worlds([](Mood mood, std::uint64_t seed) {
    World world(seed, mood);
    world.scheduler.add("writer", [&] {
      std::uint64_t written[16] = {};
      Line lines[16];
      for (std::uint64_t i = 1; i <= 200; ++i) {
        const std::size_t line = world.scheduler.rng().below(16);
        write_word(world.a, line, i);
        written[line] = i;
        if (i % 3 == 0) world.a.order();
        world.a.read_lines(line_at(world.a, 0), 16, lines);
        for (std::size_t k = 0; k < 16; ++k) {
          for (const std::uint64_t word : lines[k].words) EXPECT_EQ(word, written[k]);
        }
      }
    });
    world.run();
  });
}

TEST(LossyHost, CopiesAndHashesBulk) {
  std::vector<std::uint64_t> from(8 * 150), to(8 * 150);
  base::Rng rng(3);
  for (std::uint64_t& word : from) word = rng.next();
  World world(1, Mood::kNasty);
  const std::size_t bytes = from.size() * sizeof from[0];
  FusedHash written(bytes), read(bytes);
  world.scheduler.add("host", [&] {
    world.a.write_bulk(line_at(world.a, 7), from.data(), bytes, &written);
    world.a.complete();
    world.b.read_bulk(to.data(), line_at(world.b, 7), bytes, &read);
  });
  world.run();
  EXPECT_EQ(from, to);
  EXPECT_EQ(written.finish(), hash_lines(from.data(), bytes));
  EXPECT_EQ(read.finish(), written.finish());
}

TEST(LossyHost, GathersLinesFromAnywhere) {
  World world(1, Mood::kNasty);
  std::vector<const void*> from;
  for (std::size_t i = 0; i < 40; ++i) {
    write_word(world.a, i * 11, i);
    from.push_back(line_at(world.b, i * 11));
  }
  world.a.complete();
  std::vector<Line> lines(from.size());
  world.b.gather_lines(from.data(), from.size(), lines.data());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].words[0], i);
}

// Message passing: a reader that sees the second write sees the first.
TEST(LossyHost, ShowsOrderedWritesInOrder) {
  for_all_worlds([](Mood mood, std::uint64_t seed) {
    World world(seed, mood);
    world.scheduler.add("writer", [&] {
      for (std::uint64_t i = 1; i <= 300; ++i) {
        write_word(world.a, 1, i);
        world.a.order();
        write_word(world.a, 9, i);
        world.a.order();
      }
      world.a.complete();
    });
    world.scheduler.add("reader", [&] {
      for (std::uint64_t second = 0; second < 300;) {
        second = read_word(world.b, 9);
        EXPECT_GE(read_word(world.b, 1), second);
      }
    });
    world.run();
  });
}

// The same, where the payload is another core's, which orders it before it tells.
TEST(LossyHost, ShowsWhatOneCoreOrderedBeforeWhatAnotherWritesThen) {
  for_all_worlds([](Mood mood, std::uint64_t seed) {
    World world(seed, mood);
    std::uint64_t copied = 0, published = 0;
    world.scheduler.add("copying core", [&] {
      for (std::uint64_t i = 1; i <= 200; ++i) {
        write_word(world.a, 1, i);
        world.a.order();
        copied = i;
        while (published < i) world.scheduler.yield();
      }
    });
    world.scheduler.add("publishing core", [&] {
      for (std::uint64_t i = 1; i <= 200; ++i) {
        while (copied < i) world.scheduler.yield();
        write_word(world.a, 9, i);
        published = i;
      }
      world.a.complete();
    });
    world.scheduler.add("reader", [&] {
      for (std::uint64_t second = 0; second < 200;) {
        second = read_word(world.b, 9);
        EXPECT_GE(read_word(world.b, 1), second);
      }
    });
    world.run();
  });
}

// Store buffering: with complete() in between, one of the two sees the other.
TEST(LossyHost, LetsNoTwoHostsMissEachOthersCompletedWrites) {
  for_all_worlds([](Mood mood, std::uint64_t seed) {
    World world(seed, mood);
    std::uint64_t saw_a[100], saw_b[100];
    const auto core = [&](LossyHost& host, std::size_t own, std::size_t other, std::uint64_t* saw) {
      for (std::size_t i = 0; i < 100; ++i) {
        write_word(host, own + i, 1);
        host.complete();
        saw[i] = read_word(host, other + i);
      }
    };
    world.scheduler.add("a", [&] { core(world.a, 0, 200, saw_b); });
    world.scheduler.add("b", [&] { core(world.b, 200, 0, saw_a); });
    world.run();
    for (std::size_t i = 0; i < 100; ++i) EXPECT_TRUE(saw_a[i] == 1 || saw_b[i] == 1);
  });
}

// What is allowed must happen, or the tests above mean nothing.
struct Sightings {
  int disorder = 0;    // the second of two unordered writes without the first
  int torn = 0;        // words of two writes in one line
  int buffered = 0;    // words in the buffer after order()
  int prefetched = 0;  // a line served from the cache although it was just invalidated
};

Sightings look_for_trouble(Mood mood) {
  Sightings sightings;
  for (int seed = 1; seed <= 20; ++seed) {
    World world(static_cast<std::uint64_t>(seed), mood);
    bool done = false;
    world.scheduler.add("writer", [&] {
      for (std::uint64_t i = 1; i <= 300; ++i) {
        write_word(world.a, 1, i);
        write_word(world.a, 9, i);
        world.a.order();
        if (world.a.buffered_lines() > 0) ++sightings.buffered;
      }
      world.a.complete();
      done = true;
    });
    world.scheduler.add("reader", [&] {
      while (!done) {
        const std::uint64_t second = read_word(world.b, 9);
        const Line first = world.b.read_line(line_at(world.b, 1));
        if (first.words[3] < second) ++sightings.disorder;
        if (first.words[0] != first.words[7]) ++sightings.torn;
      }
    });
    world.run();
    sightings.prefetched += static_cast<int>(world.memory.counts().loaded_from_cache);
  }
  return sightings;
}

TEST(LossyHost, DoesItsWorstInEveryMood) {
  for (const Mood mood : kMoods) {
    SCOPED_TRACE(static_cast<int>(mood));
    const Sightings sightings = look_for_trouble(mood);
    EXPECT_GT(sightings.disorder, 0);
    EXPECT_GT(sightings.torn, 0);
    EXPECT_GT(sightings.buffered, 0);
    EXPECT_GT(sightings.prefetched, 0);
  }
}

TEST(LossyHost, HidesUnorderedWordsOfACoreFromTheOthers) {
  World world(1, Mood::kNasty);
  int hidden = 0;
  std::uint64_t written = 0;
  world.scheduler.add("writer", [&] {
    for (std::uint64_t i = 1; i <= 300; ++i) {
      write_word(world.a, 1, i);
      written = i;
      world.scheduler.yield();
    }
    world.a.complete();
  });
  world.scheduler.add("other core", [&] {
    while (written < 300) {
      const std::uint64_t before = written;
      if (read_word(world.a, 1) < before) ++hidden;
    }
  });
  world.run();
  EXPECT_GT(hidden, 0);
}

#ifdef CACHALOT_RULE_SWITCHES

// A process that was killed has exited: nothing that it stored may reach the device later.
TEST(LossyHost, DrainsTheOpenLinesOfADeadFiber) {
  for_all_worlds([](Mood mood, std::uint64_t seed) {
    World world(seed, mood);
    bool has_stored = false;
    const std::size_t dead = world.scheduler.add("dead", [&] {
      for (std::size_t line = 0; line < 4; ++line) write_word(world.a, line, 7);
      has_stored = true;
      while (true) world.scheduler.yield();
    });
    world.scheduler.add("another", [&] {
      while (!has_stored) world.scheduler.yield();
      world.scheduler.abandon(dead);
      world.a.complete_for(dead);
      EXPECT_EQ(world.a.buffered_lines(), 0u);
      for (std::size_t line = 0; line < 4; ++line) EXPECT_EQ(read_word(world.b, line), 7u);
    });
    world.run();
  });
}

TEST(LossyHost, ServesAnOldCopyToAReaderThatDoesNotFlush) {
  World world(1, Mood::kCalm);
  world.b.break_rule(Rule::kR3FlushBeforeRead);
  EXPECT_EQ(read_word(world.b, 2), 0u);
  ASSERT_TRUE(world.b.has_cached(line_at(world.b, 2)));
  write_word(world.a, 2, 5);
  world.a.complete();
  EXPECT_EQ(world.memory.device().line(2).words[3], 5u);
  EXPECT_EQ(read_word(world.b, 2), 0u);
  world.b.break_rule(Rule::kNone);
  EXPECT_EQ(read_word(world.b, 2), 5u);
}

TEST(LossyHost, WritesANeighboursWordBackWhereLinesAreDirty) {
  World world(1, Mood::kCalm);
  world.a.break_rule(Rule::kR2NothingDirty);
  write_word(world.a, 2, 5);
  world.a.complete();
  EXPECT_EQ(world.memory.device().line(2).words[3], 0u);
  write_word(world.b, 2, 6);
  world.b.complete();
  EXPECT_EQ(world.memory.device().line(2).words[3], 6u);
  read_word(world.a, 2);  // flushes, and so writes the old line over the newer one
  EXPECT_EQ(world.memory.device().line(2).words[3], 5u);
}

#endif

}  // namespace
}  // namespace cachalot::memory
