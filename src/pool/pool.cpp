#include "pool/pool.h"

#include <time.h>

#include "os/process.h"

namespace cachalot::pool {
namespace {

// Byte numbers of the locks on device 0's file; far behind any byte that exists.
constexpr std::uint64_t kKeeperLock = std::uint64_t{1} << 62;
constexpr std::uint64_t kFirstClientLock = kKeeperLock + 1;

constexpr std::uint64_t kKeeperNapNs = 5'000'000;

Result<std::unique_ptr<memory::Domain>> make_domain(memory::DomainKind kind, const char* name) {
  switch (kind) {
    case memory::DomainKind::kCoherent: return memory::make_coherent_domain();
    case memory::DomainKind::kNoncoherent: return memory::make_noncoherent_domain();
    case memory::DomainKind::kLossy: break;
  }
  return Error::make(Code::kUnsupported, "%s: is a pool of a simulated coherence domain", name);
}

os::MapOptions map_options(bool huge_pages, bool populate) {
  os::MapOptions map;
  map.huge_pages = huge_pages;
  map.populate = populate;
  return map;
}

rpc::Doorbell doorbell_at(const Access& access, std::uint64_t offset) {
  return rpc::Doorbell(reinterpret_cast<std::atomic<std::uint32_t>*>(access.region.at(offset)));
}

// Device `index` says that it is one, of the pool that device 0 says it is.
Status check_device(const Header& first, const Header& other, std::uint32_t index, const char* name) {
  if (other.id == first.id && other.device_index == index) return {};
  if (!(other.id == first.id)) {
    return Error::make(Code::kInvalidArgument, "%s: is a device of another pool than the first one", name);
  }
  return Error::make(Code::kInvalidArgument, "%s: is device %u of its pool, not %u: give the devices in order",
                     name, other.device_index, index);
}

}  // namespace

std::vector<std::string> device_paths(const std::vector<std::string>& paths, std::uint32_t devices) {
  std::vector<std::string> all = paths;
  if (paths.size() != 1) return all;
  for (std::uint32_t i = 1; i < devices; ++i) all.push_back(paths[0] + "." + std::to_string(i));
  return all;
}

std::vector<std::string> Pool::paths() const {
  std::vector<std::string> all;
  for (std::uint32_t i = 0; i < devices_.count(); ++i) all.push_back(devices_.file(i).path());
  return all;
}

Result<Pool> Pool::create(const CreateOptions& options) {
  Geometry geometry = options.geometry;
  if (options.paths.empty()) {
    return Error::make(Code::kInvalidArgument, "pool: no path was given");
  }
  const std::vector<std::string> paths = device_paths(options.paths, geometry.devices);
  if (paths.size() != geometry.devices) {
    return Error::make(Code::kInvalidArgument, "pool: %zu paths were given for %u devices: give one, or all",
                       paths.size(), geometry.devices);
  }
  if (geometry.device_bytes == 0) {
    CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  }
  CACHALOT_TRY(lay_out(geometry));
  CACHALOT_TRY_ASSIGN(auto domain, make_domain(geometry.domain, paths[0].c_str()));
  CACHALOT_TRY_ASSIGN(const os::Uuid uuid, os::random_uuid());
  CACHALOT_TRY_ASSIGN(memory::DeviceSet devices,
                      memory::DeviceSet::create(paths, geometry.device_bytes,
                                                map_options(options.huge_pages, options.populate)));
  Pool pool(std::move(devices), std::move(domain));
  Result<Access> access =
      make_access({uuid.low, uuid.high}, geometry, pool.devices_.view(), *pool.domain_);
  if (!access) {
    (void)pool.devices_.remove();
    return access.error();
  }
  pool.access_ = std::make_unique<Access>(*std::move(access));
  pool.created_unix_s_ = static_cast<std::uint64_t>(time(nullptr));
  format_pool(*pool.access_, pool.created_unix_s_);
  return pool;
}

Result<Pool> Pool::open(const std::vector<std::string>& paths, const OpenOptions& options) {
  if (paths.empty()) return Error::make(Code::kInvalidArgument, "pool: no path was given");
  // The first device says how many there are and which domain they are read by; until then the
  // rules of the stricter domain hold, which are right in both.
  Header first;
  const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
  {
    CACHALOT_TRY_ASSIGN(const memory::DeviceSet probe,
                        memory::DeviceSet::open({paths[0]}, map_options(false, false)));
    CACHALOT_TRY_ASSIGN(first, read_header(*strict, probe.base(0), probe.bytes_each(), paths[0].c_str()));
  }
  CACHALOT_TRY(lay_out(first.geometry));  // before its numbers are used
  const std::vector<std::string> all = device_paths(paths, first.geometry.devices);
  if (all.size() != first.geometry.devices) {
    return Error::make(Code::kInvalidArgument, "%s: its pool has %u devices, %zu paths were given",
                       paths[0].c_str(), first.geometry.devices, all.size());
  }
  CACHALOT_TRY_ASSIGN(auto domain, make_domain(first.geometry.domain, paths[0].c_str()));
  CACHALOT_TRY_ASSIGN(memory::DeviceSet devices,
                      memory::DeviceSet::open(all, map_options(options.huge_pages, options.populate)));
  CACHALOT_TRY(devices.require_bytes(first.geometry.device_bytes));
  for (std::uint32_t i = 1; i < devices.count(); ++i) {
    CACHALOT_TRY_ASSIGN(const Header other, read_header(*strict, devices.base(i), devices.bytes_each(), all[i].c_str()));
    CACHALOT_TRY(check_device(first, other, i, all[i].c_str()));
  }
  if (first.device_index != 0) {
    return Error::make(Code::kInvalidArgument, "%s: is device %u of its pool: name device 0 first",
                       paths[0].c_str(), first.device_index);
  }
  Pool pool(std::move(devices), std::move(domain));
  CACHALOT_TRY_ASSIGN(Access access, make_access(first.id, first.geometry, pool.devices_.view(), *pool.domain_));
  pool.access_ = std::make_unique<Access>(std::move(access));
  pool.created_unix_s_ = first.created_unix_s;
  return pool;
}

Status Pool::destroy(const std::vector<std::string>& paths) {
  CACHALOT_TRY_ASSIGN(Pool pool, open(paths, {.huge_pages = false, .populate = false}));
  // Held until the names are gone, so that nobody begins to serve in between.
  Result<os::FileLock> lock = os::FileLock::try_lock(pool.devices_.file(0).fd(), kKeeperLock);
  if (!lock) {
    if (lock.error().code != Code::kBusy) return lock.error();
    return Error::make(Code::kBusy, "%s: a keeper serves this pool: stop it first (`cachalot stop`)",
                       paths[0].c_str());
  }
  return pool.devices_.remove();
}

Result<PoolKeeper> Pool::serve(KeeperOptions options) {
  Result<os::FileLock> lock = os::FileLock::try_lock(devices_.file(0).fd(), kKeeperLock);
  if (!lock) {
    if (lock.error().code != Code::kBusy) return lock.error();
    KeeperLine line{};
    read_keeper_line(line);
    return Error::make(Code::kBusy, "%s: has a keeper already: pid %u", devices_.file(0).path().c_str(),
                       line.pid);
  }
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  options.pid = os::own_pid();
  CACHALOT_TRY_ASSIGN(options.start_time, os::process_start_time(options.pid));
  options.boot_id_low = boot.low;
  options.boot_id_high = boot.high;

  PoolKeeper serving(*std::move(lock));
  serving.clock_ = std::make_unique<base::SteadyClock>();
  rpc::HostWaiter::Options waiting;
  waiting.nap_ns = kKeeperNapNs;
  const rpc::Doorbell own =
      options.use_doorbells ? doorbell_at(*access_, access_->layout.doorbell_page) : rpc::Doorbell();
  serving.waiter_ = std::make_unique<rpc::HostWaiter>(own, waiting);
  CACHALOT_TRY_ASSIGN(serving.keeper_, Keeper::start(*access_, options, *serving.clock_));
  return serving;
}

void PoolKeeper::run(const std::atomic<bool>& stop) {
  std::uint32_t idle = 0;
  while (!stop.load(std::memory_order_relaxed) && !keeper_->stop_requested()) {
    if (keeper_->poll() != 0) {
      idle = 0;
    } else {
      waiter_->wait(idle++);
    }
  }
  keeper_->stop();
}

Result<os::FileLock> Pool::lock_client_slot(std::uint32_t host, std::optional<std::uint32_t> wanted,
                                            std::uint32_t& slot) const {
  const Geometry& g = access_->geometry;
  const int fd = devices_.file(0).fd();
  const char* name = devices_.file(0).path().c_str();
  if (wanted) {
    slot = *wanted;
    if (slot >= g.clients) {
      return Error::make(Code::kInvalidArgument, "%s: client slot %u is not below the pool's %u", name, slot, g.clients);
    }
    Result<os::FileLock> lock = os::FileLock::try_lock(fd, kFirstClientLock + slot);
    if (lock || lock.error().code != Code::kBusy) return lock;
    ClientLine line{};
    access_->region.read_as(access_->layout.client_line(slot), line);
    return Error::make(Code::kBusy, "%s: client slot %u is attached already, by pid %u", name, slot, line.pid);
  }
  if (host >= g.hosts) {
    return Error::make(Code::kInvalidArgument, "%s: host number %u is not below the pool's %u", name, host, g.hosts);
  }
  const std::uint32_t per_host = g.clients / g.hosts;
  for (slot = host * per_host; slot < (host + 1) * per_host; ++slot) {
    Result<os::FileLock> lock = os::FileLock::try_lock(fd, kFirstClientLock + slot);
    if (lock || lock.error().code != Code::kBusy) return lock;
  }
  return Error::make(Code::kBusy, "%s: all %u client slots of host %u are taken", name, per_host, host);
}

Result<PoolClient> Pool::attach(ClientOptions options, std::optional<std::uint32_t> slot) {
  if (!keeper_is_locked() && options.use_doorbells) {
    return Error::make(Code::kNoKeeper, "%s: no keeper serves this pool: start one with `cachalot serve`",
                       devices_.file(0).path().c_str());
  }
  std::uint32_t taken = 0;
  CACHALOT_TRY_ASSIGN(os::FileLock lock, lock_client_slot(options.host, slot, taken));
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  options.pid = os::own_pid();
  CACHALOT_TRY_ASSIGN(options.start_time, os::process_start_time(options.pid));
  options.boot_id_low = boot.low;
  options.boot_id_high = boot.high;

  PoolClient attached(std::move(lock));
  attached.clock_ = std::make_unique<base::SteadyClock>();
  const rpc::Doorbell own = options.use_doorbells
                                ? doorbell_at(*access_, access_->layout.client_doorbell(taken))
                                : rpc::Doorbell();
  attached.waiter_ = std::make_unique<rpc::HostWaiter>(own, rpc::HostWaiter::Options{});
  CACHALOT_TRY_ASSIGN(attached.client_, Client::attach(*access_, taken, options, *attached.waiter_, *attached.clock_));
  return attached;
}

bool Pool::keeper_is_locked() const {
  const auto holder = os::who_holds(devices_.file(0).fd(), kKeeperLock);
  return holder && holder->has_value();
}

bool Pool::read_keeper_line(KeeperLine& line) const {
  const KeeperView view = keeper_view();
  return view.epoch != 0 && access_->region.read_as(access_->layout.keeper_line(view.keeper), line);
}

bool Pool::read_keeper_counters(KeeperCounters& counters) const {
  const KeeperView view = keeper_view();
  return view.epoch != 0 &&
         counters.read(access_->region, access_->layout.keeper_counters(view.keeper));
}

}  // namespace cachalot::pool
