#include "client/session.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "client/fork_guard.h"
#include "pool/making.h"

namespace cachalot::client {

Session::Session(pool::Pool pool, pool::PoolClient client, std::shared_ptr<Counters> counters,
                 kv::Gpus::Open open_gpu, std::uint32_t chains, bool counts_prompts)
    : pool_(std::move(pool)),
      client_(std::move(client)),
      gpus_(pool_.access().view, std::move(open_gpu)),
      forks_(fork_generation()),
      writes_checksums_(client_->writes_checksums()),
      verifies_checksums_(client_->verifies_checksums()),
      counters_(std::move(counters)),
      prompts_(*counters_, counts_prompts),
      last_uses_(chains) {
  pool::MappedExpansions* const expansions = pool_.expansions();
  if (expansions == nullptr) return;
  (void)expansions->listen([this](const pool::MappedExpansions::Range& range) {
    return gpus_.add_pool(range.data, range.bytes);
  });
  client_.set_idle_work([this] {
    if (!try_lock()) return;  // the call that holds it does the same
    client_.client().return_inaccessible();
    unlock();
  });
}

namespace {

// A session reads the pool, and copies into it, without the pool's client.
void add_to(pool::ClientCounters& all, const Statistics& own) {
  using pool::ClientCounter;
  all[ClientCounter::kLookups] += own.lookups;
  all[ClientCounter::kLookedUpBlocks] += own.looked_up_blocks;
  all[ClientCounter::kHitBlocks] += own.hit_blocks;
  all[ClientCounter::kReadBlocks] += own.loaded_blocks;
  all[ClientCounter::kReadBytes] += own.loaded_bytes;
  all[ClientCounter::kStaleReads] += own.stale_blocks;
  all[ClientCounter::kDamagedReads] += own.damaged_blocks;
  all[ClientCounter::kWrittenBytes] += own.stored_bytes;
  all[ClientCounter::kPrompts] += own.prompts;
  all[ClientCounter::kPromptBlocks] += own.prompt_blocks;
  all[ClientCounter::kUsedPoolBlocks] += own.used_pool_blocks;
  all[ClientCounter::kUsedPeerBlocks] += own.used_peer_blocks;
  all[ClientCounter::kUsedStorageBlocks] += own.used_storage_blocks;
}

// Not every part of the pool that refuses a client knows its path.
Error of_pool(const std::string& path, const Error& error) {
  if (std::string_view(error.message).find(path) != std::string_view::npos) return error;
  Error named = Error::make(error.code, "%.100s: %s", path.c_str(), error.message);
  named.os_error = error.os_error;
  named.detail = error.detail;
  return named;
}

// Waits for a pool that another process is making, or makes anew. Its file is there before the pool is.
Result<pool::Pool> open_made_pool(const ClientOptions& options) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::uint64_t until_ns = now_ns + std::min(options.keeper_timeout_ns, ~now_ns);
  for (;;) {
    Result<pool::Pool> pool =
        pool::Pool::open(options.pool, {.allow_foreign = options.allow_foreign_pool});
    const bool is_in_the_making =
        !pool && (pool.error().code == Code::kBusy ||
                  (pool.error().code == Code::kNotAPool &&
                   pool::look_for_maker(options.pool.front()) == pool::Making::kAbandoned));
    if (!is_in_the_making || base::SteadyClock::read() >= until_ns) return pool;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

Result<std::shared_ptr<Session>> Session::open(
    const ClientOptions& options, const std::string& fingerprint, const std::string& name,
    kv::Gpus::Open open_gpu, const std::function<Status(const pool::Geometry&)>& fits,
    std::uint32_t chains) {
  CACHALOT_TRY_ASSIGN(pool::Pool pool, open_made_pool(options));
  const std::string& path = options.pool.front();  // Pool::open() has seen that there is one
  if (const Status fit = fits(pool.access().geometry); !fit) return of_pool(path, fit.error());
  pool::ClientOptions attach;
  attach.fingerprint = fingerprint;
  attach.name = name;
  attach.host = options.host;
  attach.grant_target = options.grant_blocks;
  attach.timeout_ns = options.keeper_timeout_ns;
  attach.recovery_ns = options.recovery_ns;
  attach.pins = options.pinned_reads;
  attach.verify_checksums = attach.write_checksums = options.checksums;
  const auto counters = std::make_shared<Counters>();
  attach.add_counters = [counters](pool::ClientCounters& all) { add_to(all, counters->read()); };
  Result<pool::PoolClient> client = pool.attach(attach, options.slot);
  if (!client) return of_pool(path, client.error());
  // A forked child releases nothing: thread, mappings and slot belong to the parent.
  const auto end = [](Session* session) {
    if (fork_generation() == session->forks_) delete session;
  };
  return std::shared_ptr<Session>(new Session(std::move(pool), *std::move(client), counters,
                                              std::move(open_gpu), chains, !options.counts_prompts),
                                  end);
}

Session::~Session() {
  client_.set_idle_work({});
  if (pool_.expansions() != nullptr) (void)pool_.expansions()->listen({});
  if (!gpus_.check_released()) kv::keep_until_exit(std::make_shared<pool::Pool>(std::move(pool_)));
}

bool Session::is_forked() const {
  return fork_generation() != forks_;
}

Status Session::check_process() const {
  if (!is_forked()) return {};
  return Error::make(
      Code::kUnsupported,
      "client: this process was forked from the one that attached: attach again in the child");
}

Status Session::check_usable() const {
  CACHALOT_TRY(check_process());
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

void Session::find_each(std::span<const BlockHash> hashes, std::span<bool> is_published) const {
  const std::uint32_t namespace_id = client_.client().namespace_id();
  pool::DirectoryReader(pool_.access()).find_each(hashes, namespace_id, is_published);
}

pool::ValidatedRead Session::begin_read(std::span<const BlockHash> hashes,
                                        std::span<pool::Found> room) const {
  const std::uint32_t namespace_id = client_.client().namespace_id();
  return pool::ValidatedRead::look_up(pool_.access(), hashes, namespace_id, room,
                                      verifies_checksums_);
}

// --- The lock ------------------------------------------------------------------------------------

bool Session::lock(const Deadline& deadline) {
  if (!turn_.lock(deadline)) return false;
  take_late();
  client_->set_deadline(deadline.at_ns());
  return true;
}

bool Session::try_lock() {
  if (!turn_.try_lock()) return false;
  take_late();
  return true;
}

void Session::unlock() {
  const std::uint64_t count = client_->counters()[pool::ClientCounter::kReattachments];
  reattachments_.store(count, std::memory_order_relaxed);
  turn_.unlock();
}

void Session::take_late() {
  std::vector<pool::Found> hits;
  std::vector<std::uint64_t> pins;
  {
    const std::lock_guard lock(late_mutex_);
    hits.swap(late_hits_);
    pins.swap(late_unpins_);
  }
  for (const std::uint64_t pin : pins) client_->unpin(pin);
  for (const pool::Found& found : hits) client_->report_hit(found);
}

void Session::report_hits(std::span<const pool::Found> deepest) {
  if (deepest.empty()) return;
  if (try_lock()) {
    for (const pool::Found& found : deepest) {
      last_uses_.add({found.entry.block, found.entry.generation}, base::SteadyClock::read());
      client_->report_hit(found);
    }
    return unlock();
  }
  const std::lock_guard lock(late_mutex_);
  const std::size_t room = kMostLateHits - late_hits_.size();
  const std::span<const pool::Found> kept = deepest.first(std::min(room, deepest.size()));
  late_hits_.insert(late_hits_.end(), kept.begin(), kept.end());
}

void Session::report_beginning(const pool::Found& deepest) {
  if (try_lock()) {
    const bool is_known = last_uses_.has_recent({deepest.entry.block, deepest.entry.generation},
                                                base::SteadyClock::read());
    unlock();
    if (is_known) return;
  }
  report_hits({&deepest, 1});
}

Result<std::uint64_t> Session::pin() {
  const Turn turn(*this, {});
  CACHALOT_TRY(check_usable());
  return client_->pin();
}

// Does nothing after the detach: slot and line may belong to another client.
void Session::unpin(std::uint64_t pin) {
  if (try_lock()) {
    if (check_usable()) client_->unpin(pin);
    return unlock();
  }
  const std::lock_guard lock(late_mutex_);
  late_unpins_.push_back(pin);
}

// --- Storing -------------------------------------------------------------------------------------

namespace {

// Maps an error to kTimeout if the call's deadline caused it.
Error in_time(const Error& error, const Deadline& deadline) {
  const bool is_about_time =
      error.code == Code::kNoKeeper || error.code == Code::kBusy || error.code == Code::kTimeout;
  if (!is_about_time || !deadline.is_over()) return error;
  if (error.code == Code::kTimeout)
    // The message names the timeout already
    return Error::make(Code::kTimeout, "store: %.400s", error.message);
  return Error::make(Code::kTimeout, "store: the time given has passed: %.300s", error.message);
}

Error no_turn(const char* what = "store") {
  return Error::make(
      Code::kTimeout,
      "%s: the time given has passed while another thread's call waited for the keeper", what);
}

}  // namespace

Result<pool::Reservation> Session::reserve(std::uint32_t blocks, const Deadline& deadline) {
  const Turn turn(*this, deadline);
  if (!turn) return no_turn();
  Result<pool::Reservation> reserved = client_->reserve(blocks);
  if (!reserved) return in_time(reserved.error(), deadline);
  return reserved;
}

Result<pool::OpenReservation> Session::begin_write(std::uint32_t blocks, const Deadline& deadline) {
  const Turn turn(*this, deadline);
  if (!turn) return no_turn();
  Result<pool::Reservation> reserved = client_->reserve(blocks);
  if (!reserved) return in_time(reserved.error(), deadline);
  return (*std::move(reserved)).begin();
}

Status Session::commit(const BlockHash* parent, pool::WrittenReservation reservation,
                       std::span<const pool::WrittenBlock> blocks,
                       std::span<pool::Verdict> verdicts, const Deadline& deadline, bool goes_on) {
  const Turn turn(*this, deadline);
  if (!turn) return no_turn();
  const std::span<const pool::BlockUse> uses = reservation.uses();
  const bool is_any = !blocks.empty() && blocks.size() <= uses.size();
  const pool::BlockUse last = is_any ? uses[blocks.size() - 1] : pool::BlockUse{};
  const Status committed =
      client_->commit(parent, std::move(reservation), blocks, verdicts, goes_on);
  if (!committed) return in_time(committed.error(), deadline);
  if (is_any && verdicts[blocks.size() - 1] == pool::Verdict::kCommitted)
    last_uses_.add(last, base::SteadyClock::read());
  return {};
}

Result<std::uint32_t> Session::evict(const BlockHash& hash, const Deadline& deadline) {
  const Turn turn(*this, deadline);
  if (!turn) return no_turn();
  CACHALOT_TRY(check_usable());
  return client_->requests().evict(hash);
}

Result<pool::StorageAnswer> Session::ask_storage(std::span<const BlockHash> hashes,
                                                 std::uint32_t flags, const Deadline& deadline) {
  CACHALOT_TRY(check_process());
  const Turn turn(*this, deadline);
  if (!turn) return no_turn("storage");
  CACHALOT_TRY(check_usable());
  return client_->requests().ask_storage(hashes, flags);
}

namespace {

Result<Context> context_of(const Result<pool::ContextAnswer>& answer) {
  if (!answer) return answer.error();
  return Context{answer->handle, answer->expires_unix_s, answer->blocks};
}

}  // namespace

Result<Context> Session::create_context(const BlockHash& last, std::uint64_t seconds) {
  CACHALOT_TRY(check_process());
  const Turn turn(*this, Deadline{});
  if (!turn) return no_turn("context");
  CACHALOT_TRY(check_usable());
  return context_of(client_->requests().create_context(last, seconds));
}

Result<Context> Session::renew_context(std::uint64_t handle, std::uint64_t seconds) {
  CACHALOT_TRY(check_process());
  const Turn turn(*this, Deadline{});
  if (!turn) return no_turn("context");
  CACHALOT_TRY(check_usable());
  return context_of(client_->requests().renew_context(handle, seconds));
}

Result<Context> Session::retain(std::string_view session, const BlockHash& last,
                                std::uint64_t seconds) {
  CACHALOT_TRY(check_process());
  const Turn turn(*this, Deadline{});
  if (!turn) return no_turn("retain");
  CACHALOT_TRY(check_usable());
  return context_of(client_->requests().retain(session, last, seconds));
}

Status Session::drop_context(std::uint64_t handle) {
  CACHALOT_TRY(check_process());
  const Turn turn(*this, Deadline{});
  if (!turn) return no_turn("context");
  CACHALOT_TRY(check_usable());
  return client_->requests().drop_context(handle);
}

void Session::note_damage(const pool::Entry& entry) {
  if (damaged_.add(entry)) Counters::add(counters_->damaged_blocks, 1);
}

bool Session::has_damaged(const BlockHash& hash) const {
  const std::optional<pool::Entry> entry = damaged_.find(hash);
  if (!entry) return false;
  pool::KeeperView view;
  pool::Found found;
  return lookup({&hash, 1}, view, {&found, 1}) == 1 && pool::same_entry(found.entry, *entry);
}

Result<bool> Session::drop_damaged(const BlockHash& hash, const Deadline& deadline) {
  const std::optional<pool::Entry> entry = damaged_.find(hash);
  pool::KeeperView view;
  pool::Found found;
  if (lookup({&hash, 1}, view, {&found, 1}) == 0) {
    damaged_.forget(hash);
    return true;
  }
  if (!entry || !pool::same_entry(found.entry, *entry)) return false;
  const Result<std::uint32_t> dropped = evict(hash, deadline);
  if (!dropped && dropped.error().code != Code::kNotFound) return dropped.error();
  damaged_.forget(hash);
  return true;
}

Status Session::close() {
  is_closed_.store(true, std::memory_order_relaxed);
  const Turn turn(*this, {});
  const Status left = client_.detach();
  if (!left && left.error().code == Code::kIo) return left;  // check_released() would say less
  CACHALOT_TRY(gpus_.check_released());
  return left;
}

}  // namespace cachalot::client
