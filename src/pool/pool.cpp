#include "pool/pool.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <optional>
#include <system_error>
#include <thread>

#include "os/process.h"
#include "os/reserve.h"
#include "os/shared_file.h"
#include "pool/keeper/keeper_line.h"
#include "pool/lock_bytes.h"
#include "pool/making.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kKeeperNapNs = 5'000'000;
constexpr std::uint64_t kSuccessionPatienceMs = 5'000;

// A forked child of a keeper or client cannot reach the pool (MADV_DONTFORK): it has no part in the lock.
Result<os::FileLock> lock_byte(int fd, std::uint64_t offset) {
  return os::FileLock::try_lock(fd, offset, os::Forks::kLeave);
}
Result<os::FileLock> lock_succession(int fd) {
  return os::FileLock::lock_within(fd, kSuccessionLock, kSuccessionPatienceMs, os::Forks::kLeave);
}

Result<std::unique_ptr<memory::Domain>> make_domain(memory::DomainKind kind, const char* name) {
  switch (kind) {
    case memory::DomainKind::kCoherent:
      return memory::make_coherent_domain();
    case memory::DomainKind::kNoncoherent:
      return memory::make_noncoherent_domain();
    case memory::DomainKind::kLossy:
      break;
  }
  return Error::make(Code::kUnsupported, "%s: is a pool of a simulated coherence domain", name);
}

os::MapOptions map_options(bool huge_pages, bool populate, bool read_only) {
  os::MapOptions map;
  map.read_only = read_only;
  map.huge_pages = huge_pages;
  map.populate = populate;
  return map;
}

// Sees the processes of this machine end.
class HostEvidence final : public Evidence {
 public:
  HostEvidence(const os::Uuid& boot, const os::Namespaces& namespaces)
      : boot_(boot), namespaces_(namespaces) {}

  // Of a process of another machine, or of another pid or time namespace, nothing is known: this one
  // does not read the pid, or the start time, that the other one wrote. One that exited has left its cores,
  // and no core leaves a process before its write-combining buffers have drained: the way into the
  // kernel and to the next process takes locked instructions.
  bool has_exited(const ProcessIdentity& process) override {
    if (process.boot_id_low != boot_.low || process.boot_id_high != boot_.high ||
        process.pid_namespace != namespaces_.pid || process.time_namespace != namespaces_.time) {
      return false;
    }
    return !os::process_alive(process.pid, process.start_time);
  }

 private:
  os::Uuid boot_;
  os::Namespaces namespaces_;
};

rpc::Doorbell doorbell_at(const Access& access, std::uint64_t offset) {
  return rpc::Doorbell::at(access.region.at(offset));
}

// The slots of a host in the order in which a client tries them.
std::vector<std::uint32_t> slots_to_try(const Geometry& g, std::uint32_t host, bool is_operator) {
  const std::uint32_t first = host * g.clients_per_host();
  const std::uint32_t operators = first + g.clients_per_host() - 1;
  std::vector<std::uint32_t> slots;
  if (is_operator) slots.push_back(operators);
  for (std::uint32_t slot = first; slot < operators; ++slot) slots.push_back(slot);
  if (!is_operator && g.operator_clients() == 0) slots.push_back(operators);
  return slots;
}

// To touch a hole of a sparse copy, where no space is left, is death by SIGBUS, already when the header
// is read. Of a file that is no pool nothing is reserved.
Status fill_holes(const std::string& path, bool read_only, os::Owners owners) {
  const os::Access access = read_only ? os::Access::kReadOnly : os::Access::kReadWrite;
  CACHALOT_TRY_ASSIGN(const os::SharedFile file, os::SharedFile::open(path, access, owners));
  if (file.bytes() < memory::kStripeBytes || !os::has_holes(file.fd())) return {};
  std::uint64_t magic = 0;
  if (pread(file.fd(), &magic, sizeof magic, 0) != sizeof magic || magic != kMagic) {
    return Error::make(Code::kNotAPool, "%s: is not a pool: its magic is %016llx, not %016llx",
                       path.c_str(), static_cast<unsigned long long>(magic),
                       static_cast<unsigned long long>(kMagic));
  }
  if (read_only) {
    return Error::make(Code::kPermission,
                       "%s: is a sparse file, whose holes have to be filled before it is read, and "
                       "this user may not write to it",
                       path.c_str());
  }
  return os::fill_holes(file.fd(), file.path().c_str());
}

