// An engine's way into the pool: look blocks up and read them without asking anyone, write blocks
// into space that was granted in advance, and have the keeper publish them.
//
// Invariants
//   1. A payload is handed out only if its directory entry was the same before and after it was
//      read (R6), and, where checksums are verified, if its bytes match.
//   2. A block is written only while this client holds its use, from a grant of the ruling keeper;
//      from the post of its commit to the answer it is not touched (W1).
//
// When the keeper changes, has come to suspect this client, or a line of the mailbox was damaged, the next
// call that needs the keeper, or the one that notices it, attaches again, with a new incarnation, and asks the ruling keeper what became of the commits that
// no answer came. Copies are done by the calling thread, or under a reservation that it waits for, so
// that none is in flight then: the client vouches that its old incarnation is drained, and what it held
// is free at once.
//
// A client that withholds a reservation vouches for nothing any more: it goes on until it would have to
// attach again, and detaches without notifying the keeper. What it held is freed on evidence.
//
// @threads  one at a time; renew() and namespace_id() from any
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fail_point.h"
#include "block_hash/block_hash.h"
#include "pool/client/call_time.h"
#include "pool/client/mailbox_watch.h"
#include "pool/client/reservation.h"
#include "pool/format/access.h"
#include "pool/format/requests.h"
#include "pool/format/slot_totals.h"
#include "pool/format/statistics.h"
#include "pool/reader/directory.h"
#include "rpc/channel.h"

namespace cachalot::pool {

struct ClientOptions {
  std::string fingerprint = "default";  // of the namespace (see block_hash::make_namespace)
  std::uint32_t host = 0;               // this machine's number, below the pool's number of hosts
  // Blocks to hold in advance; fewer where the pool is small (see Client::advance()).
  std::uint32_t grant_target = 64;
  // How long one call waits for the keeper, all its waits together.
  std::uint64_t timeout_ns = 5'000'000'000;
  // Verify reads against the writer's checksum. Default: in the noncoherent domain.
  std::optional<bool> verify_checksums;
  // Compute one for what is written. Default: as above.
  std::optional<bool> write_checksums;
  // How long a call may wait for a keeper to be there again, when the one it had is gone; the call may
  // take so much longer then. 0: the call fails, and a later one finds the next keeper. One that is just
  // taking over is waited for anyhow, up to timeout_ns.
  std::uint64_t recovery_ns = 0;
  // When an attachment has to be there, by the client's clock, beside timeout_ns.
  std::uint64_t attach_by_ns = CallTime::kNever;
  bool pins = false;  // pin() will be used
  // Stores nothing: its namespace is not opened unless it exists, so that a mistyped name
  // use one up for good. All is a miss then, also what others store later.
  bool reads_only = false;
  // Stops, fences, evicts: Pool::attach begins with the slot that engines leave alone. Implies
  // reads_only.
  bool is_operator = false;
  std::uint64_t renew_interval_ns = 200'000'000;  // of PoolClient's thread; 0: it has none
  // The client's name in reports.
  std::uint32_t pid = 0;
  std::uint32_t pid_namespace = 0;
  std::uint32_t time_namespace = 0;
  std::uint64_t start_time = 0;
  std::uint64_t boot_id_low = 0, boot_id_high = 0;
  bool use_doorbells = true;
  // Adds what the client's user counts itself, where it reads the pool without this client, to what is
  // published. Any thread calls it, until the client has detached.
  std::function<void(ClientCounters&)> add_counters;
  // Whether the process that rules from this keeper area has ended, where this can be known (Pool
  // can, on one machine): a keeper that was killed goes on saying that it serves.
  std::function<bool(std::uint32_t area)> keeper_has_ended;
};

// A block that was written in place.
struct WrittenBlock {
  BlockHash hash;
  std::uint32_t length = 0;               // bytes of payload; the last line is padded with zeros
  std::optional<std::uint64_t> checksum;  // XXH3-64 of the padded payload (memory::FusedHash)
};

// A block to be stored.
struct PutItem {
  BlockHash hash;
  std::span<const std::byte> bytes;
};

// Calls copy(at, length) for all of `bytes` at once; in a build with fail points, piece by piece.
template <class Copy>
void copy_in_pieces(std::uint64_t bytes, base::FailPoint point, Copy&& copy) {
  constexpr std::uint64_t kPieceBytes = 4096;
  if (!base::fail_points_armed()) {
    if (bytes != 0) copy(0, bytes);
    return;
  }
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    copy(at, std::min(kPieceBytes, bytes - at));
    base::reach(point);
  }
}

