#include "pool/keeper/service/keeper.h"

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/keeper/takeover/added_devices.h"

namespace cachalot::pool {

using base::FailPoint;

Keeper::Keeper(const Access& access, const KeeperOptions& options, base::Clock& clock,
               Evidence* evidence, eviction::PolicyKind policy)
    : access_(access),
      options_(options),
      reign_(access_, options_),
      namespaces_(access_, options_, reign_),
      blocks_(access_),
      directory_(access_, blocks_.table()),
      evictor_(access_, options_, policy, clock, namespaces_, blocks_, directory_, counters_),
      server_(access_.region, access.geometry.clients),
      sessions_(access_, options_, reign_, clock, blocks_, evictor_.open_chains(), server_,
                counters_),
      client_watch_(access_, options_, reign_, clock, evidence, sessions_),
      dispatcher_(access_, options_, reign_, namespaces_, blocks_, directory_, evictor_, sessions_,
                  server_, counters_),
      tend_timer_(options_, clock),
      takeover_(std::make_unique<Takeover>(access_, options_, reign_, clock, namespaces_, blocks_,
                                           directory_, evictor_, sessions_)) {}

Keeper::~Keeper() {
  stop();
}

Result<std::unique_ptr<Keeper>> Keeper::prepare(const Access& access, const KeeperOptions& options,
                                                base::Clock& clock, Evidence* evidence) {
  CACHALOT_TRY(options.check());
  CACHALOT_TRY_ASSIGN(const eviction::PolicyKind policy,
                      eviction::parse_pool_policy(options.policy));
  return std::unique_ptr<Keeper>(new Keeper(access, options, clock, evidence, policy));
}

Result<std::unique_ptr<Keeper>> Keeper::start(const Access& access, const KeeperOptions& options,
                                              base::Clock& clock, Evidence* evidence) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Keeper> keeper, prepare(access, options, clock, evidence));
  CACHALOT_TRY(keeper->announce(options.avoid_slots));
  keeper->take_over();
  keeper->begin_to_serve();
  keeper->see_first_clients();
  return keeper;
}

Status Keeper::announce(std::uint32_t avoid_slots) {
  if (!options_.without_lost_devices) CACHALOT_TRY(check_added_devices(access_));
  CACHALOT_TRY(reign_.announce(avoid_slots));
  directory_.rule(reign_.epoch());
  blocks_.rule(reign_.area());
  return {};
}

void Keeper::take_over() {
  dispatcher_.expansions().adopt();
  if (!takeover_->run()) be_deposed();
  if (!reign_.is_deposed()) evictor_.fit(blocks_.capacity());
  if (!reign_.is_deposed()) dispatcher_.contexts().adopt();
  takeover_times_ = takeover_->times();
  takeover_.reset();
}

void Keeper::begin_to_serve() {
  if (reign_.is_deposed()) return;
  if (has_successor()) return be_deposed();
  reign_.begin_to_serve();
  base::log(base::LogLevel::kInfo, "keeper",
            "rules with epoch %u: %u blocks live, %u free, %u quarantined", reign_.epoch(),
            blocks_.count(BlockState::kLive), blocks_.count(BlockState::kFree),
            blocks_.count(BlockState::kQuarantined));
}

void Keeper::see_first_clients() {
  end_last_flush();
  base::reach(FailPoint::kTakeoverDone);
  tend();
}

void Keeper::stop() {
  if (!reign_.is_serving()) return;
  reign_.stop_serving();
  tend();
  reign_.end();
  if (options_.flush) flush();
}

// The file has the last keeper's line, which says that all payloads are in the file. The first new block makes that false, and
// pages reach the file in any order. So this keeper's own line is written to the file before it serves.
void Keeper::end_last_flush() {
  if (reign_.is_deposed() || !reign_.predecessor().is_flushed || !options_.flush_page) return;
  const Status written = options_.flush_page(access_.layout.keeper_line(reign_.area()));
  if (written) return;
  base::log(
      base::LogLevel::kError, "keeper",
      "its line was not written back to the pool's file (%s): if the machine is restarted before "
      "this keeper has stopped in order, the next one may publish blocks that were overwritten",
      written.error().message);
}

