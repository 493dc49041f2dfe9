#include "pool/pool_state.h"

#include <optional>

#include "os/file_lock.h"
#include "pool/format/slot_totals.h"
#include "pool/lock_bytes.h"

namespace cachalot::pool {

Result<bool> PoolState::find_keeper_lock() const {
  const KeeperView view = read_keepers();
  if (view.epoch == 0) return false;
  CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder,
                      os::who_holds(file_->fd(), kFirstKeeperLock + view.keeper));
  return holder.has_value();
}

bool PoolState::keeper_is_locked() const {
  const Result<bool> is_locked = find_keeper_lock();
  return is_locked && *is_locked;
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
