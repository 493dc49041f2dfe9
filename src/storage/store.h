// Storage as the rest of Cachalot uses it: a backend, and what all backends need around it.
//
//   Result<std::unique_ptr<Store>> store = Store::open("file:/ssd/kv", {.limits = {.bytes = 1ull << 40}});
//   (*store)->put(space, chain, deadline_ns);
//   (*store)->get(gets, deadline_ns);
//
// It seals what it puts and verifies what it gets; knows what is there (Catalogue) and evicts where a limit is
// reached; and takes a backend that fails out of use, until it works again.
//
// A backend that others write, too (is_shared), has objects that no list of this process has: learn() asks for them.
//
// Invariants
//   1. Every body that get() reports as read has the seal of its key. Other bytes are counted as damaged, and
//      their object and all below it are removed.
//   2. What the catalogue has was stored, or listed. It may be gone all the same: others may have removed it.
//   3. While the backend is out of use every call returns at once. The store's own thread asks it once a second, admits
//      calls when it answers (breaker.h), and reads what is there as soon as it can if that is not known yet. What is
//      shared is read again after an outage, and when an object is gone that should be there: it may have lost objects.
//   4. A backend that refuses puts only is read as before: puts have a breaker of their own.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/rare_line.h"
#include "storage/backend.h"
#include "storage/breaker.h"
#include "storage/catalogue.h"
#include "storage/server_space.h"
#include "storage/write_budget.h"

namespace cachalot::storage {

struct StoreOptions {
  Limits limits = {};
  std::uint64_t write_bytes_per_day = 0;  // 0: no limit (write_budget.h)
  std::uint64_t list_timeout_ns = 60'000'000'000;
};

// Counters of a Store. Each only grows.
struct StoreCounts {
  std::uint64_t put_objects, put_bytes;
  std::uint64_t got_objects, got_bytes;
  std::uint64_t evicted_objects;
  std::uint64_t missing_objects;           // known, but the backend has them no more
  std::uint64_t damaged_objects;           // with another seal, or no head
  std::uint64_t failed_puts, failed_gets;  // objects
  std::uint64_t refused_puts;      // objects: the limit has no room, or their prefix is not stored
  std::uint64_t over_budget_puts;  // objects: the write budget was spent
  std::uint64_t asked_objects, learned_objects;  // of a shared backend: asked for, and there
  std::uint64_t outages;                         // how often the backend was taken out of use
};

// A block of a chain to be stored. The parent is the block before, or `ChainPut::parent`.
struct BlockPut {
  BlockHash block;
  std::span<const Bytes> payload;  // pieces
  std::span<const std::uint32_t> tokens = {};
  bool is_stored = false;  // filled by the call
};

class Store {
 public:
  // @param backend  whose list() fills the catalogue. If that fails, or a shared one does not answer a first question,
  //                 the store begins empty, and tries again.
  // @param is_stopped  asked for each object of this first listing; true ends it early, for a store that is not needed
  //                    any more
  // @errors none yet: a backend that is down at the start is out of use until it works, from its first failure on
  static std::unique_ptr<Store> make(std::unique_ptr<Backend> backend, const StoreOptions& options,
                                     const std::function<bool()>& is_stopped = {});

  // Cancels a try in work. Where the backend cannot, waits for it, at most until its deadline.
  ~Store();

  const BackendTraits& traits() const { return backend_->traits(); }
  std::optional<std::size_t> peers() const { return backend_->peers(); }
  const Catalogue& catalogue() const { return catalogue_; }
  // A use, for the order of eviction.
  bool touch(const ObjectKey& key) { return catalogue_.touch(key); }

  // Says how many leading blocks of the call still have the payload that was given.
  using StillValid = std::function<std::size_t()>;
  // Stores blocks of one chain, in order. Blocks that are there are only touched.
  // @param parent       of the first block; null: it is a root
  // @param still_valid  asked once, after all payloads were sealed and before any is written: for payloads that
  //                     may change at any time. One that changes later gets a seal that does not match
  // @return how many leading blocks are stored now
  std::size_t put(const BlockHash& space, const BlockHash* parent, std::span<BlockPut> blocks,
                  std::uint64_t deadline_ns, const StillValid& still_valid = {});
  // Reads objects. The statuses say what was read and verified; the rest of the room may hold garbage.
  // @param arrived  called in the same thread with each object that was verified, in any order, while others may be
  //                 in flight. It calls nothing of the store. If the backend then fails, the status says so
  void get(std::span<Get> gets, std::uint64_t deadline_ns, const Backend::Arrived& arrived = {});
  // Asks a shared backend for objects that the catalogue does not have, and adds those that are there. A parent stands
  // before its children, and may itself be unknown.
  // What a backend that answers at once has no more is forgotten, with all below it.
  // @param is_there  filled: known now
  // @return why the backend could not be asked; then only what was known is there
  // @cost   one round trip to each server, if anything is unknown
  Status learn(std::span<const ObjectKey> keys, std::span<bool> is_there,
               std::uint64_t deadline_ns);
  // Removes an object and all below it.
  void remove(const ObjectKey& key, std::uint64_t deadline_ns);

