#include "storage/store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "block_hash/block_hash.h"

namespace cachalot::storage {
namespace {

using base::LogLevel;

constexpr std::uint64_t kTryPauseNs = Breaker::kFirstPauseNs;
constexpr std::uint64_t kMostLearned = 1u << 18;  // objects, of a backend that is not listed
constexpr int kRoundsBetweenLooks = 5;
constexpr std::uint64_t kFirstAnswerNs = 5'000'000'000;

void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

// Failures of an object, not of the backend.
bool is_about_object(const Status& status) {
  if (status) return true;
  const Code code = status.error().code;
  return code == Code::kNotFound || code == Code::kInvalidArgument || code == Code::kCorrupt;
}

// A full disk, or no descriptor is left to open a file with (which the operating system has said).
bool is_full(const Status& status) {
  return !status && status.error().code == Code::kNoSpace;
}
bool makes_room(const Status& status) {
  if (!is_full(status)) return false;
  const std::uint32_t os_error = status.error().os_error;
  return os_error == 0 || os_error == ENOSPC || os_error == EDQUOT;
}

bool is_refused(const Status& status) {
  return !status && status.error().code == Code::kPermission;
}

// What a backend says it has read: only the seal proves it.
Status check_seal(const Get& get) {
  CACHALOT_TRY(check_head(get.head, get.key));
  // A backend with a key gives plaintext.
  if ((get.head.flags & kObjectEncrypted) != 0) {
    return Error::make(Code::kCorrupt,
                       "object %.32s…: is encrypted, and no storage key file was given",
                       block_hash::to_hex(get.key.block).c_str());
  }
  std::vector<Bytes> body(get.room.begin(), get.room.end());
  if (!get.tokens.empty()) body.push_back(std::as_bytes(std::span(get.tokens)));
  const bool has_sizes =
      get.head.payload_bytes == bytes_of(get.room) && get.head.tokens == get.tokens.size();
  if (has_sizes && seal_of(get.head, body) == get.head.seal) return {};
  return Error::make(Code::kCorrupt, "object %.32s…: has other bytes than were stored",
                     block_hash::to_hex(get.key.block).c_str());
}

// Objects that are listed before their parents. Each waits for its parent alone, so that a listing takes the time of its
// objects, in whatever order they come.
class Orphans {
 public:
  explicit Orphans(Catalogue& catalogue) : catalogue_(catalogue) {}

  // Adds it to the catalogue, and what has waited for it; or it waits.
  void add(const ObjectHead& head) {
    if (catalogue_.add(head)) {
      settle_below(head.key);
    } else {
      waiting_[{head.key.space, head.parent}].push_back(head);
    }
  }
  // A parent may also have come by a put meanwhile.
  void settle_late() {
    std::vector<ObjectKey> there;
    for (const auto& [parent, heads] : waiting_) {
      if (catalogue_.contains(parent)) there.push_back(parent);
    }
    for (const ObjectKey& parent : there) settle_below(parent);
  }
  std::vector<ObjectKey> keys() const {
    std::vector<ObjectKey> keys;
    for (const auto& [parent, heads] : waiting_) {
      for (const ObjectHead& head : heads) keys.push_back(head.key);
    }
    return keys;
  }

 private:
  void settle_below(const ObjectKey& parent) {
    std::vector<ObjectKey> parents{parent};
    while (!parents.empty()) {
      auto below = waiting_.extract(parents.back());
      parents.pop_back();
      if (below.empty()) continue;
      for (const ObjectHead& head : below.mapped()) {
        if (catalogue_.add(head)) parents.push_back(head.key);
      }
    }
  }

