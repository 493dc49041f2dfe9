// The keeper: the only process that hands out blocks and writes the directory.
//
// It serves the mailboxes of all attached clients from one thread. Everything it knows is in its
// own memory (BlockTable, the policy's tree); directory and ledger are written from that, in an
// order that leaves a successor able to continue after any instruction.
//
//     Reign          its area and epoch, and whether another keeper has taken over
//     Blocks         free, granted, live, ...; the ledger; the limbo
//     DirectoryWriter, Namespaces     what clients read
//     Evictor        which published blocks stay
//     Sessions       what each client slot holds; ClientWatch notices clients that come, leave, exit, fall silent
//     Dispatcher     requests: Touches, Grants, Commits and the rare ones
//     Takeover       the beginning; it ends when the keeper serves
//
// Invariants (is_valid)
//   1. Those of BlockTable, DirectoryWriter and Evictor.
//   2. No more blocks are live than the capacity.
//   3. A tombstone is complete before its block is granted (W4); a grant is in the ledger, complete,
//      before it is answered.
//
// @threads  one; the pool itself is the interface to all others
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "pool/format/access.h"
#include "pool/format/evidence.h"
#include "pool/format/statistics.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/namespaces.h"
#include "pool/keeper/reign.h"
#include "pool/keeper/requests/dispatcher.h"
#include "pool/keeper/requests/refusal_log.h"
#include "pool/keeper/service/client_watch.h"
#include "pool/keeper/sessions.h"
#include "pool/keeper/takeover/takeover.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Keeper {
 public:
  // A keeper that has all its memory and does not rule: what a standby waits with. It reads and
  // writes nothing of the pool.
  // @param evidence  sees processes end; may be null: then only fences and drained clients count
  // @errors as KeeperOptions::check()
  // @cost   its memory, about 110 bytes a block (with lru) until it rules, touched: the longest part of a takeover
  //         where the kernel has no clean pages at hand
  static Result<std::unique_ptr<Keeper>> prepare(const Access& access, const KeeperOptions& options,
                                                 base::Clock& clock, Evidence* evidence = nullptr);
  // Says in its area that it rules from now on, with the next epoch; take_over() and begin_to_serve()
  // follow. One keeper at a time, which is the caller's business (Pool takes a lock): from here on
  // every process sees the epoch.
  // @errors kBusy: no area is free; kRefused: the epochs of this pool are used up; as check_added_devices()
  Status announce(std::uint32_t avoid_slots);
  // A pool that had a keeper before is taken over: its entries are checked, kept and written again; blocks
  // that clients held are quarantined.
  void take_over();
  // Says that the takeover is finished, and serves; or, if another one has announced itself since, is
  // deposed. No other keeper may announce itself meanwhile, as with announce().
  void begin_to_serve();
  // Looks for clients, and once more for a successor, before anything is answered.
  void see_first_clients();
  // All of it, for a keeper that is known to be alone.
  static Result<std::unique_ptr<Keeper>> start(const Access& access, const KeeperOptions& options,
                                               base::Clock& clock, Evidence* evidence = nullptr);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Serves what has arrived in all mailboxes; looks after clients and counters now and then.
  // @return requests served
  std::uint32_t poll();
  // True if a client that was answered last runs on `core`, which it needs now.
  bool has_just_answered_on(int core) const { return server_.has_just_answered_on(core); }

  // Looks at the client table and publishes the counters now. poll() does it every few ms.
  void tend();

  // Tells `observer` which blocks it publishes and removes from now on. The observer outlives the keeper, or is
  // taken away before. What is published already is in the directory.
  void observe(BlockObserver& observer) { directory_.observers().add(observer); }
  void end_observing(BlockObserver& observer) { directory_.observers().remove(observer); }
  // What answers requests about storage from now on; null: nothing does. It outlives the keeper, or is taken away before.
  void set_storage_desk(StorageDesk* desk) {
    dispatcher_.set_storage_desk(desk);
    storage_desk_ = desk;
  }

  // Before the announcement: as KeeperOptions says.
  void set_without_lost_devices(bool without) { options_.without_lost_devices = without; }
  // From now on; a client that holds more gets no further block until it holds less.
  void set_limits(std::uint32_t max_grants, std::uint64_t suspect_after_ns) {
    options_.max_grants = max_grants;
    options_.suspect_after_ns = suspect_after_ns;
    dispatcher_.set_max_grants(max_grants);
  }

  // About once a second.
  void look_after_names() { dispatcher_.expansions().look_after_names(); }

  // True once a client has asked the keeper to end.
  bool stop_requested() const { return dispatcher_.stop_requested(); }
  // True once another keeper rules: this one came too late, and does nothing any more.
  bool is_deposed() const { return reign_.is_deposed(); }
  // Whether another one has announced itself, as the pool says now.
  bool has_successor() const { return reign_.has_successor(); }
  // States that no keeper serves any more, and writes the pool back to its files. Also done by the destructor.
  // @cost  on a disk, as long as that takes
  void stop();

  // 0: it does not rule yet.
  std::uint32_t epoch() const { return reign_.epoch(); }
  const TakeoverTimes& takeover_times() const { return takeover_times_; }
  const KeeperCounters& counters();
  // What the keeper itself believes, without reading the pool.
  bool is_published(const BlockHash& hash, std::uint32_t namespace_id) const {
    return directory_.find(hash, namespace_id) != kNoBlock;
  }
  // Bytes of the keeper's own memory: about 100 a block.
  std::uint64_t memory_bytes() const;
  bool is_valid() const;

 private:
  // Tells now and then, without a look at the clock each time, that some time has passed.
  class TendTimer {
   public:
    TendTimer(const KeeperOptions& options, base::Clock& clock)
        : options_(options), clock_(clock) {}
    bool is_due();
    std::uint64_t now_ns() const { return clock_.now_ns(); }

   private:
    const KeeperOptions& options_;
    base::Clock& clock_;
    std::uint32_t polls_ = 0;
    std::uint64_t next_ns_ = 0;
  };

  Keeper(const Access& access, const KeeperOptions& options, base::Clock& clock, Evidence* evidence,
         eviction::PolicyKind policy);

  void be_deposed();
  void flush();
  void end_last_flush();

  // In the order of use: each part knows those above it.
  Access access_;
  KeeperOptions options_;
  KeeperCounters counters_;
  RefusalLog refusal_log_;
  Reign reign_;
  Namespaces namespaces_;
  Blocks blocks_;
  DirectoryWriter directory_;
  Evictor evictor_;
  rpc::Server server_;
  Sessions sessions_;
  ClientWatch client_watch_;
  Dispatcher dispatcher_;
  StorageDesk* storage_desk_ = nullptr;
  TendTimer tend_timer_;
  std::unique_ptr<Takeover> takeover_;  // until it is done
  TakeoverTimes takeover_times_;
};

}  // namespace cachalot::pool