// A pool's other devices are found by way of device 0 alone.
Status check_first(const Header& first, const std::string& path) {
  if (first.device_index == 0) return {};
  const std::string suffix = "." + std::to_string(first.device_index);
  const std::string base =
      path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) : "";
  return Error::make(Code::kInvalidArgument,
                     "%s: is device %u of its pool: give its devices in order, device 0%s%s first",
                     path.c_str(), first.device_index, base.empty() ? "" : ", ",
                     base.empty() ? "" : (base + ",").c_str());
}

// Device `index` says that it is one, of the pool that device 0 says it is.
Status check_device(const Header& first, const Header& other, std::uint32_t index,
                    const char* name) {
  if (other.id == first.id && other.device_index == index) return {};
  if (!(other.id == first.id)) {
    return Error::make(Code::kInvalidArgument, "%s: is a device of another pool than the first one",
                       name);
  }
  return Error::make(Code::kInvalidArgument,
                     "%s: is device %u of its pool, not %u: give the devices in order", name,
                     other.device_index, index);
}

}  // namespace

// Renews a client while its engine computes.
class Renewer {
 public:
  Renewer(Client& client, std::uint64_t interval_ns)
      : thread_([this, &client, interval_ns](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          const auto interval = std::chrono::nanoseconds(interval_ns);
          while (!wake_.wait_for(lock, stop, interval, [] { return false; })) {
            if (stop.stop_requested()) return;
            client.renew();
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

PoolClient::PoolClient(os::FileLock lock) : lock_(std::move(lock)) {}
PoolClient::PoolClient(PoolClient&&) noexcept = default;
PoolClient& PoolClient::operator=(PoolClient&& from) noexcept {
  PoolClient taken(std::move(from));  // the previous client is detached at the end of this scope
  std::swap(lock_, taken.lock_);
  std::swap(clock_, taken.clock_);
  std::swap(waiter_, taken.waiter_);
  std::swap(client_, taken.client_);
  std::swap(renewer_, taken.renewer_);
  return *this;
}
PoolClient::~PoolClient() {
  if (client_ == nullptr) return;
  (void)detach();
  if (client_->may_still_store()) lock_.hold_until_exit();
}

Status PoolClient::detach() {
  const Status said = client_->detach();
  if (!client_->has_left()) return said;
  // What this client wrote into the slot's lines is complete (R4), and it writes no more of them (R1). The
  // kernel orders that before whatever the next owner of the lock does.
  renewer_.reset();
  lock_.unlock();
  return said;
}

std::vector<std::string> device_paths(const std::vector<std::string>& paths,
                                      std::uint32_t devices) {
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
    return Error::make(Code::kInvalidArgument,
                       "pool: %zu paths were given for %u devices: give one, or all", paths.size(),
                       geometry.devices);
  }
  if (geometry.device_bytes == 0) {
    CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  }
  CACHALOT_TRY(lay_out(geometry));
  CACHALOT_TRY_ASSIGN(auto domain, make_domain(geometry.domain, paths[0].c_str()));
  CACHALOT_TRY_ASSIGN(const os::Uuid uuid, os::random_uuid());
  std::optional<os::FileLock> maker_lock;
  // Where there are no such locks, other processes cannot tell that it is being made.
  const auto lock_first = [&maker_lock](int fd) {
    Result<os::FileLock> lock = lock_as_maker(fd);
    if (lock) maker_lock.emplace(*std::move(lock));
  };
  CACHALOT_TRY_ASSIGN(memory::DeviceSet devices,
                      memory::DeviceSet::create(
                          paths, geometry.device_bytes,
                          map_options(options.huge_pages, options.populate, false), lock_first));
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
  pool.maker_lock_ = std::move(maker_lock);
  return pool;
}

Result<Pool> Pool::open(const std::vector<std::string>& paths, const OpenOptions& options) {
  Result<Pool> opened = open_made(paths, options);
  if (opened || paths.empty()) return opened;
  const Code code = opened.error().code;
  if (code != Code::kNotAPool && code != Code::kBadInput && code != Code::kCorrupt) return opened;
  switch (look_for_maker(paths[0])) {
    case Making::kUnderWay:
      return Error::make(Code::kBusy,
                         "%.120s: is being made by another process, which has not finished",
                         paths[0].c_str());
    case Making::kAbandoned:
      return Error::make(
          Code::kNotAPool,
          "%.120s: has no header, and no process is making it: if its maker died, remove it",
          paths[0].c_str());
    case Making::kAbsent:
    case Making::kNone:
      break;
  }
  return open_made(paths, options);  // the maker may have finished in between
}

Result<Pool> Pool::open_made(const std::vector<std::string>& paths, const OpenOptions& options) {
  if (paths.empty()) return Error::make(Code::kInvalidArgument, "pool: no path was given");
  // The first device says how many there are and which domain they are read by; until then the
  // rules of the stricter domain hold, which are right in both.
  Header first;
  const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
  const os::Owners owners = options.allow_foreign ? os::Owners::kAny : os::Owners::kTrusted;
  CACHALOT_TRY(fill_holes(paths[0], options.read_only, owners));
  {
    CACHALOT_TRY_ASSIGN(
        const memory::DeviceSet probe,
        memory::DeviceSet::open({paths[0]}, map_options(false, false, options.read_only), owners));
    CACHALOT_TRY_ASSIGN(first,
                        read_header(*strict, probe.base(0), probe.bytes_each(), paths[0].c_str()));
  }
  CACHALOT_TRY(check_first(first, paths[0]));
  CACHALOT_TRY(lay_out(first.geometry));  // before its numbers are used
  const std::vector<std::string> all = device_paths(paths, first.geometry.devices);
  if (all.size() != first.geometry.devices) {
    return Error::make(Code::kInvalidArgument,
                       "%s: its pool has %u device(s), %zu paths were given", paths[0].c_str(),
                       first.geometry.devices, all.size());
  }
  CACHALOT_TRY_ASSIGN(auto domain, make_domain(first.geometry.domain, paths[0].c_str()));
  for (std::size_t i = 1; i < all.size(); ++i)
    CACHALOT_TRY(fill_holes(all[i], options.read_only, owners));
  CACHALOT_TRY_ASSIGN(
      memory::DeviceSet devices,
      memory::DeviceSet::open(
          all, map_options(options.huge_pages, options.populate, options.read_only), owners));
  CACHALOT_TRY(devices.require_bytes(first.geometry.device_bytes));
  for (std::uint32_t i = 1; i < devices.count(); ++i) {
    CACHALOT_TRY_ASSIGN(const Header other, read_header(*strict, devices.base(i),
                                                        devices.bytes_each(), all[i].c_str()));
    CACHALOT_TRY(check_device(first, other, i, all[i].c_str()));
  }
  Pool pool(std::move(devices), std::move(domain));
  CACHALOT_TRY_ASSIGN(Access access,
                      make_access(first.id, first.geometry, pool.devices_.view(), *pool.domain_));
  pool.access_ = std::make_unique<Access>(std::move(access));
  pool.created_unix_s_ = first.created_unix_s;
  return pool;
}

Status Pool::destroy(const std::vector<std::string>& paths) {
  CACHALOT_TRY_ASSIGN(Pool pool,
                      open(paths, {.huge_pages = false, .populate = false, .allow_foreign = true}));
  return pool.remove();
}

Status Pool::remove() {
  // Held until the names are gone, so that no keeper begins to serve in between.
  const int fd = devices_.file(0).fd();
  CACHALOT_TRY_ASSIGN(const os::FileLock succession, lock_succession(fd));
  std::vector<os::FileLock> locks;
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    Result<os::FileLock> lock = lock_byte(fd, kFirstKeeperLock + slot);
    if (!lock) {
      if (lock.error().code != Code::kBusy) return lock.error();
      return Error::make(Code::kBusy,
                         "%s: a keeper serves this pool: stop it first (`cachalot stop`)",
                         devices_.file(0).path().c_str());
    }
    locks.push_back(*std::move(lock));
  }
  CACHALOT_TRY(check_still_there());
  return devices_.remove();
}

Status Pool::check_still_there() const {
  for (std::uint32_t device = 0; device < devices_.count(); ++device) {
    const os::SharedFile& file = devices_.file(device);
    struct stat named {
    }, mapped{};
    if (fstat(file.fd(), &mapped) != 0) continue;
    const bool is_named = stat(file.path().c_str(), &named) == 0;
    // Not to be allowed to look, say, is no sign of anything.
    if (!is_named && errno != ENOENT && errno != ENOTDIR) continue;
    if (is_named && named.st_dev == mapped.st_dev && named.st_ino == mapped.st_ino) continue;
    return Error::make(Code::kStale, "%.120s: this file of the pool was removed meanwhile",
                       file.path().c_str());
  }
  return {};
}

// Each keeper area has a lock, which dies with the process that has it: the keeper that may rule holds the
// lock of the ruling area's. The succession lock is held from the look at the areas to the announcement,
// and again while the takeover is declared finished: so an announcing keeper knows whether the one
// before it has finished, that is, whose ledger counts. Not in between: a keeper that stalls in its
// takeover is seen to do so, and can be taken over from.
Result<PoolKeeper> Pool::serve(KeeperOptions options, Succession succession) {
  CACHALOT_TRY(find_areas_in_use(succession));  // before memory is touched for nothing
  CACHALOT_TRY_ASSIGN(PoolKeeper keeper, stand_by(std::move(options)));
  CACHALOT_TRY(serve(keeper, succession));
  return keeper;
}

Result<PoolKeeper> Pool::stand_by(KeeperOptions options) {
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  CACHALOT_TRY_ASSIGN(const os::Namespaces namespaces, os::namespaces());
  options.pid = os::own_pid();
  CACHALOT_TRY_ASSIGN(options.start_time, os::process_start_time(options.pid));
  options.boot_id_low = boot.low;
  options.boot_id_high = boot.high;
  if (options.version.empty()) options.version = CACHALOT_VERSION;
  if (!options.unix_s) {
    options.unix_s = [] { return static_cast<std::uint64_t>(std::time(nullptr)); };
  }
  options.takeover_threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  PoolKeeper waiting;
  waiting.clock_ = std::make_unique<base::SteadyClock>();
  waiting.evidence_ = std::make_unique<HostEvidence>(boot, namespaces);
  CACHALOT_TRY_ASSIGN(waiting.keeper_,
                      Keeper::prepare(*access_, options, *waiting.clock_, waiting.evidence_.get()));
  rpc::HostWaiter::Options naps;
  naps.nap_ns = kKeeperNapNs;
  naps.peer_ran_on = [keeper = waiting.keeper_.get()](int core) {
    return keeper->has_just_answered_on(core);
  };
  const rpc::Doorbell own = options.use_doorbells
                                ? doorbell_at(*access_, access_->layout.doorbell_page)
                                : rpc::Doorbell();
  waiting.waiter_ = std::make_unique<rpc::HostWaiter>(own, std::move(naps));
  return waiting;
}

Status Pool::serve(PoolKeeper& standby, Succession succession) {
  const int fd = devices_.file(0).fd();
  {
    CACHALOT_TRY_ASSIGN(const os::FileLock announcing, lock_succession(fd));
    CACHALOT_TRY_ASSIGN(const std::uint32_t in_use, find_areas_in_use(succession));
    // The area that announce() will take is one of those that are free; it is locked first.
    const Result<std::uint32_t> area = Keeper::next_area(*access_, in_use);
    if (!area) return area.error().code == Code::kBusy ? areas_in_use() : area.error();
    CACHALOT_TRY_ASSIGN(standby.lock_, lock_byte(fd, kFirstKeeperLock + *area));
    if (Status announced = standby.keeper_->announce(in_use); !announced) {
      standby.lock_.reset();
      return announced;
    }
  }
  maker_lock_.reset();
  standby.keeper_->take_over();
  CACHALOT_TRY(finish_takeover(*standby.keeper_));
  standby.keeper_->see_first_clients();
  if (!standby.keeper_->is_deposed()) return {};
  return Error::make(Code::kStale, "%s: another keeper took this pool over meanwhile",
                     devices_.file(0).path().c_str());
}

// A keeper that another one follows has nothing to finish, and does not wait for the lock.
Status Pool::finish_takeover(Keeper& keeper) const {
  constexpr std::uint32_t kMsBetweenLooks = 50;
  const int fd = devices_.file(0).fd();
  const std::uint64_t until_ns =
      CallTime::later(base::SteadyClock::read(), kSuccessionPatienceMs * 1'000'000);
  for (;;) {
    const Result<os::FileLock> finishing =
        os::FileLock::lock_within(fd, kSuccessionLock, kMsBetweenLooks, os::Forks::kLeave);
    if (finishing || keeper.has_successor()) {
      keeper.begin_to_serve();
      return {};
    }
    if (finishing.error().code != Code::kBusy || base::SteadyClock::read() >= until_ns) {
      return Error::make(Code::kTimeout, "%s: the keeper's takeover cannot be finished: %s",
                         devices_.file(0).path().c_str(), finishing.error().message);
    }
  }
}

// The areas whose keepers' processes still run, a bit each. @errors kBusy: one of them rules
Result<std::uint32_t> Pool::find_areas_in_use(Succession succession) const {
  const int fd = devices_.file(0).fd();
  const char* name = devices_.file(0).path().c_str();
  KeeperLine lines[kKeeperSlots];
  std::uint32_t highest_epoch = 0, in_use = 0;
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    lines[slot] = pool::read_keeper_line(*access_, slot);
    highest_epoch = std::max(highest_epoch, lines[slot].epoch);
  }
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder,
                        os::who_holds(fd, kFirstKeeperLock + slot));
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

// Of keepers that were taken over from and still run.
Error Pool::areas_in_use() const {
  std::string pids;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    const auto holder = os::who_holds(devices_.file(0).fd(), kFirstKeeperLock + area);
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
      devices_.file(0).path().c_str(), pids.c_str());
}