  Catalogue& catalogue_;
  std::unordered_map<ObjectKey, std::vector<ObjectHead>> waiting_;  // by parent
};

}  // namespace

std::unique_ptr<Store> Store::make(std::unique_ptr<Backend> backend, const StoreOptions& options,
                                   const std::function<bool()>& is_stopped) {
  auto store = std::unique_ptr<Store>(new Store(std::move(backend), options));
  // A server that hangs is told from one that has much to list.
  Status listed = store->traits().is_shared
                      ? store->ask(std::min(options.list_timeout_ns, kFirstAnswerNs))
                      : Status();
  store->is_listed_ = !store->traits().is_listed;
  if (listed && !store->is_listed_) listed = store->fill_catalogue(true, is_stopped);
  if (!listed) {
    base::log(LogLevel::kWarn, "storage", "%s: what is stored there is not known yet: %s",
              store->traits().name.c_str(), listed.error().message);
  }
  // No call has worked yet: the first failure is an outage.
  store->is_silent_ = !listed;
  if (!listed) store->breaker_.admit_trial();
  store->report(listed);
  store->thread_ = std::thread([&it = *store] { it.run(); });
  return store;
}

Store::~Store() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  if (const auto cancel = backend_->cancel_signal()) cancel->raise();
  wake_.notify_one();
  thread_.join();
}

// Objects may be listed before their parents: an object that was replaced is younger than what is below it.
Status Store::fill_catalogue(bool is_first, const std::function<bool()>& is_stopped) {
  const std::uint64_t deadline_ns = base::SteadyClock::read() + list_timeout_ns_;
  Orphans orphans(catalogue_);
  const std::uint64_t mark = catalogue_.additions();
  const std::vector<ObjectKey> known = catalogue_.keys();
  std::unordered_set<ObjectKey> found;
  std::optional<ObjectKey> last;
  const auto is_over = [&] { return ends_ || (is_stopped && is_stopped()); };
  const Status listed = backend_->list(
      [&](const ObjectHead& head) {
        if (!known.empty()) found.insert(head.key);
        last = head.key;
        // What is known is not touched: a listing is no use.
        if (!catalogue_.contains(head.key)) orphans.add(head);
        return !is_over();
      },
      deadline_ns);
  orphans.settle_late();
  CACHALOT_TRY(listed);
  if (is_over()) return {};
  if (last) remember(*last);
  is_listed_ = true;
  forget_lost(known, mark, found);
  std::vector<ObjectKey> gone;
  if (is_first) gone = orphans.keys();  // later, the parent may be a put in flight
  bool fits = true;
  const std::vector<ObjectKey> victims = catalogue_.take_victims(0, 0, nullptr, fits);
  gone.insert(gone.end(), victims.begin(), victims.end());
  if (!gone.empty() && !traits().is_shared) (void)backend_->remove(gone, deadline_ns);
  return {};
}

// What was known before the listing, and is not in it, is gone: a server may have lost its memory. Meanwhile the archiver
// puts again what is forgotten already. Parents come first, so the lost part of a chain goes in one step; what is put
// again after it was added after the mark, and stays.
// @param before  parents first
void Store::forget_lost(std::span<const ObjectKey> before, std::uint64_t mark,
                        const std::unordered_set<ObjectKey>& listed) {
  std::uint64_t lost = 0;
  for (const ObjectKey& key : before) {
    if (!listed.contains(key)) lost += catalogue_.remove(key, mark).size();
  }
  if (lost == 0) return;
  add(counters_.missing_objects, lost);
  gaps_.fetch_add(1, std::memory_order_release);
  if (!lost_line_.is_due()) return;
  base::log(LogLevel::kWarn, "storage", "%s: %s there no more", traits().name.c_str(),
            base::counted(lost, "object is", "objects are").c_str());
}

// --- Outages ---------------------------------------------------------------------------------------

void Store::keep_error(const Status& status) {
  if (status) return;
  const std::lock_guard lock(error_mutex_);
  last_error_ = status.error().message;
}

std::string Store::last_error() const {
  const std::lock_guard lock(error_mutex_);
  return last_error_;
}

