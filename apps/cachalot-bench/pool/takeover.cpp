#include "takeover.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include "os/child.h"
#include "pool_fixture.h"

namespace cachalot::apps::bench {
namespace {

using pool::Access;
using pool::Entry;

constexpr std::uint32_t kChainBlocks = 128;
constexpr double kMostMs = 1500;  // for ten million entries

// A pool's directory and ledger as a keeper would have left them that published `entries` blocks in
// chains; written directly, for publishing them one by one takes minutes.
void publish_all(const Access& access, std::uint32_t entries) {
  const std::uint32_t slots = access.geometry.directory_slots;
  std::vector<std::uint32_t> block_at(slots, pool::kNoBlock);
  std::vector<std::uint64_t> spill(slots, 0);
  for (std::uint32_t block = 0; block < entries; ++block) {
    const pool::Home home = pool::home_of(bench_hash(block), 1, slots);
    std::uint32_t slot = home.slot;
    for (std::uint32_t i = 1; block_at[slot] != pool::kNoBlock && i < pool::kBucketSlots; ++i) {
      slot = home.bucket + (home.slot + i) % pool::kBucketSlots;
    }
    if (block_at[slot] != pool::kNoBlock) continue;  // a full bucket: one in millions
    block_at[slot] = block;
    if (slot != home.slot) spill[home.slot] |= std::uint64_t{1} << (slot % pool::kBucketSlots);
  }
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    Entry entry{};
    entry.block = entry.parent = pool::kNoBlock;
    entry.state = pool::kEntryFree;
    entry.spill = spill[slot];
    if (const std::uint32_t block = block_at[slot]; block != pool::kNoBlock) {
      entry.hash_low = bench_hash(block).low;
      entry.hash_high = bench_hash(block).high;
      entry.block = block;
      entry.parent = block % kChainBlocks == 0 ? pool::kNoBlock : block - 1;
      entry.length = 64;
      entry.epoch = entry.generation = entry.namespace_id = 1;
      entry.state = pool::kEntryLive;
    }
    access.region.publish(access.layout.entry(slot), entry);
  }
  pool::NamespaceLine space{};
  space.digest_low = 1;
  space.id = space.epoch = 1;
  access.region.publish(access.layout.namespace_line(0, 0), space);
  for (std::uint32_t first = 0; first < access.geometry.blocks;
       first += pool::kLedgerRecordsPerLine) {
    pool::LedgerLine line{};
    for (std::uint32_t i = 0; i < pool::kLedgerRecordsPerLine && first + i < entries; ++i) {
      line.records[i] = {1, 1, 0, pool::LedgerState::kLive, 0};
    }
    access.region.publish(access.layout.ledger_line(0, first), line);
  }
  access.domain().complete();
}

// Every line of the directory read and written once, by one thread: no takeover does less.
double time_lines_ms(const Access& access) {
  constexpr std::uint32_t kBatch = 64;
  memory::Line lines[kBatch];
  const std::uint64_t start_ns = now_ns();
  for (std::uint32_t slot = 0; slot < access.geometry.directory_slots; slot += kBatch) {
    std::byte* const at = access.region.at(access.layout.entry(slot));
    access.domain().read_lines(at, kBatch, lines);
    access.domain().write_lines(at, lines, kBatch);
  }
  access.domain().complete();
  return static_cast<double>(now_ns() - start_ns) / 1e6;
}

// A keeper in a process of its own that takes the pool over and then does nothing.
Result<os::Child> start_keeper(const pool::Pool& pool, std::uint32_t epoch) {
  constexpr auto kPause = std::chrono::milliseconds(1);
  const std::vector<std::string> paths = pool.paths();
  CACHALOT_TRY_ASSIGN(os::Child keeper, os::Child::start([&paths] {
                        Result<pool::Pool> opened = pool::Pool::open(paths);
                        if (!opened) return 1;
                        const Result<pool::PoolKeeper> serving = opened->serve({});
                        if (!serving) return 1;
                        for (;;) ::pause();
                      }));
  while (pool.state().read_keepers().epoch != epoch ||
         (pool.state().read_keepers().flags & pool::kKeeperServing) == 0) {
    CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> ended, keeper.wait_for(0));
    if (ended) return Error::make(Code::kIo, "bench: the keeper ended: %s", ended->text().c_str());
    std::this_thread::sleep_for(kPause);
  }
  return keeper;
}

