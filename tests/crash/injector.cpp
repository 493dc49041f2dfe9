#include "injector.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"

namespace cachalot::crash {
namespace {

using base::FailPoint;

constexpr std::uint64_t kPatienceMs = 30'000;  // of anything that must come; longer is a hang

constexpr FailPoint kClientPoints[] = {
    FailPoint::kWriteBulk,     FailPoint::kReadBulk,        FailPoint::kAttachLineWritten,
    FailPoint::kAttachSeen,    FailPoint::kAttachNamespace, FailPoint::kGrantAsked,
    FailPoint::kGrantTaken,    FailPoint::kPutStored,       FailPoint::kPutPosted,
    FailPoint::kPutAnswered,   FailPoint::kLookedUp,        FailPoint::kReadCopied,
    FailPoint::kReadValidated, FailPoint::kPinPublished,    FailPoint::kPinEnded,
    FailPoint::kEvictAsked,    FailPoint::kDetachDrained,   FailPoint::kDetachSaid};
constexpr FailPoint kKeeperPoints[] = {
    FailPoint::kSessionOpened,    FailPoint::kGrantPopped,    FailPoint::kGrantInLedger,
    FailPoint::kGrantAnswered,    FailPoint::kCommitChecked,  FailPoint::kEntryWritten,
    FailPoint::kSpillWritten,     FailPoint::kCommitInLedger, FailPoint::kCommitAnswered,
    FailPoint::kTombstoneWritten, FailPoint::kEvictionDone,   FailPoint::kSuspected,
    FailPoint::kReleased,         FailPoint::kDetachFreed,    FailPoint::kKeeperStopped};
constexpr FailPoint kTakeoverPoints[] = {
    FailPoint::kTakeoverAnnounced,  FailPoint::kTakeoverEntriesRead,
    FailPoint::kTakeoverLedgerRead, FailPoint::kTakeoverHalfSwept,
    FailPoint::kTakeoverSwept,      FailPoint::kTakeoverLedgerWritten,
    FailPoint::kTakeoverDone};

std::uint64_t now_ns() {
  return base::SteadyClock::read();
}

bool is_takeover(FailPoint point) {
  return std::find(std::begin(kTakeoverPoints), std::end(kTakeoverPoints), point) !=
         std::end(kTakeoverPoints);
}

}  // namespace

Injector::Injector(const Setting& setting, Arena& arena, std::uint64_t seed)
    : setting_(setting), arena_(arena), rng_(seed) {}

Injector::~Injector() {
  for (auto& child : children_) child.reset();
  if (pool_) (void)pool::Pool::destroy({setting_.path});
}

bool Injector::fault(const char* what) {
  arena_.fault("%s (%s %s at %s)", what, now_.victim == Victim::kClient ? "client" : "keeper",
               now_.action == Action::kKill ? "killed" : "stopped",
               base::fail_point_name(now_.point));
  return false;
}

bool Injector::begin() {
  pool::CreateOptions create;
  create.paths = {setting_.path};
  create.geometry.domain = setting_.domain;
  create.geometry.block_bytes = setting_.block_bytes;
  create.geometry.blocks = setting_.blocks;
  create.geometry.capacity_blocks = setting_.capacity;
  create.geometry.directory_slots = pool::rated_directory_slots(setting_.capacity);
  create.geometry.clients = kClients + 2;  // one may be held, and one is the operators'
  Result<pool::Pool> pool = pool::Pool::create(create);
  if (!pool) return fault(pool.error().message);
  pool_.emplace(*std::move(pool));
  if (!start_keeper() || !wait_for_rule(keeper_)) return false;
  for (std::uint32_t client = 0; client < kClients; ++client) {
    if (!start_client(client)) return false;
  }
  return check_recovery(now_ns());
}

bool Injector::start_client(std::uint32_t client) {
  Desk& desk = arena_.desks[client];
  desk.point = desk.reached = desk.must_end = 0;
  const std::uint64_t seed = rng_.next();
  Result<os::Child> child =
      os::Child::start([&, client, seed] { return run_client(setting_, arena_, client, seed); });
  if (!child) return fault(child.error().message);
  children_[client].emplace(*std::move(child));
  return true;
}

// Starts a keeper at the desk that is free.
bool Injector::start_keeper() {
  if (children_[keeper_]) keeper_ = keeper_ == kClients ? kClients + 1 : kClients;
  Desk& desk = arena_.desks[keeper_];
  desk.is_ready = desk.must_end = desk.reached = 0;
  const std::uint32_t number = keeper_;
  Result<os::Child> child =
      os::Child::start([&, number] { return run_keeper(setting_, arena_, number); });
  if (!child) return fault(child.error().message);
  children_[keeper_].emplace(*std::move(child));
  return true;
}

bool Injector::wait_for_rule(std::uint32_t desk) {
  for (const std::uint64_t end = now_ns() + kPatienceMs * 1'000'000; now_ns() < end; usleep(200)) {
    if (arena_.desks[desk].is_ready.load(std::memory_order_acquire) != 0) {
      ruled_ns_ = now_ns();
      return true;
    }
    if (has_faults()) return false;
  }
  return fault("a keeper does not begin to rule");
}

// What to do next: the points in turn, so that each has its share, and a random instant often; half
// of what hits clients is inside copies.
Injection Injector::choose() {
  if (setting_.only_keeper_kills) return {Victim::kKeeper, Action::kKill, FailPoint::kNone};
  const auto action = rng_.below(3) == 0 ? Action::kStop : Action::kKill;
  const std::uint64_t dice = rng_.below(100);
  const auto pick = [&](const auto& points) { return points[rng_.below(std::size(points))]; };
  if (dice < 16) return {Victim::kClient, action, FailPoint::kWriteBulk};
  if (dice < 30) return {Victim::kClient, action, FailPoint::kReadBulk};
  if (dice < 58) return {Victim::kClient, action, pick(kClientPoints)};
  if (dice < 66) return {Victim::kClient, action, FailPoint::kNone};
  if (dice < 86) return {Victim::kKeeper, action, pick(kKeeperPoints)};
  if (dice < 90) return {Victim::kKeeper, action, FailPoint::kNone};
  return {Victim::kKeeper, action, pick(kTakeoverPoints)};
}

void Injector::order(std::uint32_t actor, const Injection& injection) {
  Desk& desk = arena_.desks[actor];
  desk.reached.store(0);
  desk.countdown.store(static_cast<std::uint32_t>(1 + rng_.below(3)));
  desk.action.store(static_cast<std::uint32_t>(injection.action));
  desk.point.store(static_cast<std::uint32_t>(injection.point), std::memory_order_release);
}

bool Injector::wait_reached(Desk& desk, std::uint32_t actor, std::uint64_t patience_ms) {
  for (const std::uint64_t end = now_ns() + patience_ms * 1'000'000; now_ns() < end; usleep(100)) {
    if (desk.reached.load(std::memory_order_acquire) != 0) return wait_stopped(desk, actor);
    if (has_faults()) return false;
    siginfo_t info{};
    const auto pid = static_cast<id_t>(children_[actor]->pid());
    if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      return false;
  }
  if (desk.point.exchange(0) != 0) return false;  // withdrawn
  // It was just about to.
  while (desk.reached.load(std::memory_order_acquire) == 0 && !has_faults()) usleep(100);
  if (has_faults()) return false;
  return wait_stopped(desk, actor);
}

// A process that has reached its point says so before it stops itself. A SIGCONT in between is lost, and it would sleep for
// ever.
bool Injector::wait_stopped(const Desk& desk, std::uint32_t actor) {
  if (static_cast<Action>(desk.action.load(std::memory_order_relaxed)) != Action::kStop)
    return true;
  const auto pid = static_cast<id_t>(children_[actor]->pid());
  for (const std::uint64_t end = now_ns() + kPatienceMs * 1'000'000; now_ns() < end; usleep(100)) {
    siginfo_t info{};
    if (waitid(P_PID, pid, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid != 0) return true;
  }
  return fault("a process does not stop where it was to");
}

void Injector::count(const Injection& injection) {
  ++tally_.injected;
  ++tally_.by_kind[static_cast<std::size_t>(injection.victim)]
                  [static_cast<std::size_t>(injection.action)];
  ++tally_.by_point[static_cast<std::size_t>(injection.point)];
  tally_.in_copies +=
      injection.point == FailPoint::kWriteBulk || injection.point == FailPoint::kReadBulk;
}

bool Injector::inject() {
  now_ = choose();
  const bool ok = now_.victim == Victim::kClient ? inject_at_client(now_)
                  : is_takeover(now_.point)      ? inject_at_takeover(now_)
                                                 : inject_at_keeper(now_);
  return ok && !has_faults();
}

bool Injector::inject_at_client(const Injection& injection) {
  const bool needs_pins =
      injection.point == FailPoint::kPinPublished || injection.point == FailPoint::kPinEnded;
  const auto client = needs_pins ? 0u : static_cast<std::uint32_t>(rng_.below(kClients));
  if (injection.point == FailPoint::kNone) {
    usleep(static_cast<useconds_t>(rng_.below(2000)));
    children_[client]->send(injection.action == Action::kKill ? SIGKILL : SIGSTOP);
  } else {
    order(client, injection);
    if (!wait_reached(arena_.desks[client], client, 600)) {
      ++tally_.missed;
      return !has_faults();
    }
  }
  count(injection);
  const std::uint64_t since_ns = now_ns();
  if (injection.action == Action::kKill) {
    (void)children_[client]->wait();
    if (!start_client(client)) return false;
  } else {
    // Long enough to be suspected, now and then only just.
    usleep(static_cast<useconds_t>(setting_.suspect_after_ns / 1000 * (1 + rng_.below(2)) + 2000));
    children_[client]->send(SIGCONT);
  }
  return check_recovery(since_ns);
}

bool Injector::inject_at_keeper(const Injection& injection) {
  Desk& desk = arena_.desks[keeper_];
  const std::uint32_t old = keeper_;
  if (injection.point == FailPoint::kNone) {
    usleep(static_cast<useconds_t>(rng_.below(2000)));
    children_[old]->send(injection.action == Action::kKill ? SIGKILL : SIGSTOP);
  } else {
    order(old, injection);
    if (injection.point == FailPoint::kKeeperStopped) {
      desk.countdown.store(1);
      desk.must_end.store(1);
    }
    std::optional<std::uint32_t> stopped;
    if (injection.point == FailPoint::kSuspected || injection.point == FailPoint::kReleased) {
      desk.countdown.store(1);
      stopped = static_cast<std::uint32_t>(rng_.below(kClients));
      children_[*stopped]->send(SIGSTOP);
      usleep(static_cast<useconds_t>(setting_.suspect_after_ns / 1000 + 5000));
      children_[*stopped]->send(SIGCONT);
    }
    if (!wait_reached(desk, old, 600)) {
      ++tally_.missed;
      return !has_faults();
    }
  }
  count(injection);
  const std::uint64_t since_ns = now_ns();
  if (injection.action == Action::kKill) {
    (void)children_[old]->wait();
    children_[old].reset();
    return start_keeper() && wait_for_rule(keeper_) && check_recovery(since_ns);
  }
  // A successor begins while the old one sleeps; then that one wakes up in another's time.
  usleep(static_cast<useconds_t>(rng_.below(3000)));
  if (!start_keeper() || !wait_for_rule(keeper_)) return false;
  usleep(static_cast<useconds_t>(rng_.below(3000)));
  children_[old]->send(SIGCONT);
  return end_old_keeper(old) && check_recovery(since_ns);
}

// A keeper dies or stalls during its takeover; the next one does it again, and the one that stalled wakes
// up and goes on with it in another's time.
bool Injector::inject_at_takeover(const Injection& injection) {
  const std::uint64_t since_ns = now_ns();
  children_[keeper_]->send(SIGKILL);
  (void)children_[keeper_]->wait();
  children_[keeper_].reset();
  order(keeper_, injection);  // that desk's next process
  arena_.desks[keeper_].countdown.store(1);
  const std::uint32_t desk = keeper_;
  if (!start_keeper()) return false;
  if (!wait_reached(arena_.desks[desk], desk, kPatienceMs)) {
    return fault("a point of the takeover was not reached");
  }
  count(injection);
  if (injection.action == Action::kKill) {
    (void)children_[desk]->wait();
    children_[desk].reset();
    return start_keeper() && wait_for_rule(keeper_) && check_recovery(since_ns);
  }
  if (!start_keeper()) return false;
  // Now and then while the next one is at it, too.
  if (rng_.below(2) == 0 && !wait_for_rule(keeper_)) return false;
  usleep(static_cast<useconds_t>(rng_.below(3000)));
  children_[desk]->send(SIGCONT);
  return wait_for_rule(keeper_) && end_old_keeper(desk) && check_recovery(since_ns);
}

bool Injector::end_old_keeper(std::uint32_t desk) {
  const auto ended = children_[desk]->wait_for(kPatienceMs);
  if (!ended || !ended->has_value()) return fault("a keeper whose time is over goes on");
  if (!(*ended)->ok()) return fault("a keeper whose time was over ended badly");
  children_[desk].reset();
  return true;
}

// All clients go on, and blocks without a holder are free: nothing leaks, nothing hangs.
bool Injector::check_recovery(std::uint64_t since_ns) {
  std::array<std::uint64_t, kClients> before{};
  for (std::uint32_t i = 0; i < kClients; ++i) before[i] = arena_.desks[i].operations.load();
  std::string why;
  std::uint64_t went_on_ns = 0;
  std::uint32_t last = 0;  // client that went on
  for (const std::uint64_t end = now_ns() + kPatienceMs * 1'000'000; now_ns() < end; usleep(300)) {
    if (has_faults()) return false;
    bool all_go_on = true;
    for (std::uint32_t i = 0; i < kClients; ++i) {
      if (arena_.desks[i].operations.load() >= before[i] + 3) continue;
      all_go_on = false;
      last = i;
    }
    if (!all_go_on) {
      why = "a client hangs";
      continue;
    }
    if (went_on_ns == 0) went_on_ns = now_ns();
    if (is_accounted(why, false)) {
      note_recovery(since_ns, went_on_ns, last);
      return true;
    }
  }
  return fault(why.c_str());
}

void Injector::note_recovery(std::uint64_t since_ns, std::uint64_t went_on_ns, std::uint32_t last) {
  const std::uint64_t took_ns = now_ns() - since_ns;
  if (took_ns <= tally_.longest_recovery_ns) return;
  tally_.longest_recovery_ns = took_ns;
  const auto ms = [&](std::uint64_t at_ns) {
    return at_ns <= since_ns ? 0.0 : static_cast<double>(at_ns - since_ns) / 1e6;
  };
  char text[200];
  std::snprintf(
      text, sizeof text,
      "%s %s at %s; a keeper ruled after %.0f ms, client %u went on last, after %.0f",
      now_.victim == Victim::kClient ? "client" : "keeper",
      now_.action == Action::kKill ? "killed" : "stopped",
      now_.point == FailPoint::kNone ? "a random instant" : base::fail_point_name(now_.point),
      ms(ruled_ns_), last, ms(went_on_ns));
  tally_.longest_recovery = text;
}

bool Injector::is_accounted(std::string& why, bool is_quiet) const {
  using Counter = pool::KeeperCounter;
  pool::KeeperCounters counters;
  if (!pool_->state().read_keeper_counters(counters)) {
    why = "the keeper's counters cannot be read";
    return false;
  }
  std::uint64_t sum = 0;
  for (const Counter state : {Counter::kFree, Counter::kGranted, Counter::kLive, Counter::kLimbo,
                              Counter::kQuarantined, Counter::kBad}) {
    sum += counters[state];
  }
  const auto say = [&](const char* what) {
    why = std::string(what) + ": free " + std::to_string(counters[Counter::kFree]) + " granted " +
          std::to_string(counters[Counter::kGranted]) + " live " +
          std::to_string(counters[Counter::kLive]) + " limbo " +
          std::to_string(counters[Counter::kLimbo]) + " quarantined " +
          std::to_string(counters[Counter::kQuarantined]) + " bad " +
          std::to_string(counters[Counter::kBad]);
    return false;
  };
  if (sum != setting_.blocks) return say("the states do not add up");
  if (counters[Counter::kQuarantined] != 0) return say("blocks stay in quarantine");
  if (counters[Counter::kGranted] > kClients * kMaxGrants)
    return say("more is granted than may be");
  if (counters[Counter::kBad] != 0) return say("blocks have become bad");
  if (is_quiet && counters[Counter::kGranted] + counters[Counter::kLimbo] != 0)
    return say("blocks leaked");
  return true;
}

bool Injector::end() {
  for (std::uint32_t client = 0; client < kClients; ++client)
    arena_.desks[client].must_end.store(1);
  for (std::uint32_t client = 0; client < kClients; ++client) {
    const auto ended = children_[client]->wait_for(kPatienceMs);
    if (!ended || !ended->has_value() || !(*ended)->ok()) return fault("a client does not end");
  }
  std::string why;
  for (const std::uint64_t end = now_ns() + kPatienceMs * 1'000'000;; usleep(1000)) {
    if (is_accounted(why, true)) break;
    if (now_ns() > end) return fault(why.c_str());
  }
  arena_.desks[keeper_].must_end.store(1);
  const auto ended = children_[keeper_]->wait_for(kPatienceMs);
  if (!ended || !ended->has_value() || !(*ended)->ok()) return fault("the keeper does not end");
  return !has_faults();
}

}  // namespace cachalot::crash