void PoolKeeper::poll_or_wait() {
  if (keeper_->poll() != 0) {
    idle_ = 0;
  } else {
    waiter_->wait(idle_++);
  }
}

// The clock is read where nothing is to do, and else now and then.
Status PoolKeeper::check_now_and_then(const std::function<Status()>& check) {
  constexpr std::uint32_t kRoundsBetweenLooks = 1024;
  constexpr std::uint64_t kIntervalNs = 1'000'000'000;
  if (!check || (idle_ == 0 && ++rounds_ % kRoundsBetweenLooks != 0)) return {};
  const std::uint64_t now_ns = clock_->now_ns();
  if (now_ns < next_check_ns_) return {};
  next_check_ns_ = now_ns + kIntervalNs;
  return check();
}

Status PoolKeeper::run(const std::atomic<bool>& stop, const std::function<Status()>& check) {
  while (!stop.load(std::memory_order_relaxed) && !keeper_->stop_requested()) {
    if (keeper_->is_deposed()) {
      return Error::make(Code::kStale,
                         "keeper: epoch %u is over, another keeper rules this pool since",
                         keeper_->epoch());
    }
    if (const Status checked = check_now_and_then(check); !checked) {
      keeper_->stop();
      return checked;
    }
    poll_or_wait();
  }
  keeper_->stop();
  return {};
}

