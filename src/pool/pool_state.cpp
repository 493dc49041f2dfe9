// What the keeper and the clients last said of themselves.
#include "os/file_lock.h"
#include "pool/format/slot_totals.h"
#include "pool/lock_bytes.h"
#include "pool/pool.h"

namespace cachalot::pool {

Result<bool> Pool::find_keeper_lock() const {
  const KeeperView view = keeper_view();
  if (view.epoch == 0) return false;
  CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder,
                      os::who_holds(devices_.file(0).fd(), kFirstKeeperLock + view.keeper));
  return holder.has_value();
}

bool Pool::keeper_is_locked() const {
  const Result<bool> is_locked = find_keeper_lock();
  return is_locked && *is_locked;
}

bool Pool::read_keeper_line(KeeperLine& line) const {
  const KeeperView view = keeper_view();
  return view.epoch != 0 && access_->region.read_as(access_->layout.keeper_line(view.keeper), line);
}

bool Pool::read_keeper_info(KeeperInfoLine& info) const {
  const KeeperView view = keeper_view();
  return view.epoch != 0 &&
         access_->region.read_as(access_->layout.keeper_info(view.keeper), info) &&
         info.epoch == view.epoch;
}

ClientCounters Pool::read_totals() const {
  ClientCounters all;
  for (std::uint32_t slot = 0; slot < access_->geometry.clients; ++slot)
    all += SlotTotals::read(*access_, slot).values();
  return all;
}

bool Pool::read_keeper_counters(KeeperCounters& counters) const {
  const KeeperView view = keeper_view();
  return view.epoch != 0 &&
         counters.read(access_->region, access_->layout.keeper_counters(view.keeper));
}

}  // namespace cachalot::pool