void Store::report(const Status& outcome) {
  if (!outcome && outcome.error().code == Code::kCancelled) return;  // says nothing of the backend
  keep_error(outcome);
  switch (breaker_.report(outcome.ok(), base::SteadyClock::read())) {
    case OutageChange::kNone:
      if (outcome || !is_up() || !failing_line_.is_due()) break;
      base::log(LogLevel::kWarn, "storage",
                "%s: a call has failed, the third in a row ends its use: %s", traits().name.c_str(),
                outcome.error().message);
      break;
    case OutageChange::kBegan:
      if (outage_line_.is_due()) {
        base::log(LogLevel::kWarn, "storage",
                  "%s: is out of use, and tried again until it works: %s", traits().name.c_str(),
                  outcome.error().message);
      }
      if (traits().is_shared && traits().is_listed) is_listed_ = false;
      break;
    case OutageChange::kEnded:
      if (outage_line_.is_due())
        base::log(LogLevel::kWarn, "storage", "%s: is back in use", traits().name.c_str());
      break;
  }
}

// A failure is the backend's if none of a call's objects was answered; else it is the object's.
// @param failure  of the call's objects, the first one
void Store::report_items(const Status& failure, bool has_answered) {
  if (failure || !has_answered) return report(failure);
  report({});
  keep_error(failure);
  if (failure.error().code == Code::kCancelled || !failing_line_.is_due()) return;
  base::log(LogLevel::kWarn, "storage", "%s: objects have failed in a call that did others: %s",
            traits().name.c_str(), failure.error().message);
}

// @param refusal  of a put; OK: one was taken
void Store::report_puts(const Status& refusal) {
  keep_error(refusal);
  const OutageChange change = put_breaker_.report(refusal.ok(), base::SteadyClock::read());
  if (change == OutageChange::kNone || !outage_line_.is_due()) return;
  base::log(LogLevel::kWarn, "storage", "%s: %s%s", traits().name.c_str(),
            refusal ? "takes new objects again"
                    : "refuses new objects, which are tried again within a minute: ",
            refusal ? "" : refusal.error().message);
}

// A full disk may stay full for ever: a line a minute.
void Store::tell_full(const Status& status) {
  keep_error(status);
  if (!full_line_.is_due()) return;
  const bool replaces = makes_room(status) && traits().reuses_space && catalogue_.objects() != 0;
  base::log(LogLevel::kWarn, "storage", "%s: is full, %s: %s", traits().name.c_str(),
            replaces ? "so the coldest objects make room" : "so nothing new is stored there",
            status.error().message);
}

void Store::tell_damaged(const Status& status) {
  if (!damaged_line_.is_due()) return;
  base::log(
      LogLevel::kError, "storage", "%s: %s: it and all below it are removed; %llu damaged so far",
      traits().name.c_str(), status.error().message,
      static_cast<unsigned long long>(counters_.damaged_objects.load(std::memory_order_relaxed)));
}

void Store::run() {
  std::uint64_t pause_ns = kTryPauseNs;
  int rounds = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, std::chrono::nanoseconds(pause_ns), [&] { return ends_.load(); });
    if (ends_) return;
    lock.unlock();
    const std::uint64_t begin_ns = base::SteadyClock::read();
    check_place();
    if (++rounds % kRoundsBetweenLooks == 0) look_for_loss();
    if (!is_gone_ && (!is_listed_ || !is_up() || !put_breaker_.is_closed())) try_backend();
    // A listing that fails after a long time does not keep the backend busy.
    pause_ns = std::max(kTryPauseNs, base::SteadyClock::read() - begin_ns);
    lock.lock();
  }
}

// Files that were removed are written and read as before: only a look says that they are gone.
void Store::check_place() {
  const Status checked = backend_->check();
  if (is_gone_.exchange(!checked) == !checked) return;
  if (!checked) add(disappearances_, 1);
  keep_error(checked);
  if (!outage_line_.is_due()) return;
  base::log(LogLevel::kWarn, "storage", "%s: is %s%s", traits().name.c_str(),
            checked ? "back in use" : "out of use: ", checked ? "" : checked.error().message);
}

