#include "pool/check/fsck.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "os/file_lock.h"
#include "os/process.h"
#include "pool/check/added_check.h"
#include "pool/check/header_check.h"
#include "pool/check/mend.h"
#include "pool/format/departures.h"
#include "pool/format/lock_bytes.h"
#include "pool/keeper/keeper_line.h"
#include "pool/keeper_areas.h"
#include "pool/mapped_pool.h"
#include "pool/pool.h"

namespace cachalot::pool {
namespace {

Result<MappedPool> map_to_read(const HeaderReport& headers) {
  OpenOptions options;
  options.huge_pages = false;
  options.allow_foreign = true;
  Result<MappedPool> writable = MappedPool::open_as(*headers.first, headers.paths, options);
  if (writable || writable.error().code != Code::kPermission) return writable;
  options.read_only = true;
  return MappedPool::open_as(*headers.first, headers.paths, options);
}

// By the locks of the keeper areas, and between machines by what the last keeper and the agent of its host say.
Result<KeeperPlace> find_keeper(const MappedPool& pool) {
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder,
                        find_lock_holder(pool.first_file(), kFirstKeeperLock + area));
    if (holder) return KeeperPlace::kHere;
  }
  if (pool.access().geometry.hosts == 1) return KeeperPlace::kNone;
  const Predecessor last = find_predecessor(pool.access());
  const KeeperLine line = read_keeper_line(pool.access(), last.latest_area);
  const bool serves =
      line.epoch != 0 && (line.flags & kKeeperServing) != 0 && !is_departed(pool.access(), line);
  return serves ? KeeperPlace::kElsewhere : KeeperPlace::kNone;
}

Result<bool> must_be_proved(const Access& access) {
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  const Predecessor last = find_predecessor(access);
  const bool is_other_boot = last.boot_id_low != boot.low || last.boot_id_high != boot.high;
  return last.epoch != 0 && access.geometry.hosts == 1 && is_other_boot && !last.is_flushed;
}

Status check_no_keeper(const FsckReport& report) {
  const char* name = report.paths[0].c_str();
  if (report.keeper == KeeperPlace::kHere) {
    return Error::make(Code::kBusy,
                       "%.120s: a keeper serves this pool, and --repair needs it without one: stop "
                       "it first (`cachalot stop`)",
                       name);
  }
  if (report.keeper == KeeperPlace::kElsewhere) {
    return Error::make(Code::kBusy,
                       "%.90s: a keeper of another host says that it serves this pool: stop it "
                       "first (`cachalot stop`); if it has ended, start and stop one here",
                       name);
  }
  return {};
}

// A client writes its lines while they are read, also without a keeper.
bool has_clients(const MappedPool& pool) {
  for (std::uint32_t client = 0; client < pool.access().geometry.clients; ++client) {
    const auto holder = find_lock_holder(pool.first_file(), kFirstClientLock + client);
    if (holder && holder->has_value()) return true;
  }
  return pool.access().geometry.hosts > 1;
}

// No process can write to the page of this slot. The lock of a client on another host is not seen here: then the
// keeper's view decides, as it does at an attach.
bool is_idle(const Pool& pool, std::uint32_t client) {
  const Access& access = pool.access();
  const auto holder = find_lock_holder(pool.devices().file(0), kFirstClientLock + client);
  if (!holder || holder->has_value()) return false;
  if (access.geometry.hosts == 1) return true;
  return (pool.state().read_view(client).flags & (kViewOpen | kViewHeld)) == 0;
}

// Also of devices that were added, which are known by then.
Status write_headers(const HeaderReport& headers) {
  OpenOptions options;
  options.huge_pages = false;
  options.allow_foreign = true;
  CACHALOT_TRY_ASSIGN(const MappedPool pool,
                      MappedPool::open_as(*headers.first, headers.paths, options));
  const KeeperAreas areas(pool.access(), pool.first_file());
  CACHALOT_TRY_ASSIGN(const os::FileLock succession, areas.lock_succession());
  CACHALOT_TRY_ASSIGN(const std::vector<os::FileLock> locks, areas.lock_all());
  mend_headers(pool.access(), headers);
  FaultLog ignored(0);
  return mend_added_headers(pool.access(), check_added(pool.access(), ignored));
}

Result<std::uint32_t> take_over_and_mend(const std::vector<std::string>& paths,
                                         const FsckOptions& options) {
  CACHALOT_TRY_ASSIGN(
      Pool pool,
      Pool::open(paths, {.huge_pages = false, .populate = false, .allow_foreign = true}));
  KeeperOptions keeper_options;
  keeper_options.verify_payloads = options.payloads;
  keeper_options.host = options.host;
  keeper_options.without_lost_devices = true;
  CACHALOT_TRY_ASSIGN(PoolKeeper keeper, pool.serve(std::move(keeper_options)));
  keeper.keeper().stop();
  // The keeper still has the lock of its area, so no other one begins meanwhile.
  return mend_lines(pool.access(), [&pool](std::uint32_t client) { return is_idle(pool, client); });
}

}  // namespace

std::uint64_t FsckReport::count(bool of_remnants) const {
  std::uint64_t all = 0;
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
    if (text_of(static_cast<FaultKind>(kind)).is_remnant == of_remnants) all += counts[kind];
  }
  return all;
}

Result<FsckReport> check_pool_at(const std::vector<std::string>& paths,
                                 const FsckOptions& options) {
  FaultLog log(options.messages);
  FsckReport report;
  CACHALOT_TRY_ASSIGN(const HeaderReport headers, check_headers(paths, log));
  report.paths = headers.paths;
  report.is_whole = headers.first && headers.has_all_bytes;
  if (report.is_whole) {
    CACHALOT_TRY_ASSIGN(const MappedPool pool, map_to_read(headers));
    CACHALOT_TRY_ASSIGN(report.keeper, find_keeper(pool));
    CACHALOT_TRY_ASSIGN(report.is_unproven, must_be_proved(pool.access()));
    report.blocks = pool.access().geometry.blocks;
    const std::uint32_t threads =
        options.payloads ? std::clamp(std::thread::hardware_concurrency(), 1u, 4u) : 0;
    const bool is_in_use = report.keeper != KeeperPlace::kNone || has_clients(pool);
    const auto check = is_in_use ? check_served_pool : check_pool;
    const AddedReport added = check_added(pool.access(), log);
    for (const Expansion& device : added.devices) report.added_paths.push_back(device.path);
    report.check = check(pool.access(), threads, log);
    report.faults = log.faults();
    for (Fault& fault : report.faults) set_device(pool.access(), added, fault);
  } else {
    report.faults = log.faults();
  }
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind)
    report.counts[kind] = log.count(static_cast<FaultKind>(kind));
  return report;
}

Result<RepairReport> repair_pool_at(const std::vector<std::string>& paths,
                                    const FsckOptions& options) {
  RepairReport report;
  CACHALOT_TRY_ASSIGN(report.before, check_pool_at(paths, options));
  CACHALOT_TRY(check_no_keeper(report.before));
  report.after = report.before;
  const bool is_clean = report.before.count_faults() + report.before.count_remnants() == 0;
  if (is_clean || !report.before.is_whole) return report;
  FaultLog ignored(0);
  CACHALOT_TRY_ASSIGN(const HeaderReport headers, check_headers(paths, ignored));
  CACHALOT_TRY(write_headers(headers));
  CACHALOT_TRY_ASSIGN(report.mended_lines, take_over_and_mend(headers.paths, options));
  report.was_taken_over = true;
  CACHALOT_TRY_ASSIGN(report.after, check_pool_at(paths, options));
  return report;
}

}  // namespace cachalot::pool
