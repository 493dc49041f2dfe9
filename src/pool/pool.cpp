#include "pool/pool.h"

#include <utility>

#include "os/process.h"
#include "pool/client_slots.h"
#include "pool/expansion/expansion_device.h"
#include "pool/expansion/occupied.h"
#include "pool/format/lock_bytes.h"
#include "pool/keeper/takeover/added_devices.h"
#include "pool/making.h"

namespace cachalot::pool {

std::vector<std::string> Pool::paths() const {
  std::vector<std::string> all;
  for (std::uint32_t i = 0; i < devices().count(); ++i) all.push_back(devices().file(i).path());
  return all;
}

namespace {

// A pool that lies where this one begins may be written over, if it is not served. One that only has some bytes in common
// is not noticed by its paths.
Status check_not_inside_another(const std::string& path, Geometry geometry) {
  if (geometry.device_bytes == 0) {
    CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  }
  return for_each_occupant(path, geometry.device_bytes, [&](const Occupant& found) -> Status {
    const bool is_added = found.header.device_index == kExpansionIndex;
    if (!is_added && found.header.device_index == 0) {
      const Result<Pool> there =
          Pool::open({found.path}, {.huge_pages = false, .allow_foreign = true, .read_only = true});
      if (there ? !there->state().may_have_keeper() : found.begins_here) return {};
    } else if (!is_added && found.begins_here) {
      return {};
    }
    if (found.begins_here && !is_added) {
      return Error::make(
          Code::kBusy, "%.120s: holds a pool that a keeper serves: stop it first (`cachalot stop`)",
          path.c_str());
    }
    return Error::make(
        Code::kBusy, "%.120s: has bytes of %s, at %.120s: expected a range that is free",
        path.c_str(),
        is_added ? "a device that was added to a pool" : "a pool that a keeper serves",
        found.path.c_str());
  });
}

}  // namespace

// A file that exists is not made anew; a device is, so it is looked at for a pool that is served.
Status Pool::check_not_served(const CreateOptions& options) {
  for (const std::string& path : options.paths) {
    if (!is_taken_as_it_is(path)) continue;
    CACHALOT_TRY(check_not_inside_another(path, options.geometry));
  }
  if (options.paths.empty() || !is_taken_as_it_is(options.paths[0])) return {};
  const Result<Pool> there =
      open(options.paths, {.huge_pages = false, .allow_foreign = true, .read_only = true});
  if (!there || !there->state().may_have_keeper()) return {};
  return Error::make(Code::kBusy,
                     "%.120s: holds a pool that a keeper serves: stop it first (`cachalot stop`)",
                     options.paths[0].c_str());
}

Result<Pool> Pool::create(const CreateOptions& options) {
  CACHALOT_TRY(check_not_served(options));
  std::optional<os::FileLock> maker_lock;
  // Where there are no such locks, other processes cannot tell that it is being made.
  const auto lock_first = [&maker_lock](int fd) {
    Result<os::FileLock> lock = lock_as_maker(fd);
    if (lock) maker_lock.emplace(*std::move(lock));
  };
  CACHALOT_TRY_ASSIGN(MappedPool mapped, MappedPool::create(options, lock_first));
  Pool pool(std::move(mapped));
  pool.maker_lock_ = std::move(maker_lock);
  return pool;
}

Result<Pool> Pool::open(const std::vector<std::string>& paths, const OpenOptions& options) {
  Result<MappedPool> opened = MappedPool::open(paths, options);
  if (opened) return Pool(*std::move(opened));
  const Code code = opened.error().code;
  const bool may_be_in_the_making =
      code == Code::kNotAPool || code == Code::kBadInput || code == Code::kCorrupt;
  if (!may_be_in_the_making) return opened.error();
  switch (look_for_maker(paths[0])) {
    case Making::kUnderWay:
      return Error::make(Code::kBusy,
                         "%.120s: is being made by another process, which has not finished",
                         paths[0].c_str());
    case Making::kAbandoned:
      return Error::make(Code::kNotAPool,
                         "%.120s: has no header, and no process is making it: if its maker died, "
                         "`cachalot serve --create` "
                         "makes it anew with the same flags, or remove it",
                         paths[0].c_str());
    case Making::kAbsent:
    case Making::kNone:
      break;
  }
  // The maker may have finished in between.
  CACHALOT_TRY_ASSIGN(MappedPool made, MappedPool::open(paths, options));
  return Pool(std::move(made));
}

Status Pool::destroy(const std::vector<std::string>& paths) {
  CACHALOT_TRY_ASSIGN(Pool pool,
                      open(paths, {.huge_pages = false, .populate = false, .allow_foreign = true}));
  return pool.remove();
}

Status Pool::remove() {
  // Held until the names are gone, so that no keeper begins to serve in between.
  CACHALOT_TRY_ASSIGN(const os::FileLock succession, keeper_areas().lock_succession());
  CACHALOT_TRY_ASSIGN(const std::vector<os::FileLock> locks, keeper_areas().lock_all());
  CACHALOT_TRY(check_still_there());
  // Lost ones, too: some may be there.
  std::vector<Expansion> added;
  if (std::optional<ExpansionTable> table = state().read_expansions()) {
    added = std::move(table->expansions);
    added.insert(added.end(), table->lost.begin(), table->lost.end());
  }
  Status removed = mapped_.remove();
  for (const Expansion& device : added) {
    const Status disposed = dispose_of_expansion(access(), device);
    // Nothing of this pool is there.
    const bool is_gone = !disposed && (disposed.error().code == Code::kNotFound ||
                                       disposed.error().code == Code::kInvalidArgument);
    if (removed && !is_gone) removed = disposed;
  }
  return removed;
}

Result<PoolKeeper> Pool::serve(KeeperOptions options, Succession succession) {
  CACHALOT_TRY(keeper_areas().find_in_use(succession,
                                          options.host));  // before memory is touched for nothing
  CACHALOT_TRY_ASSIGN(PoolKeeper keeper, stand_by(std::move(options)));
  CACHALOT_TRY(serve(keeper, succession));
  return keeper;
}

Result<PoolKeeper> Pool::stand_by(KeeperOptions options) {
  return PoolKeeper::prepare(access(), std::move(options));
}

Status Pool::serve(PoolKeeper& standby, Succession succession) {
  CACHALOT_TRY(standby.announce(keeper_areas(), succession));
  maker_lock_.reset();
  return standby.take_over(keeper_areas());
}

Status Pool::check_added_devices() const {
  return pool::check_added_devices(access());
}

Result<PoolClient> Pool::attach(ClientOptions options, std::optional<std::uint32_t> slot) {
  const KeeperLife keeper = state().find_keeper();
  if (keeper != KeeperLife::kHere && keeper != KeeperLife::kElsewhere) {
    return Error::make(Code::kNoKeeper,
                       "%s: no keeper serves this pool: start one with `cachalot serve`",
                       mapped_.first_file().path().c_str());
  }
  // Between machines no doorbell rings.
  if (keeper == KeeperLife::kElsewhere) options.use_doorbells = false;
  CACHALOT_TRY(complete(options));
  const ClientSlots slots(access(), mapped_.first_file());
  return slot ? slots.attach_at(options, *slot) : slots.attach_anywhere(std::move(options));
}

// Fills in what identifies this process, and how the client learns that its keeper has ended.
Status Pool::complete(ClientOptions& options) const {
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  CACHALOT_TRY_ASSIGN(const os::Namespaces namespaces, os::namespaces());
  options.pid = os::own_pid();
  options.pid_namespace = namespaces.pid;
  options.time_namespace = namespaces.time;
  CACHALOT_TRY_ASSIGN(options.start_time, os::process_start_time(options.pid));
  options.boot_id_low = boot.low;
  options.boot_id_high = boot.high;
  if (options.keeper_has_ended) return {};
  if (access().geometry.hosts > 1) {
    options.keeper_has_ended = [keeper = state()](std::uint32_t) {
      return keeper.find_keeper() == KeeperLife::kEnded;
    };
  } else if (options.use_doorbells) {
    options.keeper_has_ended =
        [fd = mapped_.first_file().fd(),
         first = lock_offset(mapped_.first_file(), kFirstKeeperLock)](std::uint32_t area) {
          const auto holder = os::who_holds(fd, first + area);
          return holder && !holder->has_value();
        };
  }
  return {};
}

bool Pool::is_kept_by_maker() const {
  return !maker_lock_ && has_maker(mapped_.first_file());
}

}  // namespace cachalot::pool