// Whether the backend answers at all.
Status Store::ask(std::uint64_t timeout_ns) {
  const ObjectKey none{};
  bool is_there = false;
  return backend_->exists({&none, 1}, {&is_there, 1}, base::SteadyClock::read() + timeout_ns);
}

void Store::remember(const ObjectKey& key) {
  if (!traits().is_shared || !traits().is_listed) return;
  const std::lock_guard lock(witness_mutex_);
  witness_ = key;
}

// A server that restarts between two calls, or is emptied, fails no call. Without the witness all is read again.
void Store::look_for_loss() {
  if (!traits().is_shared || !is_listed_ || !is_up()) return;
  std::optional<ObjectKey> witness;
  {
    const std::lock_guard lock(witness_mutex_);
    witness = witness_;
  }
  if (!witness || !catalogue_.contains(*witness)) return;
  bool is_there = true;
  const Status asked =
      backend_->exists({&*witness, 1}, {&is_there, 1}, base::SteadyClock::read() + kTryPauseNs);
  if (!asked || is_there || !catalogue_.contains(*witness)) return;
  is_listed_ = false;
  const std::lock_guard lock(witness_mutex_);
  if (witness_ == witness) witness_.reset();
}

void Store::try_backend() {
  if (!ask_pause_.is_over()) return;
  const Status answered = ask(kTryPauseNs);
  if (!answered) {
    report(answered);
    if (is_refused(answered)) return ask_pause_.grow();
    is_silent_ = true;
    breaker_.forget_pause();
    put_breaker_.forget_pause();
    return;
  }
  ask_pause_.reset();
  for (Breaker* const breaker : {&breaker_, &put_breaker_}) {
    if (breaker->is_due(base::SteadyClock::read())) breaker->admit_trial();
  }
  if (is_listed_ || !is_up() || !list_pause_.is_over()) return;
  if (!fill_catalogue(false, {})) return list_pause_.grow();
  // What has refused calls and lists all the same ends its outage with a call.
  if (std::exchange(is_silent_, false)) report({});
  list_pause_.reset();
  if (ends_ || !known_line_.is_due()) return;
  base::log(LogLevel::kWarn, "storage", "%s: what is stored there is known now: %s",
            traits().name.c_str(), base::counted(catalogue_.objects(), "object").c_str());
}

// --- Put -------------------------------------------------------------------------------------------

// Leaves the first of `puts` that the budget admits: blocks after a refused one would have no parent.
void Store::keep_budget(std::vector<Put>& puts) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  const auto refused = std::find_if(puts.begin(), puts.end(), [&](const Put& put) {
    return !budget_.admits(put.head.body_bytes(), now_ns);
  });
  add(counters_.over_budget_puts, static_cast<std::uint64_t>(puts.end() - refused));
  puts.erase(refused, puts.end());
}

// A server that evicts by itself would take any block: leaves of the store's choice go before.
void Store::limit_by_server(std::uint64_t bytes, std::uint64_t deadline_ns) {
  const std::lock_guard lock(space_mutex_);
  if (const std::uint64_t now_ns = base::SteadyClock::read(); space_.is_due(bytes, now_ns)) {
    const Result<Space> space = backend_->space(std::min(deadline_ns, now_ns + kTryPauseNs));
    space_.take(space ? *space : Space{}, catalogue_.bytes(), catalogue_.objects(), now_ns);
  }
  catalogue_.limit_bytes(space_.limit(catalogue_.bytes(), bytes));
  space_.add(bytes);
}