class Client final : private rpc::AnswerSink {
 public:
  // Attaches as the given client slot, which no other client may use meanwhile (Pool takes a lock).
  // @errors kNoKeeper: no keeper serves the pool; kTimeout; kInvalidArgument
  static Result<std::unique_ptr<Client>> attach(const Access& access, std::uint32_t slot,
                                                const ClientOptions& options, rpc::Waiter& waiter,
                                                base::Clock& clock);
  // Detaches, if the keeper still answers.
  ~Client() override;

  // --- Reading: no RPC -------------------------------------------------------------------------

  // Finds the longest published prefix of `hashes`; see DirectoryReader::lookup.
  std::size_t lookup(std::span<const BlockHash> hashes, std::span<Found> found);

  // Copies the payloads of `found` (from the last lookup) to to[i], entry.length bytes each.
  // @shape   to: as many as found
  // @return  how many leading blocks are valid; those behind were reused meanwhile, or damaged, and
  //          their bytes in to[i] mean nothing
  // @cost    a copy; one line per block and a fence pair to validate
  std::size_t read(std::span<const Found> found, std::span<std::byte* const> to);

  // lookup and read of one block. @return its length
  // @errors kNotFound; kNoSpace: `to` is smaller than the block
  Result<std::uint32_t> get(const BlockHash& hash, std::span<std::byte> to);

  // Notes a hit, for the keeper's order of use: give the deepest block of a prefix, it speaks for
  // all of it. Sent in batches, and always before this client's next commit. Never waits: with 128
  // requests unanswered a batch is dropped and counted.
  void report_hit(const Found& deepest);

  // For consumers that cannot throw away what they have read: what is looked up after pin() is not
  // reused before the unpin() that belongs to it. Pins may overlap; unpin() takes what pin() gave.
  // A pinned read needs no validation: read() may be replaced by plain loads of the payload.
  // @errors kUnsupported: attached without `pins`; as attach() if this client has to attach again
  // @cost   pin and unpin: a line each, and a fence that waits for it
  Result<std::uint64_t> pin();
  void unpin(std::uint64_t pin);

  // --- Time ------------------------------------------------------------------------------------

  // Bounds every wait of the calls from here on, by the client's clock, beside timeout_ns and
  // recovery_ns. An attachment that was begun and not finished in time is gone on with by the next call.
  static constexpr std::uint64_t kNever = CallTime::kNever;
  void set_deadline(std::uint64_t at_ns) { deadline_ns_ = at_ns; }

  // --- Writing ---------------------------------------------------------------------------------

  // Stores a chain of blocks (each one's parent is the one before, the first one's is `parent`, or
  // none: a root) and waits for the keeper's verdicts.
  // @shape   verdicts: as many as items
  // Goes on with the next keeper, if that one is there within recovery_ns.
  // @errors  kNoKeeper, kTimeout: nothing is known of the fate of items whose verdict is kNotHeld;
  //          kNoSpace: no block can be had
  Status put(const BlockHash* parent, std::span<const PutItem> items, std::span<Verdict> verdicts);

  // The steps of put() for callers that write the payloads themselves; see reservation.h. While a
  // reservation is open this client does not attach again: it could not vouch for the copies.
  // @return as many blocks as can be had, at least one
  // @errors as put(); kInvalidArgument: not 1 to kMaxCommitItems blocks
  Result<Reservation> reserve(std::uint32_t blocks);
  // @shape  blocks: at most as many as reserved, a chain as for put(); verdicts: as many
  // @param  goes_on  more of this chain follows: the keeper spares what is there, while it can
  // @errors kStale: the keeper is another one since, or gave this client up: reserve and write again;
  //         kInvalidArgument: another client's, or more blocks than it has; else as put()
  Status commit(const BlockHash* parent, WrittenReservation reservation,
                std::span<const WrittenBlock> blocks, std::span<Verdict> verdicts,
                bool goes_on = false);
  // A reservation of this client is open or withheld. No other client of this process may enter its slot
  // then: one that is refused there says, as it leaves, that all before it is over.
  bool may_still_store() const { return book_->may_still_store(); }

  // As put() of one block, but does not wait: the verdict goes into the counters only. Waits if too
  // many are in flight. drain() waits for all.
  Status post_put(const BlockHash* parent, const PutItem& item);
  Status drain();

  // --- Asking the keeper -----------------------------------------------------------------------

