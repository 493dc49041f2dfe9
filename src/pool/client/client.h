// An engine's way into the pool: look blocks up and read them without a request, write blocks into space
// that was granted in advance, and have the keeper publish them.
//
// Invariants
//   1. A payload is handed out only if its directory entry was the same before and after it was
//      read (R6), and, where checksums are verified, if its bytes match.
//   2. A block is written only while this client holds its use, from a grant of the ruling keeper;
//      from the post of its commit to the answer it is not touched (W1).
//
// If the keeper changes, suspects this client, or a line of the mailbox is damaged, the next call that needs
// the keeper attaches again, with a new incarnation, and asks the ruling keeper what became of the commits
// without an answer. Copies are done by the calling thread, or under a reservation that it waits for, so that
// none is in flight then: the client vouches that its old incarnation is drained, and what it held is free at
// once.
//
// A client that withholds a reservation vouches for nothing any more: it continues until it would have to
// attach again, and detaches without notifying the keeper. What it held is freed on evidence.
//
// The work is done by its parts, each with its own state:
//
//   BlockReader     lookups and copies out of the pool
//   BlockWriter     puts, reservations and commits: stands on GrantedBlocks, CommitsInFlight and HitReports
//   KeeperRequests  evictions, fences, the keeper's end
//   Attachment      entering, attaching again, detaching: stands on AttachHandshake, Heartbeat and Pins
//   KeeperCalls     the mailbox: requests to the keeper of the KeeperWatch, and their answers
//
// @threads  one at a time; renew() and namespace_id() from any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <span>

#include "pool/client/attachment.h"
#include "pool/client/block_reader.h"
#include "pool/client/block_writer.h"
#include "pool/client/call_time.h"
#include "pool/client/client_namespace.h"
#include "pool/client/client_options.h"
#include "pool/client/commits_in_flight.h"
#include "pool/client/copy_in_pieces.h"
#include "pool/client/granted_blocks.h"
#include "pool/client/heartbeat.h"
#include "pool/client/hit_reports.h"
#include "pool/client/keeper_calls.h"
#include "pool/client/keeper_requests.h"
#include "pool/client/keeper_watch.h"
#include "pool/client/published_counters.h"
#include "pool/client/reservation.h"

namespace cachalot::pool {

class Client {
 public:
  // Attaches as the given client slot, which no other client may use meanwhile (Pool takes a lock).
  // @errors kNoKeeper: no keeper serves the pool; kTimeout; kInvalidArgument
  static Result<std::unique_ptr<Client>> attach(const Access& access, std::uint32_t slot,
                                                const ClientOptions& options, rpc::Waiter& waiter,
                                                base::Clock& clock);
  // Detaches, if the keeper still answers.
  ~Client() { (void)detach(); }

  // --- Reading: no RPC -------------------------------------------------------------------------

  // Finds the longest published prefix of `hashes`; see DirectoryReader::lookup.
  std::size_t lookup(std::span<const BlockHash> hashes, std::span<Found> found) {
    return reader_.lookup(hashes, found);
  }

  // Copies the payloads of `found` (from the last lookup) to to[i], entry.length bytes each.
  // @shape   to: as many as found
  // @return  how many leading blocks are valid; those after them were reused meanwhile, or damaged, and
  //          their bytes in to[i] mean nothing
  // @cost    a copy; one line per block and a fence pair to validate
  std::size_t read(std::span<const Found> found, std::span<std::byte* const> to) {
    return reader_.read(found, to);
  }

  // lookup and read of one block. @return its length
  // @errors kNotFound; kNoSpace: `to` is smaller than the block
  Result<std::uint32_t> get(const BlockHash& hash, std::span<std::byte> to);

  // Notes a hit, for the keeper's order of use: give the deepest block of a prefix, it speaks for
  // all of it. Sent in batches, and always before this client's next commit. Never waits: with 128
  // requests unanswered a batch is dropped and counted.
  void report_hit(const Found& deepest) {
    if (!attachment_.is_attached() || is_lost()) return;
    reports_.add({deepest.entry.block, deepest.entry.generation});
  }

  // For consumers that cannot throw away what they have read: what is looked up after pin() is not
  // reused before the unpin() that belongs to it. Pins may overlap; unpin() takes what pin() gave.
  // A pinned read needs no validation: read() may be replaced by plain loads of the payload.
  // @errors kUnsupported: attached without `pins`; as attach() if this client has to attach again
  // @cost   pin and unpin: a line each, and a fence that waits for it
  Result<std::uint64_t> pin();
  void unpin(std::uint64_t pin);

  // --- Time ------------------------------------------------------------------------------------

  // Bounds every wait of the calls from here on, by the client's clock, beside timeout_ns and
  // recovery_ns. If an attachment is not finished in time, the next call continues it.
  static constexpr std::uint64_t kNever = CallTime::kNever;
  void set_deadline(std::uint64_t at_ns) { time_.set_deadline(at_ns); }

  // --- Writing ---------------------------------------------------------------------------------