// Leaves as many of `puts` as there is room for. The room is made before anything is written: the body of a
// victim may lie where a new one goes.
void Store::make_room(std::vector<Put>& puts, const ObjectKey* deepest, std::uint64_t deadline_ns) {
  std::uint64_t bytes = 0;
  for (const Put& put : puts) bytes += put.head.body_bytes();
  if (traits().evicts && !puts.empty()) limit_by_server(bytes, deadline_ns);
  std::vector<ObjectKey> victims;
  for (bool fits = false; !puts.empty() && !fits;) {
    const std::vector<ObjectKey> some = catalogue_.take_victims(bytes, puts.size(), deepest, fits);
    victims.insert(victims.end(), some.begin(), some.end());
    if (fits) break;
    add(counters_.refused_puts, 1);
    bytes -= puts.back().head.body_bytes();
    puts.pop_back();
  }
  if (victims.empty()) return;
  add(counters_.evicted_objects, victims.size());
  const Status removed = backend_->remove(victims, deadline_ns);
  if (is_refused(removed)) return report_puts(removed);
  report(removed);
}

// A chain of blocks that is on its way into storage: those that are not there yet.
struct Store::Batch {
  std::vector<Put> puts;
  std::vector<std::vector<Bytes>> bodies;
  std::vector<BlockPut*> of;
  std::optional<ObjectKey> deepest;  // the last block before them

  void protect(const ObjectKey& key) { deepest = key; }
  void add(const ObjectKey& key, const BlockHash& parent, BlockPut& block) {
    Put put;
    put.head.key = key;
    put.head.parent = parent;
    for (const Bytes& piece : block.payload) put.head.payload_bytes += piece.size();
    put.head.tokens = static_cast<std::uint32_t>(block.tokens.size());
    bodies.emplace_back(block.payload.begin(), block.payload.end());
    if (!block.tokens.empty()) bodies.back().push_back(std::as_bytes(block.tokens));
    put.body = bodies.back();
    put.head.seal = seal_of(put.head, put.body);
    puts.push_back(put);
    of.push_back(&block);
  }
};

Store::Batch Store::begin_put(const BlockHash& space, const BlockHash* parent,
                              std::span<BlockPut> blocks) {
  Batch batch;
  batch.bodies.reserve(blocks.size());
  if (parent != nullptr) batch.protect({space, *parent});
  BlockHash before = parent == nullptr ? BlockHash{} : *parent;
  for (BlockPut& block : blocks) {
    const ObjectKey key{space, block.block};
    block.is_stored = catalogue_.touch(key);
    if (block.is_stored) {
      batch.protect(key);
    } else {
      batch.add(key, before, block);
    }
    before = block.block;
  }
  return batch;
}

// Another host may have stored the same blocks: their bodies are not sent once more. Two hosts that write at the same
// time both write, and one replaces what the other wrote by the same KV.
void Store::learn_before_put(const BlockHash& space, const BlockHash* parent,
                             std::span<const BlockPut> blocks, std::uint64_t deadline_ns) {
  if (!traits().is_shared || traits().asks_before_put || !put_breaker_.is_closed()) return;
  std::vector<ObjectKey> keys;
  // Without a list it may be there unknown, as after a restart.
  if (parent != nullptr && !traits().is_listed) keys.push_back({space, *parent});
  for (const BlockPut& block : blocks) keys.push_back({space, block.block});
  const auto is_there = std::make_unique<bool[]>(keys.size());
  (void)learn(keys, {is_there.get(), keys.size()}, deadline_ns);
}