  // Drops a block and all below it. @return blocks dropped @errors kNotFound
  Result<std::uint32_t> evict(const BlockHash& hash);
  Result<std::uint32_t> evict_everything();
  // Says that the process that last had this slot, and is suspected, stores no more.
  // @return blocks released @errors kBusy: the slot is served, kNotFound: nothing is held there, as
  //         in this client's own, which let it in
  Result<std::uint32_t> fence(std::uint32_t client);
  // The same for blocks whose holder is unknown.
  Result<std::uint32_t> fence_unknown();
  // Asks the keeper to end.
  Status stop_keeper();
  // One round trip.
  Status ping();
  // Posts a touch of this use, without waiting: for measurements. False: no credit, poll first.
  bool post_touch(const BlockUse& use);
  bool post_ping();
  // Sends what was posted and takes what has been answered. @return requests answered
  std::uint32_t poll() { return has_left_ ? 0 : channel_.poll(*this); }
  std::uint32_t outstanding() const { return channel_.outstanding(); }

  // Shows that this client lives, and looks whether the keeper still thinks so. To be called every
  // second or so, also while the engine computes (PoolClient has a thread that does).
  void renew();
  // True once the keeper has given this client up, another one rules, or the mailbox is damaged: the next
  // call attaches again.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
  // Attaches again now. @errors as attach(); kBusy: the keeper holds this slot
  Status reattach(std::uint64_t patience_ns);

  // Sends what is waiting, gives unused blocks back, detaches. Further calls fail.
  // @errors kBusy: copies are still in flight, nothing was sent: retry after their end; kNoKeeper, kTimeout: no answer, the
  //         client's line says it
  Status detach();
  // True once it has detached, answered or not: from here on it stores nothing, neither into blocks nor
  // into the lines of its slot, which another client may have.
  bool has_left() const { return has_left_; }

  // 0: it is not there (reads_only). @threads any
  std::uint32_t namespace_id() const { return namespace_id_.load(std::memory_order_relaxed); }
  bool writes_checksums() const { return write_checksums_; }
  bool verifies_checksums() const { return verify_checksums_; }
  std::uint64_t namespace_seed() const { return namespace_.seed; }
  std::uint32_t epoch() const { return view_.epoch; }
  const Access& access() const { return access_; }
  // Blocks that this client holds in advance at the most: what was asked for, but all clients together
  // no more than half of the pool, so that unused grants do not fill a small pool.
  std::uint32_t advance() const { return advance_; }
  std::uint32_t grants_held() const {
    return static_cast<std::uint32_t>(grants_.size() + book_->returned());
  }
  const LiveClientCounters& counters() const { return counters_; }

 private:
  // Tags of requests: what on_answer() does with the answer.
  enum Tag : std::uint64_t {
    kIgnore = 0,
    kGrants = 2,
    kFirstCommit = 16,
    kFirstCall =
        std::uint64_t{1} << 32,  // each call has its own: a late answer reaches no other call
  };

  // A commit in flight.
  struct Commit {
    std::uint32_t count = 0;
    std::array<BlockUse, kMaxCommitItems> uses;
    Verdict* verdicts = nullptr;  // null: no caller waits for them
    // The request, to be sent again to the next keeper if this one never answers (W5).
    CommitPayload chain{};
    std::array<rpc::FollowingLine, kMaxCommitItems> items;
    bool is_again = false;
  };

  Client(const Access& access, std::uint32_t slot, const ClientOptions& options,
         rpc::Waiter& waiter, base::Clock& clock);

  // client_attach.cpp
  CallTime::Scope call_scope() { return {call_time_, *clock_, options_.timeout_ns}; }
  std::uint64_t until_ns() const { return std::min(call_time_.ends_ns(), deadline_ns_); }
  template <class Done>
  Status wait_for_keeper(Done&& done);
  Error no_answer() const;
  Status greet();
  void knock();
  bool is_own_process(const ClientLine& line) const;
  Status check_keeper_stays(std::uint32_t round) const;
  bool has_unread_farewell() const;
  Status wait_for_farewell(std::uint64_t deadline_ns);
  Status wait_for_view(std::uint64_t deadline_ns);
  Error not_seen() const;
  Status attach_again();
  bool is_acknowledged() const;
  Status open_namespace();
  Status ask_for_namespace();
  void withdraw();
  void leave();
  static Error has_detached();
  bool keeper_is_gone();
  bool has_ended(const KeeperView& keeper) const;
  bool is_taken_over() const;
  bool is_dismissed() const;
  void look_for_loss();
  void look_for_damage();
  void beat();
  void begin_to_count();
  void publish_counters();
  Status enter();
  std::uint64_t farewell_ns() const;
  bool await_dismissal(std::uint64_t deadline_ns) const;
  Status ensure_attached();
  Status resend_commits();
  void post(Commit& commit);

  // client.cpp
  void on_answer(const rpc::Answer& answer) override;
  void on_commit_answer(Commit& commit, const rpc::Answer& answer);
  void on_grant_answer(const rpc::Answer& answer);
  Status wait_for(bool& flag);
  Status wait_for_credit(std::uint32_t lines, std::uint32_t answer_lines);
  Status call(Op op, const memory::Line& head = {}, std::uint32_t answer_lines = 1);
  Status flush_reports();
  void post_reports();
  void forget_verdicts();
  Status status_of_call(const char* what) const;

