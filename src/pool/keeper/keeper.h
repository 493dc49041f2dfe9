// The keeper: the only process that hands out blocks and writes the directory.
//
// It serves the mailboxes of all attached clients from one thread. Everything it knows is in its
// own memory (BlockTable, the policy's tree); directory and ledger are written from that, in an
// order that leaves a successor able to continue after any instruction.
//
// Invariants (is_valid)
//   1. Those of BlockTable, DirectoryWriter and the eviction policy.
//   2. A block is in the policy's tree if and only if it is live; its parent is live.
//   3. A tombstone is complete before its block is granted (W4); a grant is in the ledger, complete,
//      before it is answered.
//
// @threads  one; the pool itself is the interface to all others
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/huge_allocator.h"
#include "eviction/eviction_policy.h"
#include "eviction/leaf_lru.h"
#include "eviction/structure/expiring_leaves.h"
#include "pool/format/access.h"
#include "pool/format/evidence.h"
#include "pool/format/requests.h"
#include "pool/format/statistics.h"
#include "pool/keeper/block_table.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/ledger.h"
#include "pool/keeper/limbo.h"
#include "pool/keeper/open_chains.h"
#include "pool/reader/directory.h"
#include "rpc/server.h"

namespace cachalot::pool {

// A block that stays, once it is there, and its whole prefix with it.
struct PinnedBlock {
  BlockHash namespace_digest;
  BlockHash hash;
};
// Blocks of namespaces of lower priority go first, whatever their order.
struct NamespacePriority {
  BlockHash namespace_digest;
  std::uint32_t priority = 0;
};

struct KeeperOptions {
  std::string policy = "lru";
  // Blocks that were not used for so long go, also where there is room; looked at every 100 ms. 0: never.
  // What a keeper takes over counts as used then.
  std::uint64_t ttl_ns = 0;
  std::vector<PinnedBlock> pins = {};
  std::vector<NamespacePriority> priorities = {};
  // of 0 to 7: a namespace that is not in the list
  static constexpr std::uint32_t kDefaultPriority = 4;
  std::uint32_t max_grants = 256;              // blocks one client may hold at a time
  std::uint64_t tend_interval_ns = 2'000'000;  // between two looks at the client table
  std::uint32_t polls_between_clock_reads = 64;
  // A client whose heartbeat stands still for so long, by the keeper's clock, is suspected: it is
  // served no more, and what it holds is quarantined. 0: never.
  std::uint64_t suspect_after_ns = 10'000'000'000;
  std::uint64_t watch_interval_ns = 100'000'000;  // between two looks at heartbeats and processes
  // directory lines compared with memory at each look at the table
  std::uint32_t scrub_lines = 64;
  std::uint32_t takeover_threads = 1;  // that read and write the directory when it begins
  // for start(): bit k: keeper area k is in use by another process
  std::uint32_t avoid_slots = 0;
  // The keeper's name in reports.
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t boot_id_low = 0, boot_id_high = 0;
  std::string version = {};  // of its program
  // The wall clock of reports, in Unix seconds. Passed in, so that simulated runs repeat exactly. None: 0.
  std::function<std::uint64_t()> unix_s = {};
  // Doorbells work between processes of one machine only.
  bool use_doorbells = true;

  // @errors kInvalidArgument: no such policy, no grants, a priority out of range
  Status check() const;
};

// Where the time of a takeover went.
struct TakeoverTimes {
  std::uint64_t ledger_ns = 0;      // reading the predecessor's ledger
  std::uint64_t entries_ns = 0;     // reading and checking the directory
  std::uint64_t tree_ns = 0;        // rebuilding the tree, and the order of use
  std::uint64_t holders_ns = 0;     // finding the holders
  std::uint64_t sweep_ns = 0;       // writing every entry again
  std::uint64_t ledger_out_ns = 0;  // queueing what is free, and writing the new ledger
  std::uint64_t total_ns() const {
    return ledger_ns + entries_ns + tree_ns + holders_ns + sweep_ns + ledger_out_ns;
  }
};

class Keeper final : private rpc::RequestHandler {
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
  // @errors kBusy: no area is free; kRefused: the epochs of this pool are used up
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
  ~Keeper() override;