// @errors kBusy: names the holder
Result<os::FileLock> Pool::lock_client_slot(std::uint32_t slot) const {
  const Geometry& g = access_->geometry;
  const char* name = devices_.file(0).path().c_str();
  if (slot >= g.clients) {
    return Error::make(Code::kInvalidArgument, "%s: client slot %u: the pool's last one is %u",
                       name, slot, g.clients - 1);
  }
  Result<os::FileLock> lock = lock_byte(devices_.file(0).fd(), kFirstClientLock + slot);
  if (lock || lock.error().code != Code::kBusy) return lock;
  ClientLine line{};
  access_->region.read_as(access_->layout.client_line(slot), line);
  return Error::make(Code::kBusy, "%s: client slot %u is attached already, by pid %u", name, slot,
                     line.pid);
}

// A slot that is taken, or held for a suspect, is passed over.
Result<PoolClient> Pool::attach_anywhere(ClientOptions options) {
  // All slots that are tried share the time of one.
  const std::uint64_t now_ns = base::SteadyClock::read();
  options.attach_by_ns =
      std::min(options.attach_by_ns, CallTime::later(now_ns, options.timeout_ns));
  const Geometry& g = access_->geometry;
  const char* name = devices_.file(0).path().c_str();
  CACHALOT_TRY(check_host(options.host));
  for (const std::uint32_t slot : slots_to_try(g, options.host, options.is_operator)) {
    Result<os::FileLock> lock = lock_client_slot(slot);
    if (!lock && lock.error().code != Code::kBusy) return lock.error();
    if (!lock) continue;
    Result<PoolClient> attached = attach_at(options, slot, *std::move(lock));
    if (attached || attached.error().code != Code::kBusy) return attached;
  }
  return Error::make(
      Code::kBusy,
      "%s: all %u client slots of host %u%s are taken, or held by suspects (`cachalot pool info`)",
      name, g.engine_clients() / g.hosts, options.host,
      options.is_operator ? ", and the operators'," : "");
}

