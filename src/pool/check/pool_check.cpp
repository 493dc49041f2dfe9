#include "pool/check/pool_check.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pool/check/client_check.h"
#include "pool/check/keeper_check.h"
#include "pool/keeper/keeper_line.h"

namespace cachalot::pool {
namespace {

void check_accounting(const Access& access, const Predecessor& predecessor,
                      const BlockCounts& found, FaultLog& log) {
  KeeperCounters counters;
  const std::uint64_t at = access.layout.keeper_counters(predecessor.area);
  if (!counters.read(access.region, at)) return;
  const std::uint64_t live = counters[KeeperCounter::kLive];
  const std::uint64_t sum = live + counters[KeeperCounter::kFree] +
                            counters[KeeperCounter::kGranted] + counters[KeeperCounter::kLimbo] +
                            counters[KeeperCounter::kQuarantined] + counters[KeeperCounter::kBad] +
                            counters[KeeperCounter::kAbsent];
  if (sum != access.geometry.blocks) {
    log.add({FaultKind::kAccounting, 0, at, kNoBlock, kNoBlock,
             "the keeper counts " + std::to_string(sum) + " blocks, the pool has " +
                 std::to_string(access.geometry.blocks)});
  }
  if (found.live > access.geometry.capacity_blocks) {
    log.add({FaultKind::kAccounting, 0, access.layout.directory, kNoBlock, kNoBlock,
             std::to_string(found.live) + " blocks are published, the capacity is " +
                 std::to_string(access.geometry.capacity_blocks)});
  }
  // What it counted last is true only of one that stopped in order.
  const KeeperLine line = read_keeper_line(access, predecessor.area);
  const bool has_stopped = predecessor.highest_epoch == predecessor.epoch &&
                           line.epoch == predecessor.epoch && (line.flags & kKeeperServing) == 0;
  if (has_stopped && live != found.live) {
    log.add({FaultKind::kAccounting, 0, at, kNoBlock, kNoBlock,
             "the last keeper stopped with " + std::to_string(live) +
                 " published blocks, the directory has " + std::to_string(found.live)});
  }
}

}  // namespace

CheckReport check_pool(const Access& access, std::uint32_t threads, FaultLog& log) {
  const Predecessor predecessor = find_predecessor(access);
  check_keeper_lines(access, predecessor, log);
  std::vector<bool> is_known;
  if (predecessor.epoch != 0) is_known = check_keeper_area(access, predecessor, log);
  check_client_pages(access, predecessor, log);
  CheckReport report;
  report.epoch = predecessor.epoch;
  report.figures = EntryCheck(access, predecessor, is_known, log).run(threads);
  if (predecessor.epoch != 0) check_accounting(access, predecessor, report.figures.blocks, log);
  return report;
}

CheckReport check_served_pool(const Access& access, std::uint32_t threads, FaultLog& log) {
  constexpr int kPasses = 3;
  constexpr std::uint32_t kMostOfKind = 1u << 16;
  constexpr auto kPause = std::chrono::milliseconds(50);  // many rounds of the keeper
  std::vector<Fault> lasting;
  CheckReport report;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (pass != 0) std::this_thread::sleep_for(kPause);
    FaultLog found(kMostOfKind);
    report = check_pool(access, threads, found);
    const std::vector<Fault> now = found.faults();
    if (pass == 0) {
      lasting = now;
    } else {
      std::set<Fault::Place> places;
      for (const Fault& fault : now) places.insert(fault.place());
      std::erase_if(lasting, [&](const Fault& fault) { return !places.contains(fault.place()); });
    }
    if (lasting.empty()) break;
  }
  for (Fault& fault : lasting) log.add(std::move(fault));
  return report;
}

}  // namespace cachalot::pool