  // Stores a chain of blocks (each one's parent is the one before, the first one's is `parent`, or
  // none: a root) and waits for the keeper's verdicts.
  // @shape   verdicts: as many as items
  // Goes on with the next keeper, if that one is there within recovery_ns.
  // @errors  kNoKeeper, kTimeout: nothing is known of the fate of items whose verdict is kNotHeld;
  //          kNoSpace: no block can be had
  Status put(const BlockHash* parent, std::span<const PutItem> items, std::span<Verdict> verdicts) {
    return writer_.put(parent, items, verdicts);
  }

  // The steps of put() for callers that write the payloads themselves; see reservation.h. While a
  // reservation is open this client does not attach again: it could not vouch for the copies.
  // @return as many blocks as can be had, at least one
  // @errors as put(); kInvalidArgument: not 1 to kMaxCommitItems blocks
  Result<Reservation> reserve(std::uint32_t blocks) { return writer_.reserve(blocks); }
  // @shape  blocks: at most as many as reserved, a chain as for put(); verdicts: as many
  // @param  goes_on  more of this chain follows: the keeper spares what is there, while it can
  // @errors kStale: the keeper is another one since, or gave this client up: reserve and write again;
  //         kInvalidArgument: another client's, or more blocks than it has; else as put()
  Status commit(const BlockHash* parent, WrittenReservation reservation,
                std::span<const WrittenBlock> blocks, std::span<Verdict> verdicts,
                bool goes_on = false) {
    return writer_.commit(parent, std::move(reservation), blocks, verdicts, goes_on);
  }
  // A reservation of this client is open or withheld. No other client of this process may enter its slot
  // then: one that is refused there says, as it leaves, that all before it is over.
  bool may_still_store() const { return grants_.reservations()->may_still_store(); }

  // As put() of one block, but does not wait: the verdict goes into the counters only. Waits if too
  // many are in flight. drain() waits for all.
  Status post_put(const BlockHash* parent, const PutItem& item) {
    return writer_.post_put(parent, item);
  }
  Status drain() { return writer_.drain(); }

  // --- The keeper ------------------------------------------------------------------------------

  // Evictions, fences, the keeper's end.
  KeeperRequests& requests() { return requests_; }
  const KeeperRequests& requests() const { return requests_; }
  // Blocks that this client holds in advance.
  const GrantedBlocks& grants() const { return grants_; }

  // Shows that this client lives, and looks whether the keeper still thinks so. To be called every
  // second or so, also while the engine computes (PoolClient has a thread that does).
  void renew() {
    if (heartbeat_.renew()) counters_.publish();
  }
  // Returns blocks held in advance that are on a device which a growable pool gives up. An idle client is to call it
  // every second or so, else the pool waits for its next put.
  void return_inaccessible() {
    if (!attachment_.is_attached() || is_lost()) return;
    calls_.poll();
    grants_.return_inaccessible();
  }
  // True once the keeper has released this client, another one rules, or the mailbox is damaged: the next
  // call attaches again.
  bool is_lost() const { return heartbeat_.is_lost(); }
  // Attaches again now. @errors as attach(); kBusy: the keeper holds this slot
  Status reattach(std::uint64_t patience_ns) { return attachment_.reattach(patience_ns); }

  // Sends what is waiting, gives unused blocks back, detaches. Further calls fail.
  // @errors kBusy: copies are still in flight, nothing was sent: retry after their end; kNoKeeper, kTimeout: no answer, the
  //         client's line says it
  Status detach() { return attachment_.detach(); }
  // True once it has detached, answered or not: from here on it stores nothing, neither into blocks nor
  // into the lines of its slot, which another client may have.
  bool has_left() const { return attachment_.has_left(); }

  // --- About itself ----------------------------------------------------------------------------

  // For a client that chooses_namespaces, between two calls, after all its commits were answered.
  void choose_namespace(std::uint32_t id) { namespace_.choose(id); }
  // Of a client that reads only: looks again whether the namespace exists.
  Status open_namespace() { return namespace_.open(); }
  // 0: it does not exist (reads_only). @threads any
  std::uint32_t namespace_id() const { return namespace_.id(); }
  bool writes_checksums() const { return writer_.writes_checksums(); }
  bool verifies_checksums() const { return reader_.verifies_checksums(); }
  std::uint32_t epoch() const { return keeper_.view().epoch; }  // of its keeper
  const Access& access() const { return context_.access; }
  const LiveClientCounters& counters() const { return counters_.live(); }

 private:
  Client(const Access& access, std::uint32_t slot, const ClientOptions& options,
         rpc::Waiter& waiter, base::Clock& clock);

  // Each one refers to those before it.
  const ClientContext context_;
  CallTime time_;
  PublishedCounters counters_;
  KeeperWatch keeper_;
  Heartbeat heartbeat_;
  KeeperCalls calls_;
  ClientNamespace namespace_;
  HitReports reports_;
  GrantedBlocks grants_;
  CommitsInFlight commits_;
  Attachment attachment_;
  BlockReader reader_;
  BlockWriter writer_;
  KeeperRequests requests_;
};

}  // namespace cachalot::pool