// Locks on slots do not reach other machines, so two of them must not try one slot.
Status Pool::check_slot(const ClientOptions& options, std::uint32_t slot) const {
  const Geometry& g = access_->geometry;
  CACHALOT_TRY(check_host(options.host));
  const std::uint32_t first = options.host * g.clients_per_host();
  if (slot >= first && slot - first < g.clients_per_host()) return {};
  return Error::make(
      Code::kInvalidArgument, "%s: client slot %u is not one of host %u's, expected %u to %u",
      devices_.file(0).path().c_str(), slot, options.host, first, first + g.clients_per_host() - 1);
}

Status Pool::check_host(std::uint32_t host) const {
  if (host < access_->geometry.hosts) return {};
  return Error::make(Code::kInvalidArgument, "%s: host number %u is not below the pool's %u",
                     devices_.file(0).path().c_str(), host, access_->geometry.hosts);
}

Result<PoolClient> Pool::attach(ClientOptions options, std::optional<std::uint32_t> slot) {
  if (options.use_doorbells) {
    CACHALOT_TRY_ASSIGN(const bool is_locked, find_keeper_lock());
    if (!is_locked) {
      return Error::make(Code::kNoKeeper,
                         "%s: no keeper serves this pool: start one with `cachalot serve`",
                         devices_.file(0).path().c_str());
    }
  }
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  CACHALOT_TRY_ASSIGN(const os::Namespaces namespaces, os::namespaces());
  options.pid = os::own_pid();
  options.pid_namespace = namespaces.pid;
  options.time_namespace = namespaces.time;
  CACHALOT_TRY_ASSIGN(options.start_time, os::process_start_time(options.pid));
  options.boot_id_low = boot.low;
  options.boot_id_high = boot.high;
  // Locks are seen on their own machine only.
  if (access_->geometry.hosts == 1 && options.use_doorbells && !options.keeper_has_ended) {
    options.keeper_has_ended = [fd = devices_.file(0).fd()](std::uint32_t area) {
      const auto holder = os::who_holds(fd, kFirstKeeperLock + area);
      return holder && !holder->has_value();
    };
  }
  if (!slot) return attach_anywhere(options);
  CACHALOT_TRY(check_slot(options, *slot));
  CACHALOT_TRY_ASSIGN(os::FileLock lock, lock_client_slot(*slot));
  return attach_at(options, *slot, std::move(lock));
}

