// How fast the radix tree matches, inserts and evicts. Built on request: target tier_radix_bench.
//
// The load of agentic: 200 sessions of 32 turns, each turn 512 new tokens after all tokens of the session so far
// and a system prompt of 2,048 tokens that all sessions share; a match and an insert each turn. The baseline
// is a memcmp of the same tokens with a copy of them, chunk by chunk as a session grows.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {
namespace {

constexpr std::size_t kSessions = 200, kTurns = 32, kTurnTokens = 512, kSystemTokens = 2048;

std::vector<std::vector<Token>> make_sessions() {
  base::Rng rng(7);
  const auto token = [&] { return static_cast<Token>(rng.below(150'000)); };
  std::vector<Token> system(kSystemTokens);
  std::generate(system.begin(), system.end(), token);
  std::vector<std::vector<Token>> sessions(kSessions, system);
  for (std::vector<Token>& session : sessions) {
    session.resize(kSystemTokens + kTurns * kTurnTokens);
    std::generate(session.begin() + kSystemTokens, session.end(), token);
  }
  return sessions;
}

template <class Turn>
std::uint64_t for_each_turn(const std::vector<std::vector<Token>>& sessions, Turn&& turn) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 1; i <= kTurns; ++i) {
    for (std::size_t s = 0; s < sessions.size(); ++s) {
      const auto key = std::span<const Token>(sessions[s]).first(kSystemTokens + i * kTurnTokens);
      turn(s, key);
      tokens += key.size();
    }
  }
  return tokens;
}

struct Turns {
  std::vector<std::vector<Token>> sessions = make_sessions();
  std::vector<Slot> slots = std::vector<Slot>(kSystemTokens + kTurns * kTurnTokens);
  std::vector<BlockHash> hashes{slots.size()};
};

// Time of one of the two calls of each turn: the other one runs while the clock stands.
enum class Timed { kMatch, kInsert, kBoth };

void agentic(benchmark::State& state, Timed timed) {
  const auto page_tokens = static_cast<std::uint32_t>(state.range(0));
  const Turns turns;
  std::uint64_t tokens = 0, nodes = 0;
  MatchSlots found;
  std::vector<Slot> surplus;
  for (auto _ : state) {
    RadixTree tree({.page_tokens = page_tokens});
    std::uint64_t ticks = 0;
    const auto clock = [&](bool counts, auto&& call) {
      const auto start = __builtin_ia32_rdtsc();
      call();
      if (counts) ticks += __builtin_ia32_rdtsc() - start;
    };
    const auto all_start = __builtin_ia32_rdtsc();
    const auto wall_start = std::chrono::steady_clock::now();
    tokens += for_each_turn(turns.sessions, [&](std::size_t, std::span<const Token> tokens_so_far) {
      const RadixKey key{.tokens = tokens_so_far};
      found.device.clear();
      RadixMatch match;
      clock(timed != Timed::kInsert, [&] { match = tree.match(key, &found); });
      const std::size_t pages = tokens_so_far.size() / page_tokens;
      surplus.clear();
      clock(timed != Timed::kMatch, [&] {
        benchmark::DoNotOptimize(tree.insert(
            key, std::span(turns.slots).first(pages - match.device_pages),
            {.owned_pages = match.device_pages, .hashes = std::span(turns.hashes).first(pages)},
            surplus));
      });
    });
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count();
    const auto all = static_cast<double>(__builtin_ia32_rdtsc() - all_start);
    state.SetIterationTime(wall * static_cast<double>(ticks) / all);
    nodes = tree.forest().size();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(tokens));
  state.counters["nodes"] = static_cast<double>(nodes);
}

void memcmp_baseline(benchmark::State& state) {
  const Turns turns;
  const auto copy = turns.sessions;
  std::uint64_t tokens = 0;
  for (auto _ : state) {
    tokens += for_each_turn(turns.sessions, [&](std::size_t s, std::span<const Token> key) {
      for (std::size_t at = 0; at < key.size(); at += kTurnTokens) {
        benchmark::DoNotOptimize(
            std::memcmp(key.data() + at, copy[s].data() + at, kTurnTokens * sizeof(Token)));
      }
    });
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(tokens));
}

// A tree of leaves of one page below the root, used in random order; evicts one page, and inserts one.
void evict_one(benchmark::State& state, const char* order) {
  const auto leaves = static_cast<std::uint32_t>(state.range(0));
  constexpr std::uint32_t kPageTokens = 16;
  RadixTree tree({.page_tokens = kPageTokens, .device_order = *eviction::parse_leaf_order(order)});
  std::vector<Token> tokens(kPageTokens);
  std::vector<Slot> surplus;
  const auto insert = [&](std::uint32_t number) {
    tokens[0] = number;
    const Slot slot = number;
    benchmark::DoNotOptimize(tree.insert({.tokens = tokens}, {&slot, 1}, {}, surplus));
  };
  for (std::uint32_t i = 0; i < leaves; ++i) insert(i);
  base::Rng rng(5);
  for (std::uint32_t i = 0; i < leaves; ++i) {
    tokens[0] = static_cast<Token>(rng.below(leaves));
    tree.match({.tokens = tokens});
  }
  FreedSlots freed;
  std::uint32_t next = leaves;
  double best = 1;
  for (auto _ : state) {
    constexpr int kBatch = 1000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) tree.evict(Tier::kDevice, 1, freed);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(time.count());
    best = std::min(best, time.count() / kBatch);
    freed.device.clear();
    for (int i = 0; i < kBatch; ++i) insert(next++);
  }
  state.SetItemsProcessed(state.iterations() * 1000);
  state.counters["best_ns"] = best * 1e9;
}

BENCHMARK_CAPTURE(agentic, match, Timed::kMatch)->Arg(1)->Arg(16)->Arg(64)->UseManualTime();
BENCHMARK_CAPTURE(agentic, insert, Timed::kInsert)->Arg(1)->Arg(16)->Arg(64)->UseManualTime();
BENCHMARK_CAPTURE(agentic, match_and_insert, Timed::kBoth)->Arg(16)->UseManualTime();
BENCHMARK(memcmp_baseline);
BENCHMARK_CAPTURE(evict_one, lru, "lru")
    ->Arg(1000)
    ->Arg(50'000)
    ->Arg(1'000'000)
    ->Iterations(100)
    ->UseManualTime();
BENCHMARK_CAPTURE(evict_one, lfu, "lfu")->Arg(1'000'000)->Iterations(100)->UseManualTime();
BENCHMARK_CAPTURE(evict_one, slru, "slru")->Arg(1'000'000)->Iterations(100)->UseManualTime();

}  // namespace
}  // namespace cachalot::tier

BENCHMARK_MAIN();