  // False: the backend is out of use.
  bool is_up() const { return breaker_.is_closed() && !is_gone_; }
  StoreCounts counts() const;
  // Of the last call of the backend that failed; empty: none has.
  std::string last_error() const;
  // Grows whenever the backend may lack objects that it was given: puts have failed, or it has lost some.
  std::uint64_t gaps() const { return gaps_.load(std::memory_order_acquire); }
  Backend& backend() { return *backend_; }

 private:
  struct Counters {
    std::atomic<std::uint64_t> put_objects, put_bytes, got_objects, got_bytes, evicted_objects,
        missing_objects, damaged_objects, failed_puts, failed_gets, refused_puts, over_budget_puts,
        asked_objects, learned_objects;
  };

  Store(std::unique_ptr<Backend> backend, const StoreOptions& options)
      : backend_(std::move(backend)),
        list_timeout_ns_(options.list_timeout_ns),
        catalogue_(options.limits),
        budget_(options.write_bytes_per_day) {}

  struct Batch;
  // Tries that fail for reasons that a second will not mend come later and later.
  struct TryPause {
    std::uint64_t pause_ns = Breaker::kFirstPauseNs, next_ns = 0;
    bool is_over() const { return base::SteadyClock::read() >= next_ns; }
    void reset() { *this = {}; }
    void grow() {
      pause_ns = std::min(pause_ns * 2, Breaker::kLongestPauseNs);
      next_ns = base::SteadyClock::read() + pause_ns;
    }
  };

  Status fill_catalogue(bool is_first, const std::function<bool()>& is_stopped);
  void forget_lost(std::span<const ObjectKey> before, std::uint64_t mark,
                   const std::unordered_set<ObjectKey>& listed);
  void report(const Status& outcome);
  void report_items(const Status& failure, bool has_answered);
  void keep_error(const Status& status);
  void report_puts(const Status& refusal);
  void tell_full(const Status& status);
  void tell_damaged(const Status& status);
  void run();
  void check_place();
  Status ask(std::uint64_t timeout_ns);
  void look_for_loss();
  void remember(const ObjectKey& key);
  void try_backend();
  Batch begin_put(const BlockHash& space, const BlockHash* parent, std::span<BlockPut> blocks);
  void learn_before_put(const BlockHash& space, const BlockHash* parent,
                        std::span<const BlockPut> blocks, std::uint64_t deadline_ns);
  void keep_budget(std::vector<Put>& puts);
  void limit_by_server(std::uint64_t bytes, std::uint64_t deadline_ns);
  void make_room(std::vector<Put>& puts, const ObjectKey* deepest, std::uint64_t deadline_ns);
  void replace_coldest(Batch& batch, std::uint64_t deadline_ns);
  void finish_put(Batch& batch, const Status& whole);
  void drop(const ObjectKey& key, std::uint64_t deadline_ns);
  void take_result(const Get& get, std::uint64_t deadline_ns);

  const std::unique_ptr<Backend> backend_;
  const std::uint64_t list_timeout_ns_;
  Catalogue catalogue_;
  Breaker breaker_, put_breaker_;
  WriteBudget budget_;
  Counters counters_{};
  std::atomic<std::uint64_t> gaps_{0};
  std::atomic<bool> is_gone_{false};  // by its check()
  std::atomic<std::uint64_t> disappearances_{0};
  base::RareLine full_line_, damaged_line_, failing_line_{3}, outage_line_{4}, known_line_,
      lost_line_;
  mutable std::mutex error_mutex_;
  std::string last_error_;
  // An object that a shared backend should have.
  std::mutex witness_mutex_;
  std::optional<ObjectKey> witness_;
  std::mutex space_mutex_;
  ServerSpace space_;  // under it
  // Of the thread that tries.
  std::atomic<bool> is_listed_{false}, ends_{false};
  bool is_silent_ = false;  // the outage began, or goes on, with no answer
  TryPause ask_pause_, list_pause_;
  std::mutex mutex_;  // what wake_ waits for does not change between its check and its wait
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace cachalot::storage