// From the kill of the keeper until this process serves in its place.
Result<pool::PoolKeeper> succeed(pool::Pool& pool, os::Child& keeper,
                                 std::optional<pool::PoolKeeper> standby, double& took_ms) {
  const std::uint64_t start_ns = now_ns();
  keeper.send(SIGKILL);
  CACHALOT_TRY_ASSIGN(const os::ChildStatus ended, keeper.wait());
  (void)ended;
  if (!standby) {
    CACHALOT_TRY_ASSIGN(pool::PoolKeeper fresh, pool.stand_by({}));
    standby.emplace(std::move(fresh));
  }
  CACHALOT_TRY(pool.serve(*standby));
  took_ms = static_cast<double>(now_ns() - start_ns) / 1e6;
  return *std::move(standby);
}

Status report_takeover(const Settings& settings, memory::DomainKind domain, const char* kind,
                       std::uint32_t entries, pool::Keeper& keeper, double took_ms, double limit_ms,
                       Report& report) {
  const std::uint64_t live = keeper.counters()[pool::KeeperCounter::kLive];
  if (live + entries / 1'000'000 + 1 < entries) {
    return Error::make(Code::kInternal, "bench: a takeover found %llu entries of %u",
                       static_cast<unsigned long long>(live), entries);
  }
  Row row{std::string(kind) + "_" + std::to_string(entries) + suffix(domain),
          took_ms,
          "ms",
          "each line read and written once, one thread",
          limit_ms,
          settings.quick ? Target{} : value_at_most(kMostMs)};
  const pool::TakeoverTimes& times = keeper.takeover_times();
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  const double rest_ms = took_ms - ms(times.total_ns());
  row.extras = {
      {"read_ledger_ms", ms(times.ledger_ns)},  {"read_and_check_entries_ms", ms(times.entries_ns)},
      {"rebuild_tree_ms", ms(times.tree_ns)},   {"find_holders_ms", ms(times.holders_ns)},
      {"write_entries_ms", ms(times.sweep_ns)}, {"write_ledger_ms", ms(times.ledger_out_ns)},
      {"death_and_memory_ms", rest_ms}};
  report.add(std::move(row));
  char text[280];
  std::snprintf(text, sizeof text,
                "%s, %s: ledger read %.0f ms, entries read and checked %.0f, tree rebuilt %.0f, "
                "holders %.0f, entries "
                "written %.0f, ledger written %.0f; death of the last one, and memory %.0f",
                kind, memory::domain_name(domain), ms(times.ledger_ns), ms(times.entries_ns),
                ms(times.tree_ns), ms(times.holders_ns), ms(times.sweep_ns),
                ms(times.ledger_out_ns), rest_ms);
  report.note(text);
  return {};
}

Status measure(const Settings& settings, memory::DomainKind domain, Report& report) {
  const std::uint32_t entries = settings.quick ? 200'000 : 10'000'000;
  show_progress("takeover: filling the directory");
  CACHALOT_TRY_ASSIGN(pool::Pool pool, make_pool({domain, 64, entries, 1024}));
  CACHALOT_TRY_ASSIGN(os::Child first, start_keeper(pool, 1));
  publish_all(pool.access(), entries);
  const double limit_ms = time_lines_ms(pool.access());
  double took_ms = 0;
  {
    show_progress("takeover: by a standby");
    CACHALOT_TRY_ASSIGN(pool::PoolKeeper waiting, pool.stand_by({}));
    CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, succeed(pool, first, std::move(waiting), took_ms));
    CACHALOT_TRY(report_takeover(settings, domain, "standby", entries, keeper.keeper(), took_ms,
                                 limit_ms, report));
  }
  CACHALOT_TRY_ASSIGN(os::Child third, start_keeper(pool, 3));
  show_progress("takeover: by one that is started then");
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, succeed(pool, third, std::nullopt, took_ms));
  return report_takeover(settings, domain, "fresh", entries, keeper.keeper(), took_ms, limit_ms,
                         report);
}

}  // namespace

Status bench_takeover(const Settings& settings, Report& report) {
  for (const memory::DomainKind domain : settings.domains) {
    CACHALOT_TRY(measure(settings, domain, report));
  }
  return {};
}

}  // namespace cachalot::apps::bench