  // The keeper area that announce() would take. @errors kBusy: none is free
  static Result<std::uint32_t> next_area(const Access& access, std::uint32_t avoid_slots);

  // Serves what has arrived in all mailboxes; looks after clients and counters now and then.
  // @return requests served
  std::uint32_t poll();
  // True if a client that was answered last runs on `core`, which it needs now.
  bool has_just_answered_on(int core) const { return server_.has_just_answered_on(core); }

  // Looks at the client table and publishes the counters now. poll() does it every few ms.
  void tend();

  // True once a client has asked the keeper to end.
  bool stop_requested() const { return stop_requested_; }
  // True once another keeper rules: this one came too late, and does nothing any more.
  bool is_deposed() const { return deposed_; }
  // Whether another one has announced itself, as the pool says now.
  bool has_successor() const;
  // States that no keeper serves any more. Also done by the destructor.
  void stop();

  // 0: it does not rule yet.
  std::uint32_t epoch() const { return epoch_; }
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
  struct Session {
    std::uint32_t incarnation = 0;       // 0: none
    std::uint32_t last_incarnation = 0;  // never opened again: its old requests would be read anew
    std::uint32_t granted = 0;
    std::uint32_t refused = 0;      // an incarnation that was told that the slot is held
    bool is_held = false;           // not open, and nothing proves that the last one stores no more
    bool is_suspected = false;      // not open, because the last one fell silent; it may live
    bool may_hold_unknown = false;  // it was let in by the last keeper, whose ledger is damaged
    bool pins = false;        // the last one may have reads in flight that keep blocks in limbo
    ProcessIdentity process;  // of the last incarnation
    std::uint64_t last_beat = 0;
    std::uint64_t beat_seen_ns = 0;  // when it was new
  };
  // What the last keeper that finished its own takeover left behind.
  struct Predecessor {
    std::uint32_t epoch = 0;  // 0: the pool is new
    std::uint32_t min_epoch = 0;
    std::uint32_t highest_epoch = 0;  // of any keeper, finished or not
    std::uint32_t latest_slot = 0;    // that one's
    std::uint32_t slot = 0;
    bool is_lost = false;  // a keeper ruled whose lines are lost
  };

  Keeper(const Access& access, const KeeperOptions& options, base::Clock& clock, Evidence* evidence,
         eviction::PolicyKind policy);

  // keeper_takeover.cpp
  static Predecessor find_predecessor(const Access& access);
  void adopt_namespaces();
  void read_ledger();
  void adopt_entries();
  void adopt_slots(const KeeperView& view, std::uint32_t first, std::uint32_t end,
                   std::vector<std::uint32_t>& contested);
  bool is_sound(const KeeperView& view, const Entry& entry, std::uint32_t slot) const;
  void adopt_entry(const Entry& entry, std::uint32_t slot);
  void adopt_contested(const KeeperView& view, std::uint32_t slot);
  template <class F>
  void in_parts(std::uint32_t items, std::uint32_t unit, F&& f) const;
  bool write_directory();
  void drop_orphans();
  void adopt_ledger();
  void adopt_holders();
  bool is_blank(std::uint64_t offset) const;
  bool answers_too_early() const;
  void offer_free_blocks();
  void publish_line(std::uint32_t min_epoch, std::uint32_t flags);
  void publish_info();
  bool begin_anew();
  static void look_for_lost_epoch(const Access& access, Predecessor& predecessor);

  // keeper_clients.cpp
  void look_after_clients();
  void notice_farewell(std::uint32_t client, const ClientLine& line);
  bool vouches(const Session& session, const ClientLine& line) const;
  void let_in(std::uint32_t client, const ClientLine& line);
  void open_session(std::uint32_t client, const ClientLine& line);
  void close_session(std::uint32_t client, bool is_drained, const char* why);
  void publish_view(std::uint32_t client);
  void echo_heartbeat(std::uint32_t client);
  void watch_clients(std::uint64_t now_ns);
  bool has_exited(const ProcessIdentity& process) const;
  void forget_suspect(std::uint32_t client);
  std::uint32_t release(std::uint32_t client);
  std::uint32_t release_unknown();
  bool may_anybody_hold_unknown() const;
  void serve_fence(std::uint32_t client, const rpc::RequestHead& head);
  bool notice_successor();
  void be_deposed();

