#include "pool/pool_state.h"

#include "os/file_lock.h"
#include "os/process.h"
#include "pool/format/departures.h"
#include "pool/format/lock_bytes.h"
#include "pool/format/slot_totals.h"

namespace cachalot::pool {

KeeperLife PoolState::find_keeper() const {
  const KeeperView view = read_keepers();
  if (view.epoch == 0) return KeeperLife::kNone;
  const auto holder = find_lock_holder(*file_, kFirstKeeperLock + view.keeper);
  if (holder && holder->has_value()) return KeeperLife::kHere;
  KeeperLine line{};
  if (access_->geometry.hosts == 1 || !read_keeper_line(line)) return KeeperLife::kEnded;
  // Of this machine, and its lock is free.
  const Result<os::Uuid> boot = os::boot_id();
  if (boot && line.boot_id_low == boot->low && line.boot_id_high == boot->high) {
    return KeeperLife::kEnded;
  }
  const bool is_taking_over = line.min_epoch != line.epoch;
  const bool says_it_ended = (line.flags & kKeeperServing) == 0 && !is_taking_over;
  if (says_it_ended || is_departed(*access_, line)) return KeeperLife::kEnded;
  return KeeperLife::kElsewhere;
}

bool PoolState::may_have_keeper() const {
  const KeeperLife life = find_keeper();
  return life == KeeperLife::kHere || life == KeeperLife::kElsewhere;
}

bool PoolState::read_keeper_line(KeeperLine& line) const {
  const KeeperView view = read_keepers();
  return view.epoch != 0 && access_->region.read_as(access_->layout.keeper_line(view.keeper), line);
}

bool PoolState::read_keeper_info(KeeperInfoLine& info) const {
  const KeeperView view = read_keepers();
  return view.epoch != 0 &&
         access_->region.read_as(access_->layout.keeper_info(view.keeper), info) &&
         info.epoch == view.epoch;
}

bool PoolState::read_publications(std::uint32_t& count) const {
  const KeeperView view = read_keepers();
  CounterLine line{};
  if (view.epoch == 0 ||
      !access_->region.read_as(access_->layout.keeper_counters(view.keeper), line)) {
    return false;
  }
  count = line.sequence;
  return true;
}

std::optional<ExpansionTable> PoolState::read_expansions() const {
  const KeeperView view = read_keepers();
  return read_table(*access_, view.keeper, view.epoch);
}

std::optional<StorageState> PoolState::read_storage() const {
  const KeeperView view = read_keepers();
  if (view.epoch == 0) return {};
  return read_storage_state(*access_, view.keeper, view.epoch);
}

std::vector<NamespaceName> PoolState::read_namespaces() const {
  const KeeperView view = read_keepers();
  if (view.epoch == 0) return {};
  return pool::read_namespaces(*access_, view.keeper, view.epoch);
}

NamespaceCounters PoolState::read_namespace_counters(std::uint32_t id) const {
  const KeeperView view = read_keepers();
  if (view.epoch == 0) return {};
  return pool::read_namespace_counters(*access_, view.keeper, view.epoch, id);
}

std::vector<ContextLine> PoolState::read_contexts() const {
  const KeeperView view = read_keepers();
  if (view.epoch == 0) return {};
  return pool::read_contexts(*access_, view.keeper, view.epoch);
}

ViewLine PoolState::read_view(std::uint32_t slot) const {
  const KeeperView keeper = read_keepers();
  ViewLine line{};
  if (keeper.epoch == 0 ||
      !access_->region.read_as(access_->layout.view_line(keeper.keeper, slot), line) ||
      line.epoch != keeper.epoch) {
    return {};
  }
  return line;
}

ClientCounters PoolState::read_totals() const {
  ClientCounters all;
  for (std::uint32_t slot = 0; slot < access_->geometry.clients; ++slot)
    all += SlotTotals::read(*access_, slot).values();
  return all;
}

bool PoolState::read_keeper_counters(KeeperCounters& counters) const {
  const KeeperView view = read_keepers();
  return view.epoch != 0 &&
         counters.read(access_->region, access_->layout.keeper_counters(view.keeper));
}

}  // namespace cachalot::pool
