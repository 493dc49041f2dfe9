#include "bench_takeover.h"

#include <cstdio>
#include <vector>

#include "bench_pool.h"

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
  for (std::uint32_t first = 0; first < access.geometry.blocks; first += pool::kLedgerRecordsPerLine) {
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

Status measure(const Settings& settings, memory::DomainKind domain, Report& report) {
  const std::uint32_t entries = settings.quick ? 200'000 : 10'000'000;
  show_progress("takeover: filling the directory");
  CACHALOT_TRY_ASSIGN(pool::Pool pool, make_pool({domain, 64, entries, 1024}));
  { CACHALOT_TRY_ASSIGN(const pool::PoolKeeper first, pool.serve({})); }  // epoch 1
  publish_all(pool.access(), entries);
  const double limit_ms = time_lines_ms(pool.access());
  show_progress("takeover: a keeper begins");
  const std::uint64_t start_ns = now_ns();
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, pool.serve({}));
  const double took_ms = static_cast<double>(now_ns() - start_ns) / 1e6;
  const pool::TakeoverTimes& times = keeper.keeper().takeover_times();
  const std::uint64_t live = keeper.keeper().counters()[pool::KeeperCounter::kLive];
  if (live + entries / 1'000'000 + 1 < entries) {
    return Error::make(Code::kInternal, "bench: a takeover found %llu entries of %u",
                       static_cast<unsigned long long>(live), entries);
  }
  Row row{"entries_" + std::to_string(entries) + suffix(domain),
          took_ms,
          "ms",
          "each line read and written once, one thread",
          limit_ms,
          settings.quick ? Target{} : value_at_most(kMostMs)};
  const auto add = [&row](const char* name, std::uint64_t ns) {
    row.extras.emplace_back(name, static_cast<double>(ns) / 1e6);
  };
  add("read_ledger_ms", times.ledger_ns);
  add("read_and_check_entries_ms", times.entries_ns);
  add("rebuild_tree_ms", times.tree_ns);
  add("find_holders_ms", times.holders_ns);
  add("write_entries_ms", times.sweep_ns);
  add("write_ledger_ms", times.ledger_out_ns);
  report.add(std::move(row));
  char text[240];
  std::snprintf(text, sizeof text,
                "%s: ledger read %.0f ms, entries read and checked %.0f, tree rebuilt %.0f, entries "
                "written %.0f, ledger written %.0f",
                memory::domain_name(domain), static_cast<double>(times.ledger_ns) / 1e6,
                static_cast<double>(times.entries_ns) / 1e6, static_cast<double>(times.tree_ns) / 1e6,
                static_cast<double>(times.sweep_ns) / 1e6, static_cast<double>(times.ledger_out_ns) / 1e6);
  report.note(text);
  return {};
}

}  // namespace

Status bench_takeover(const Settings& settings, Report& report) {
  for (const memory::DomainKind domain : settings.domains) {
    CACHALOT_TRY(measure(settings, domain, report));
  }
  return {};
}

}  // namespace cachalot::apps::bench