std::size_t Store::put(const BlockHash& space, const BlockHash* parent, std::span<BlockPut> blocks,
                       std::uint64_t deadline_ns, const StillValid& still_valid) {
  learn_before_put(space, parent, blocks, deadline_ns);
  Batch batch = begin_put(space, parent, blocks);
  std::vector<Put>& puts = batch.puts;
  // Blocks of the call, of which those that are stored already come first.
  const std::size_t valid = still_valid ? still_valid() : blocks.size();
  const auto valid_end =
      blocks.begin() + static_cast<std::ptrdiff_t>(std::min(valid, blocks.size()));
  while (!puts.empty() && batch.of[puts.size() - 1] >= std::to_address(valid_end)) puts.pop_back();
  if (!puts.empty() && !(is_up() && put_breaker_.is_closed())) {
    add(counters_.failed_puts, puts.size());
    gaps_.fetch_add(1, std::memory_order_release);
    puts.clear();
  }
  keep_budget(puts);
  make_room(puts, batch.deepest ? &*batch.deepest : nullptr, deadline_ns);
  if (!puts.empty()) {
    const Status whole = backend_->put(puts, deadline_ns);
    if (whole && traits().reuses_space) replace_coldest(batch, deadline_ns);
    finish_put(batch, whole);
  }
  const auto absent = std::find_if(blocks.begin(), blocks.end(),
                                   [](const BlockPut& block) { return !block.is_stored; });
  return static_cast<std::size_t>(absent - blocks.begin());
}

// The disk is full: the coldest objects make room, once. As much as the limit would remove.
void Store::replace_coldest(Batch& batch, std::uint64_t deadline_ns) {
  std::vector<Put*> refused;
  std::uint64_t bytes = 0;
  for (Put& put : batch.puts) {
    if (!makes_room(put.status)) continue;
    refused.push_back(&put);
    bytes += put.head.body_bytes();
  }
  if (refused.empty()) return;
  tell_full(refused.front()->status);
  const std::vector<ObjectKey> victims =
      catalogue_.take_coldest(bytes, batch.deepest ? &*batch.deepest : nullptr);
  if (victims.empty()) return;
  add(counters_.evicted_objects, victims.size());
  if (!backend_->remove(victims, deadline_ns)) return;
  std::vector<Put> again;
  for (const Put* put : refused) again.push_back(*put);
  const Status whole = backend_->put(again, deadline_ns);
  for (std::size_t i = 0; i < again.size(); ++i) {
    if (!whole) again[i].status = whole;
    refused[i]->status = again[i].status;
  }
}

void Store::finish_put(Batch& batch, const Status& whole) {
  Status outcome, refusal;
  bool has_put = false;
  for (std::size_t i = 0; i < batch.puts.size(); ++i) {
    const Put& put = batch.puts[i];
    const Status& status = whole ? put.status : whole;
    if (!status) {
      // What is full still reads.
      if (is_full(status)) {
        tell_full(status);
      } else if (is_refused(status)) {
        refusal = status;
      } else if (outcome && status.error().code != Code::kStale) {
        outcome = status;  // but not of a payload that has changed: no backend failed
      }
      add(counters_.failed_puts, 1);
      catalogue_.release(put.head.body_bytes(), 1);
      continue;
    }
    has_put = true;
    add(counters_.put_objects, 1);
    add(counters_.put_bytes, put.head.body_bytes());
    if (!traits().keeps_objects) {
      catalogue_.release(put.head.body_bytes(), 1);
      batch.of[i]->is_stored = true;
      continue;
    }
    batch.of[i]->is_stored = catalogue_.add_reserved(put.head);
    if (batch.of[i]->is_stored) remember(put.head.key);
    if (!batch.of[i]->is_stored) add(counters_.refused_puts, 1);
  }
  if (!outcome || !refusal) gaps_.fetch_add(1, std::memory_order_release);
  if (has_put || !refusal) report_puts(has_put ? Status() : refusal);
  if (refusal) report_items(outcome, has_put);
}

// --- Get -------------------------------------------------------------------------------------------

void Store::drop(const ObjectKey& key, std::uint64_t deadline_ns) {
  std::vector<ObjectKey> removed = catalogue_.remove(key);
  // Others may have put it, or it was forgotten; another host's put would find it and write no other.
  if (removed.empty() && traits().is_shared) removed.push_back(key);
  if (!removed.empty()) (void)backend_->remove(removed, deadline_ns);
}

