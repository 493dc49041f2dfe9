#include "engine/session.h"

#include "base/clock.h"
#include "engine/fork_guard.h"

namespace cachalot::engine {

Deadline Deadline::after(std::uint64_t timeout_ns) {
  Deadline deadline;
  const std::uint64_t now_ns = base::SteadyClock::read();
  deadline.at_ns_ = timeout_ns > kNoTimeout - now_ns ? kNoTimeout : now_ns + timeout_ns;
  return deadline;
}

bool Deadline::is_over() const { return at_ns_ != kNoTimeout && base::SteadyClock::read() >= at_ns_; }

Status Deadline::check(const char* what) const {
  if (!is_over()) return {};
  return Error::make(Code::kTimeout, "%s: the time given has passed", what);
}

Session::Session(pool::Pool pool, pool::PoolClient client)
    : pool_(std::move(pool)),
      client_(std::move(client)),
      forks_(fork_generation()),
      writes_checksums_(client_.client().writes_checksums()),
      verifies_checksums_(client_.client().verifies_checksums()) {}

Result<std::unique_ptr<Session>> Session::open(const ClientOptions& options, const std::string& fingerprint) {
  CACHALOT_TRY_ASSIGN(pool::Pool pool, pool::Pool::open(options.pool));
  pool::ClientOptions attach;
  attach.fingerprint = fingerprint;
  attach.host = options.host;
  attach.grant_target = options.grant_blocks;
  attach.timeout_ns = options.keeper_timeout_ns;
  attach.recovery_ns = options.recovery_ns;
  attach.verify_checksums = attach.write_checksums = options.checksums;
  CACHALOT_TRY_ASSIGN(pool::PoolClient client, pool.attach(attach, options.slot));
  return std::unique_ptr<Session>(new Session(std::move(pool), std::move(client)));
}

Status Session::check_usable() const {
  if (fork_generation() != forks_) {
    return Error::make(Code::kUnsupported,
                       "client: this process was forked from the one that attached: attach again in the child");
  }
  if (is_closed_.load(std::memory_order_relaxed)) {
    return Error::make(Code::kInvalidArgument, "client: it has detached from its pool");
  }
  return {};
}

std::size_t Session::lookup(std::span<const BlockHash> hashes, pool::KeeperView& view,
                            std::span<pool::Found> found) const {
  const std::uint32_t namespace_id = client_.client().namespace_id();
  return pool::DirectoryReader(pool_.access()).lookup(hashes, namespace_id, view, found);
}

void Session::report_hit(const pool::Found& deepest) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  std::unique_lock waiting(reports_mutex_);
  if (!lock.owns_lock()) {
    if (reports_.size() < pool::kUsesInHead) reports_.push_back(deepest);
    return;
  }
  std::vector<pool::Found> late;
  late.swap(reports_);
  waiting.unlock();
  for (const pool::Found& found : late) client().report_hit(found);
  client().report_hit(deepest);
}

Result<pool::Reservation> Session::reserve(std::uint32_t blocks) {
  const std::lock_guard lock(mutex_);
  return client().reserve(blocks);
}

Status Session::begin_copies(pool::Reservation& reservation) {
  const std::lock_guard lock(mutex_);
  return client().begin_copies(reservation);
}

Status Session::commit(const BlockHash* parent, pool::Reservation reservation,
                       std::span<const pool::WrittenBlock> blocks, std::span<pool::Verdict> verdicts) {
  // Before the lock: who attaches again holds it, and waits for the open reservations.
  client().end_copies(reservation);
  const std::lock_guard lock(mutex_);
  return client().commit(parent, std::move(reservation), blocks, verdicts);
}

void Session::give_back(pool::Reservation reservation) {
  client().end_copies(reservation);
  const std::lock_guard lock(mutex_);
  client().give_back(std::move(reservation));
}

std::uint64_t Session::reattachments() const {
  const std::lock_guard lock(mutex_);
  return client_.client().counters()[pool::ClientCounter::kReattachments];
}

Status Session::close() {
  if (is_closed_.exchange(true, std::memory_order_relaxed)) return {};
  const std::lock_guard lock(mutex_);
  return client().detach();
}

}  // namespace cachalot::engine
