#include "pool/keeper_areas.h"

#include <algorithm>
#include <optional>
#include <string>

#include "os/process.h"
#include "pool/format/lock_bytes.h"
#include "pool/keeper/keeper_line.h"
#include "pool/keeper/predecessor.h"
#include "pool/pool_state.h"

namespace cachalot::pool {

Result<os::FileLock> KeeperAreas::lock_succession(std::uint32_t patience_ms) const {
  return os::FileLock::lock_within(file_->fd(), lock_offset(*file_, kSuccessionLock), patience_ms,
                                   os::Forks::kLeave);
}

Result<os::FileLock> KeeperAreas::lock(std::uint32_t area) const {
  return lock_byte(*file_, kFirstKeeperLock + area);
}

Result<std::vector<os::FileLock>> KeeperAreas::lock_all() const {
  if (PoolState(*access_, *file_).find_keeper() == KeeperLife::kElsewhere) {
    return Error::make(Code::kBusy,
                       "%.110s: a keeper on another machine serves this pool: stop it first "
                       "(`cachalot stop`)",
                       pool_name());
  }
  std::vector<os::FileLock> locks;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    Result<os::FileLock> locked = lock(area);
    if (!locked) {
      if (locked.error().code != Code::kBusy) return locked.error();
      return Error::make(Code::kBusy,
                         "%s: a keeper serves this pool: stop it first (`cachalot stop`)",
                         pool_name());
    }
    locks.push_back(*std::move(locked));
  }
  return locks;
}

// Hosts 0 and 1 have two areas each, so that keepers of two machines, between which no lock holds, never choose the same.
Result<std::uint32_t> KeeperAreas::find_areas_of_others(Succession succession,
                                                        std::uint32_t host) const {
  constexpr std::uint32_t kAreasOfHost0 = 0b0011, kAreasOfHost1 = 0b1100;
  if (access_->geometry.hosts == 1) return 0u;
  if (host > 1 || host >= access_->geometry.hosts) {
    return Error::make(Code::kInvalidArgument,
                       "%.110s: host %u: keepers run on hosts 0 and 1; elsewhere --agent watches "
                       "this machine's engines",
                       pool_name(), host);
  }
  const PoolState state(*access_, *file_);
  KeeperLine line{};
  if (succession == Succession::kOfTheDead && state.find_keeper() == KeeperLife::kElsewhere &&
      state.read_keeper_line(line)) {
    return Error::make(Code::kBusy,
                       "%.110s: has a keeper already: pid %u on host %u; if that machine is off, "
                       "--take-over",
                       pool_name(), line.pid, line.host);
  }
  return host == 0 ? kAreasOfHost1 : kAreasOfHost0;
}

Result<std::uint32_t> KeeperAreas::find_in_use(Succession succession, std::uint32_t host) const {
  const char* name = pool_name();
  KeeperLine lines[kKeeperSlots];
  std::uint32_t highest_epoch = 0;
  CACHALOT_TRY_ASSIGN(std::uint32_t in_use, find_areas_of_others(succession, host));
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    lines[slot] = pool::read_keeper_line(*access_, slot);
    highest_epoch = std::max(highest_epoch, lines[slot].epoch);
  }
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder,
                        find_lock_holder(*file_, kFirstKeeperLock + slot));
    if (!holder) continue;
    in_use |= 1u << slot;
    // One whose line cannot be read may rule, for all that is known: it mends its line if it lives.
    const bool may_rule = lines[slot].epoch == highest_epoch || lines[slot].epoch == 0;
    if (!may_rule || succession == Succession::kOverTheLiving) continue;
    if (lines[slot].epoch == 0) {
      return Error::make(
          Code::kBusy, "%s: has a keeper already, whose line is damaged; a living keeper mends it",
          name);
    }
    if (!os::process_alive(lines[slot].pid, lines[slot].start_time)) {
      // Of another machine or pid namespace it may be; or it made a child without fork(), that shares the lock.
      return Error::make(Code::kBusy,
                         "%s: has a keeper already: pid %u, which is not seen here; if it has "
                         "ended, end the processes "
                         "that it left, one of which still holds its lock (/proc/locks, `lsof`)",
                         name, lines[slot].pid);
    }
    return Error::make(Code::kBusy, "%s: has a keeper already: pid %u", name, lines[slot].pid);
  }
  return in_use;
}

Result<std::uint32_t> KeeperAreas::find_free(std::uint32_t in_use) const {
  Result<std::uint32_t> area = next_keeper_area(*access_, in_use);
  if (!area && area.error().code == Code::kBusy) return all_in_use();
  return area;
}

Error KeeperAreas::all_in_use() const {
  std::string pids;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    const auto holder = find_lock_holder(*file_, kFirstKeeperLock + area);
    KeeperLine line{};
    if (!holder || !holder->has_value() ||
        !access_->region.read_as(access_->layout.keeper_line(area), line)) {
      continue;
    }
    pids += (pids.empty() ? "" : ", ") + std::to_string(line.pid);
  }
  return Error::make(
      Code::kBusy,
      "%.110s: no keeper area is free: end keepers that were replaced and still run (pid %s)",
      pool_name(), pids.c_str());
}

}  // namespace cachalot::pool
