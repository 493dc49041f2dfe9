#include "pool/pool_keeper.h"

#include <algorithm>
#include <ctime>
#include <thread>
#include <utility>

#include "os/mapping.h"
#include "os/process.h"
#include "pool/client/call_time.h"
#include "pool/expansion/expansion_memory.h"
#include "pool/hosts/host_evidence.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kKeeperNapNs = 5'000'000;

}  // namespace

Result<PoolKeeper> PoolKeeper::prepare(const Access& access, KeeperOptions options) {
  CACHALOT_TRY_ASSIGN(const HostEvidence evidence, HostEvidence::make());
  options.pid = os::own_pid();
  CACHALOT_TRY_ASSIGN(options.start_time, os::process_start_time(options.pid));
  options.boot_id_low = evidence.boot().low;
  options.boot_id_high = evidence.boot().high;
  options.pid_namespace = evidence.namespaces().pid;
  options.time_namespace = evidence.namespaces().time;
  if (options.version.empty()) options.version = CACHALOT_VERSION;
  if (!options.unix_s) {
    options.unix_s = [] { return static_cast<std::uint64_t>(std::time(nullptr)); };
  }
  options.flush = [&access]() -> Status {
    for (std::byte* const base : access.view.bases)
      CACHALOT_TRY(os::flush_to_file(base, access.view.bytes_each, "pool"));
    if (access.expansions == nullptr) return {};
    return access.expansions->flush();
  };
  options.flush_page = [&access](std::uint64_t offset) -> Status {
    return os::flush_to_file(access.region.at(offset), kPageBytes, "pool");
  };
  options.takeover_threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  PoolKeeper waiting;
  waiting.host_ = options.host;
  waiting.clock_ = std::make_unique<base::SteadyClock>();
  waiting.evidence_ = std::make_unique<HostEvidence>(evidence);
  CACHALOT_TRY_ASSIGN(waiting.keeper_,
                      Keeper::prepare(access, options, *waiting.clock_, waiting.evidence_.get()));
  rpc::HostWaiter::Options naps;
  naps.nap_ns = kKeeperNapNs;
  naps.peer_ran_on = [keeper = waiting.keeper_.get()](int core) {
    return keeper->has_just_answered_on(core);
  };
  const rpc::Doorbell own = options.use_doorbells
                                ? rpc::Doorbell::at(access.region.at(access.layout.doorbell_page))
                                : rpc::Doorbell();
  waiting.waiter_ = std::make_unique<rpc::HostWaiter>(own, std::move(naps));
  return waiting;
}

Status PoolKeeper::announce(const KeeperAreas& areas, Succession succession) {
  CACHALOT_TRY_ASSIGN(const os::FileLock announcing, areas.lock_succession());
  CACHALOT_TRY_ASSIGN(const std::uint32_t in_use, areas.find_in_use(succession, host_));
  // The area that the keeper will take is locked first.
  CACHALOT_TRY_ASSIGN(const std::uint32_t area, areas.find_free(in_use));
  CACHALOT_TRY_ASSIGN(lock_, areas.lock(area));
  const Status announced = keeper_->announce(in_use);
  if (!announced) lock_.reset();
  return announced;
}

Status PoolKeeper::take_over(const KeeperAreas& areas) {
  keeper_->take_over();
  CACHALOT_TRY(finish_takeover(areas));
  keeper_->see_first_clients();
  if (!keeper_->is_deposed()) return {};
  return Error::make(Code::kStale, "%s: another keeper took this pool over meanwhile",
                     areas.pool_name());
}

// A keeper that another one follows has nothing to finish, and does not wait for the lock.
Status PoolKeeper::finish_takeover(const KeeperAreas& areas) {
  constexpr std::uint32_t kMsBetweenLooks = 50;
  const std::uint64_t until_ns = CallTime::later(
      base::SteadyClock::read(), std::uint64_t{KeeperAreas::kPatienceMs} * 1'000'000);
  for (;;) {
    const Result<os::FileLock> finishing = areas.lock_succession(kMsBetweenLooks);
    if (finishing || keeper_->has_successor()) {
      keeper_->begin_to_serve();
      return {};
    }
    if (finishing.error().code != Code::kBusy || base::SteadyClock::read() >= until_ns) {
      return Error::make(Code::kTimeout, "%s: the keeper's takeover cannot be finished: %s",
                         areas.pool_name(), finishing.error().message);
    }
  }
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
  if (idle_ == 0 && ++rounds_ % kRoundsBetweenLooks != 0) return {};
  const std::uint64_t now_ns = clock_->now_ns();
  if (now_ns < next_check_ns_) return {};
  next_check_ns_ = now_ns + kIntervalNs;
  keeper_->look_after_names();
  return check ? check() : Status();
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

}  // namespace cachalot::pool