// Only what was written back may be trusted without a look after the machine was restarted: Takeover.
void Keeper::flush() {
  const std::uint64_t began_ns = tend_timer_.now_ns();
  const Status flushed = options_.flush();
  if (!flushed) {
    base::log(base::LogLevel::kWarn, "keeper",
              "the pool was not written back (%s): after a restart of the machine the next keeper "
              "verifies all payloads",
              flushed.error().message);
    return;
  }
  reign_.be_flushed();
  // The line that says so, too. If it is lost, the next keeper verifies for nothing.
  (void)options_.flush();
  base::log(base::LogLevel::kInfo, "keeper", "the pool was written back to its files in %.1f s",
            static_cast<double>(tend_timer_.now_ns() - began_ns) * 1e-9);
}

bool Keeper::TendTimer::is_due() {
  if (++polls_ % options_.polls_between_clock_reads != 0) return false;
  const std::uint64_t now_ns = clock_.now_ns();
  if (now_ns < next_ns_) return false;
  next_ns_ = now_ns + options_.tend_interval_ns;
  return true;
}

std::uint32_t Keeper::poll() {
  if (reign_.is_deposed() || reign_.epoch() == 0) return 0;
  const std::uint32_t served = server_.poll(dispatcher_);
  if (tend_timer_.is_due()) tend();
  return served;
}

// A keeper that slept for long may wake up under another keeper. Until it looks, it can write
// lines that do not count (their epoch is void) and that the ruling keeper's scrubbing repairs.
void Keeper::tend() {
  if (reign_.is_deposed()) return;
  if (reign_.is_serving() && has_successor()) return be_deposed();
  if (reign_.is_serving()) counters_[KeeperCounter::kRepairedLines] += reign_.mend_line();
  client_watch_.look();
  blocks_.settle_limbo();
  if (reign_.is_serving()) {
    evictor_.expire();
    dispatcher_.contexts().expire(tend_timer_.now_ns());
    dispatcher_.retained().expire(tend_timer_.now_ns());
    counters_[KeeperCounter::kRepairedLines] += directory_.scrub(options_.scrub_lines);
    counters_[KeeperCounter::kRepairedLines] += dispatcher_.expansions().mend();
  }
  reign_.publish_counters(counters());
  if (reign_.is_serving()) namespaces_.publish_counters();
  if (storage_desk_ != nullptr) reign_.publish_storage(storage_desk_->state());
  refusal_log_.tell(counters_, tend_timer_.now_ns());
}

void Keeper::be_deposed() {
  sessions_.close_mailboxes();
  reign_.be_deposed();
}

const KeeperCounters& Keeper::counters() {
  counters_[KeeperCounter::kFree] = blocks_.count(BlockState::kFree);
  counters_[KeeperCounter::kGranted] = blocks_.count(BlockState::kGranted);
  counters_[KeeperCounter::kLive] = blocks_.count(BlockState::kLive);
  counters_[KeeperCounter::kLimbo] = blocks_.count(BlockState::kLimbo);
  counters_[KeeperCounter::kQuarantined] = blocks_.count(BlockState::kQuarantined);
  counters_[KeeperCounter::kBad] = blocks_.count(BlockState::kBad);
  counters_[KeeperCounter::kAbsent] = blocks_.count(BlockState::kAbsent);
  counters_[KeeperCounter::kClients] = sessions_.open_count();
  counters_[KeeperCounter::kNamespaces] = namespaces_.count();
  counters_[KeeperCounter::kMalformed] = server_.malformed();
  return counters_;
}

std::uint64_t Keeper::memory_bytes() const {
  const BlockTable& table = blocks_.table();
  return table.memory_bytes() + directory_.memory_bytes() + table.size() * std::uint64_t{16};
}

bool Keeper::is_valid() const {
  // Each eviction has one reason.
  const std::uint64_t evictions =
      counters_[KeeperCounter::kCapacityEvictions] + counters_[KeeperCounter::kBucketEvictions] +
      counters_[KeeperCounter::kExpired] + counters_[KeeperCounter::kRequestedEvictions];
  return evictions == counters_[KeeperCounter::kEvictions] && blocks_.table().is_valid() &&
         directory_.is_valid() && evictor_.is_valid() &&
         blocks_.count(BlockState::kLive) <= blocks_.capacity();
}

}  // namespace cachalot::pool