  // client_write.cpp
  Status ask_for_grants(std::uint32_t needed);
  Result<BlockUse> take_grant(std::uint32_t needed);
  Result<Reservation> reserve_once(std::uint32_t blocks);
  std::uint64_t write_payload(const BlockUse& use, std::span<const std::byte> bytes);
  Status post_commit(const BlockHash* parent, std::span<const PutItem> items, Verdict* verdicts,
                     bool goes_on);
  Status begin_commit();
  void add_item(Commit& commit, std::uint32_t at, const BlockUse& use, const WrittenBlock& block);
  Status send_commit(Commit& commit, std::uint32_t count, const BlockHash* parent,
                     Verdict* verdicts, bool goes_on);
  Status wait_for_copies(std::uint64_t deadline_ns);
  Status put_once(const BlockHash* parent, std::span<const PutItem> items,
                  std::span<Verdict> verdicts);
  Status check_items(std::span<const PutItem> items) const;
  void publish_pins();

  std::uint64_t read_payload(const Found& found, std::byte* to, bool hashed) const;

  Access access_;
  std::uint32_t slot_;
  ClientOptions options_;
  rpc::Waiter* waiter_;
  base::Clock* clock_;
  DirectoryReader directory_;
  block_hash::NamespaceId namespace_;
  // relaxed: readers of a namespace that moves just miss
  std::atomic<std::uint32_t> namespace_id_ = 0;
  std::uint32_t incarnation_ = 0;
  KeeperView view_;         // the keeper this client is attached to
  KeeperView lookup_view_;  // as of the last lookup
  rpc::Channel channel_;
  MailboxWatch mailbox_watch_;
  bool mailbox_is_damaged_ = false;  // it is lost_ for that
  rpc::Doorbell keeper_doorbell_;
  bool verify_checksums_ = false, write_checksums_ = false;
  bool attached_ = false;
  bool detached_ = false;  // by detach(): for good
  bool has_left_ = false;  // written under the renewal's lock, which beat() has
  std::uint64_t deadline_ns_ = kNever;
  CallTime call_time_;
  // An attachment in progress, which a call may leave to the next one: what is in the line since when,
  // and whether the keeper has opened the mailbox.
  std::uint64_t knocked_ns_ = 0;  // 0: not knocking
  bool is_let_in_ = false;
  // of those in flight, the last ones: not asked of this keeper yet
  std::uint32_t unsent_commits_ = 0;
  std::atomic<bool> lost_ = false;

  // What renew() needs, under its own lock: a thread of its own calls it.
  struct Renewal {
    std::mutex mutex;
    bool is_on = false;
    std::uint32_t incarnation = 0, keeper = 0, epoch = 0;
    std::uint64_t beats = 0;
  } renewal_;

  std::uint64_t pins_begun_ = 0;
  std::deque<std::uint64_t> pins_;  // in flight, ascending

  // Shared: a reservation may be dropped after this client is gone.
  const std::shared_ptr<ReservationBook> book_ = std::make_shared<ReservationBook>();

  const std::uint32_t advance_;
  std::deque<BlockUse> grants_;
  bool grant_asked_ = false;
  std::uint16_t grant_status_ = 0;
  bool grants_unchecked_ = false;  // the keeper line must be read again before the first store

  std::array<Commit, rpc::kMaxOutstanding> commits_;
  std::uint32_t next_commit_ = 0, commits_under_way_ = 0;
  std::uint64_t posted_commits_ = 0, answered_commits_ = 0;

  std::array<BlockUse, kUsesInHead> reports_;
  std::uint32_t report_count_ = 0;

  // The last call() and the answer to it.
  std::uint64_t call_tag_ = kFirstCall;
  bool call_done_ = false;
  std::uint16_t call_status_ = 0;
  std::array<unsigned char, rpc::kResponsePayloadBytes> call_payload_{};

  LiveClientCounters counters_;
  // What is published of them, under the renewal's lock: this client's own, and the slot's totals.
  std::optional<ClientCounters> published_;  // none: the slot's lines are not this client's yet
  std::uint32_t counters_sequence_ = 0;
  SlotTotals totals_;
  ClientCounters totals_before_;  // of the slot's earlier clients
};

// For as long as the call has time.
template <class Done>
Status Client::wait_for_keeper(Done&& done) {
  Status status = channel_.wait_until(*this, until_ns(), done, [this] { return keeper_is_gone(); });
  if (!status && status.error().code == Code::kTimeout) return no_answer();
  return status;
}

}  // namespace cachalot::pool