void Store::take_result(const Get& get, std::uint64_t deadline_ns) {
  if (get.status) {
    add(counters_.got_objects, 1);
    add(counters_.got_bytes, get.head.body_bytes());
    (void)catalogue_.add(get.head);
    return;
  }
  const Code code = get.status.error().code;
  if (code == Code::kNotFound && catalogue_.contains(get.key)) add(counters_.missing_objects, 1);
  if (code == Code::kCorrupt) {
    add(counters_.damaged_objects, 1);
    tell_damaged(get.status);
  }
  if (code == Code::kNotFound) (void)catalogue_.remove(get.key);
  if (code == Code::kCorrupt) drop(get.key, deadline_ns);
  if (!is_about_object(get.status)) add(counters_.failed_gets, 1);
}

void Store::get(std::span<Get> gets, std::uint64_t deadline_ns, const Backend::Arrived& arrived) {
  if (!is_up()) {
    for (Get& get : gets) {
      get.status =
          Error::make(Code::kBusy, "storage: the %s backend is out of use", traits().name.c_str());
    }
    return;
  }
  const auto verify = [&](Get& get) {
    get.status = check_seal(get);
    if (get.status && arrived) arrived(get);
  };
  const Status whole = backend_->get_each(gets, verify, deadline_ns);
  Status outcome = whole;
  bool has_answered = false;
  for (Get& get : gets) {
    if (!whole) get.status = whole.error();
    if (is_full(get.status)) tell_full(get.status);
    if (is_about_object(get.status) || is_full(get.status)) {
      has_answered = true;
    } else if (outcome) {
      outcome = get.status;
    }
    take_result(get, deadline_ns);
  }
  report_items(outcome, has_answered);
}

// --- Learn -----------------------------------------------------------------------------------------

Status Store::learn(std::span<const ObjectKey> keys, std::span<bool> is_there,
                    std::uint64_t deadline_ns) {
  std::vector<ObjectKey> unknown;
  std::vector<std::size_t> at;
  // A backend that answers at once is asked again, so that what it has lost is not offered.
  const bool asks_again = traits().answers_at_once;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    is_there[i] = catalogue_.contains(keys[i]);
    if (is_there[i] && !asks_again) continue;
    unknown.push_back(keys[i]);
    at.push_back(i);
  }
  if (unknown.empty() || !traits().is_shared) return {};
  if (!is_up()) {
    return Error::make(Code::kBusy, "storage: the %s backend is out of use", traits().name.c_str());
  }
  std::vector<std::optional<ObjectHead>> heads(unknown.size());
  const Status asked = backend_->heads(unknown, heads, deadline_ns);
  report(asked);
  CACHALOT_TRY(asked);
  add(counters_.asked_objects, unknown.size());
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (!heads[i]) {
      if (std::exchange(is_there[at[i]], false)) (void)catalogue_.remove(unknown[i]);
      continue;
    }
    is_there[at[i]] = true;
    if (!catalogue_.add_detached(*heads[i])) continue;
    add(counters_.learned_objects, 1);
    remember(heads[i]->key);
  }
  // What is forgotten is asked for again.
  if (!traits().is_listed) catalogue_.forget_coldest(kMostLearned);
  return {};
}

void Store::remove(const ObjectKey& key, std::uint64_t deadline_ns) {
  if (is_up()) drop(key, deadline_ns);
}

StoreCounts Store::counts() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {read(counters_.put_objects),      read(counters_.put_bytes),
          read(counters_.got_objects),      read(counters_.got_bytes),
          read(counters_.evicted_objects),  read(counters_.missing_objects),
          read(counters_.damaged_objects),  read(counters_.failed_puts),
          read(counters_.failed_gets),      read(counters_.refused_puts),
          read(counters_.over_budget_puts), read(counters_.asked_objects),
          read(counters_.learned_objects),  breaker_.outages() + read(disappearances_)};
}

}  // namespace cachalot::storage