  // keeper.cpp
  void on_requests(std::uint32_t client, std::span<const rpc::Message> messages) override;
  void on_other(std::uint32_t client, const rpc::Message& message);
  std::size_t serve_touches(std::uint32_t client, std::span<const rpc::Message> messages);
  void prefetch_touched(std::span<const rpc::Message> messages);
  std::uint16_t serve_touch(const rpc::Message& message);
  std::uint32_t apply_touch(std::uint32_t namespace_id, const BlockUse& use);
  void serve_namespace(std::uint32_t client, const rpc::RequestHead& head);
  void serve_grant(std::uint32_t client, const rpc::RequestHead& head);
  void serve_give_back(std::uint32_t client, const rpc::Message& message);
  void serve_evict(std::uint32_t client, const rpc::RequestHead& head);
  void refuse(std::uint32_t client, Code code);

  // keeper_commit.cpp
  void serve_commit(std::uint32_t client, const rpc::Message& message);
  Verdict commit(std::uint32_t client, std::uint32_t namespace_id, const CommitItem& item,
                 bool has_parent, std::uint32_t parent, std::uint32_t& published_in);
  std::uint32_t make_room(const BlockHash& hash, std::uint32_t namespace_id, std::uint32_t parent);
  void return_to_grant(std::uint32_t block);
  bool holds(std::uint32_t client, const BlockUse& use) const;
  // in the place of a namespace whose line was damaged
  static constexpr BlockHash kNoDigest{};
  bool is_namespace(std::uint32_t id) const {
    return id >= 1 && id <= namespaces_.size() && namespaces_[id - 1] != kNoDigest;
  }

  void make_policy(eviction::PolicyKind kind);
  std::uint64_t name_of(std::uint32_t block) const;
  std::uint32_t priority_of(std::uint32_t namespace_id) const;
  bool is_pinned(std::uint32_t block) const;
  void enter_tree(std::uint32_t block, std::uint32_t parent);
  void tell_policy_the_time();
  void expire();
  bool evict_one(std::uint32_t protect);
  void evict(std::uint32_t block);
  std::uint32_t evict_subtree(std::uint32_t root);
  void free_block(std::uint32_t block);
  void free_unpinned(std::uint32_t block);
  void settle_limbo();

  Access access_;
  KeeperOptions options_;
  base::Clock* clock_;
  Evidence* evidence_;
  std::uint32_t slot_ = 0;
  std::uint32_t epoch_ = 0;
  Predecessor predecessor_;
  base::HugeVector<LedgerRecord> inherited_;  // the predecessor's ledger, until it is taken over
  KeeperLine line_{};                         // as it was last published
  BlockTable blocks_;
  std::unique_ptr<eviction::EvictionPolicy> policy_;
  eviction::LeafLru* lru_ = nullptr;  // policy_, if that is what it is: its touches are inlined
  eviction::ExpiringLeaves* ages_ = nullptr;  // policy_, where blocks expire
  OpenChains open_chains_;
  DirectoryWriter directory_;
  Ledger ledger_;
  rpc::Server server_;
  std::vector<Session> sessions_;
  std::uint32_t pinning_clients_ = 0;  // sessions with `pins`
  Limbo limbo_;
  std::vector<BlockHash> namespaces_;  // digests; id - 1
  KeeperCounters counters_;
  std::uint32_t counters_sequence_ = 0;
  std::uint32_t polls_ = 0;
  std::uint64_t next_tend_ns_ = 0, next_watch_ns_ = 0, next_expiry_ns_ = 0;
  std::uint32_t scrub_at_ = 0;
  std::uint32_t unknown_blocks_ = 0;  // quarantined, their holder unknown
  bool is_holder_lost_ = false;       // … and the possible holders are unknown, too
  TakeoverTimes takeover_times_;
  bool deposed_ = false;
  bool stop_requested_ = false;
  bool serving_ = false;
};

}  // namespace cachalot::pool