Result<PoolClient> Pool::attach_at(const ClientOptions& options, std::uint32_t slot,
                                   os::FileLock lock) {
  PoolClient attached(std::move(lock));
  attached.clock_ = std::make_unique<base::SteadyClock>();
  rpc::Doorbell own, keeper;
  if (options.use_doorbells) {
    own = doorbell_at(*access_, access_->layout.client_doorbell(slot));
    keeper = doorbell_at(*access_, access_->layout.doorbell_page);
  }
  rpc::HostWaiter::Options waits;
  waits.peer_ran_on = [keeper](int core) { return keeper.owner_ran_on(core); };
  attached.waiter_ = std::make_unique<rpc::HostWaiter>(own, std::move(waits));
  CACHALOT_TRY_ASSIGN(attached.client_,
                      Client::attach(*access_, slot, options, *attached.waiter_, *attached.clock_));
  if (options.renew_interval_ns != 0) {
    try {
      attached.renewer_ = std::make_unique<Renewer>(*attached.client_, options.renew_interval_ns);
    } catch (const std::system_error& error) {
      return Error::from_errno(error.code().value(),
                               "%s: client slot %u: the thread that renews it",
                               devices_.file(0).path().c_str(), slot);
    }
  }
  return attached;
}

bool Pool::is_kept_by_maker() const {
  return !maker_lock_ && has_maker(devices_.file(0).fd());
}

}  // namespace cachalot::pool
