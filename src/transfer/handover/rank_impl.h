// One rank's hand-overs. The offers (prefill side) and the asks (decode side) are apart: they share the engine, the
// cache and the plans.
//
//   transfer_rank.cpp   the public class, deadlines, events of the engine
//   offers.cpp          offers, and the peers that are served from them
//   waiting_asks.cpp    asks that came before what they are for
//   asks.cpp            asks: connect, plan, windows, arrival
//   copies.cpp          what a rank fetches for others of its machine: an offer of the pages of an ask
//
// One mutex guards all of it. The engine calls back without its own lock, and is called with this one held.
#pragma once

#include <cachalot/transfer.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kv/engine_cache.h"
#include "transfer/engine/engine.h"
#include "transfer/handover/address_book.h"
#include "transfer/handover/gpu_bounce.h"
#include "transfer/handover/instance.h"
#include "transfer/handover/messages.h"
#include "transfer/handover/proof.h"
#include "transfer/pair/geometry_pair.h"
#include "transfer/pair/kv_stream.h"

namespace cachalot {

using namespace transfer;  // NOLINT: the implementation of the public class is this module

// KV that peers may take.
struct Offer {
  OfferName name;
  OfferId id;  // the secret of asks for it
  std::vector<PageId> pages;
  std::uint64_t tokens = 0, deadline_ns = 0;
  std::uint32_t layers_ready = 0;
  bool has_note = false;
  std::optional<std::vector<std::byte>> note;
  std::vector<BlockHash> hashes;  // of each page; none: no part can be taken
  bool is_standing = false;       // any number of instances may take it
  // Not of the caller: pages of this ask, for ranks of this machine. It ends before the ask does.
  std::optional<AskId> copied;
  std::uint64_t first_page_token = 0;
  // Of the instance that has asked first; not of a standing offer.
  std::optional<InstanceShape> taker;
  std::uint32_t expected = 0, done = 0, failed = 0;  // transfers; a standing offer expects none
  // Of the first rank that failed. Its sister ranks go on.
  std::optional<Error> failure;
  const char* failure_reason = "";
  // Ranks of the taker that have not asked by then count as failed; 0: the deadline. They have `peer_timeout` from when
  // the end waits for their asks: a sister has failed, or what they would copy is there.
  std::uint64_t ask_by_ns = 0;
  bool is_closed = false;  // that time is over
};

// One rank of a peer that has asked for an offer.
struct Taker {
  PeerId peer = {};
  std::uint64_t ask = 0;  // as the peer numbers it
  OfferName offer;
  std::uint64_t first_token = 0, tokens = 0;
  std::vector<Fetch> fetches;
  std::vector<StreamOrder> orders;
  bool has_gone = false;       // its Go came
  bool has_failed = false;     // stays until the offer ends, so that the rank does not ask again
  std::vector<PushId> pushes;  // of each fetch; 0: has ended
  std::uint32_t left = 0;      // transfers that have not ended
};
using TakerKey = std::pair<PeerId, std::uint64_t>;

// A fact of a rank: as division_text() says it. Ranks of older builds do not say it.
inline constexpr const char* kDivisionFact = "division";

// An ask that came before its offer, or before the ask that it copies from. Its proof is looked at when that comes.
struct EarlyAsk {
  PeerId peer = {};
  std::string host;  // of the peer
  AskMessage message;
  bool is_cancelled = false;  // its rank will not take the offer
};

struct AskWindow {
  Fetch fetch;
  WindowKey key = {};
  std::uint64_t bytes = 0, arrived = 0;
  bool is_open = false, is_done = false;
};

// One rank that this ask needs: of the prefill instance, or of this one.
struct Source {
  std::uint32_t rank = 0;
  bool is_sister = false;  // of this instance
  std::optional<PeerId> peer;
  bool has_plan = false;  // it has proved that it knows the offer
  std::vector<AskWindow> windows;
};

struct Ask {
  AskId id = {};
  KvReference reference;
  OfferName name;  // of its offer
  Nonce nonce;
  std::vector<PageId> pages;
  std::uint64_t first_token = 0, tokens = 0, deadline_ns = 0;
  bool waits_for_offer = false;
  std::optional<BlockHash> hash;
  std::string division;  // of the source, as the reference says
  std::vector<Source> sources;
  std::vector<std::uint32_t>
      idle_ranks;  // that this pair needs nothing of, and that this rank tells so
  AskStatus status;
  bool has_note = false;
  std::optional<OfferName> copies;  // the offer for ranks of this machine, until it has ended
  // Shared with connections that do not stand yet: the offer was not there, and this rank may ask for it again. Else
  // they tell their ranks of the ask and its end, also when it was released meanwhile.
  std::shared_ptr<bool> may_ask_again = std::make_shared<bool>(false);
};

// What ranks of a machine fetch once. They do not know the numbers of each other's asks.
struct SharedFetch {
  OfferName offer;
  std::uint64_t first_token = 0, tokens = 0;
  std::optional<BlockHash> hash;
  bool operator==(const SharedFetch&) const = default;
};
// One that is over: ranks that ask for a copy of it hear why, and do not wait for another one.
struct EndedFetch {
  SharedFetch fetch;
  OfferId id;  // the secret of asks for it
  Error error;
  std::uint64_t until_ns = 0;
};

struct TransferRank::Impl final : EngineEvents {
  explicit Impl(const TransferOptions& given, kv::EngineCache made, std::uint32_t rank)
      : options(bounded(given)), cache(std::move(made)), own_rank(rank) {}
  ~Impl() override;
  static TransferOptions bounded(TransferOptions given) {
    given.peer_timeout_ns = std::min(given.peer_timeout_ns, kMostPeerTimeoutNs);
    return given;
  }
  Status start();
  void close();

  // The cache is on a GPU: this has a rank of its own, which does it all, and nothing below is used.
  std::unique_ptr<GpuBounce> bounce;

  // EngineEvents
  void on_message(PeerId peer, std::span<const std::byte> bytes) override;
  void on_peer_lost(PeerId peer, const Error& error) override;
  void on_window(WindowKey key, const TransferStatus& status) override;
  void on_push(PushId id, const TransferStatus& status) override;

  // All below: with the lock.
  // transfer_rank.cpp
  Status check_open() const;
  void end_all();
  void watch();  // the thread for deadlines
  void expire(std::uint64_t now_ns);
  void send(PeerId to, const Message& message);
  Party own_party() const { return {engine->name(), engine->incarnation()}; }
  // @param nonce  of the ask that a plan answers; none for other messages
  template <class M>
  void send_proven(PeerId to, const OfferId& id, const Nonce& nonce, M message);
  // Whether the peer knows the id. If so, its connection is trusted.
  template <class M>
  bool is_proven(PeerId from, const OfferId& id, const Nonce& nonce, const M& message);
  Result<const PairPlan*> plan_from(const InstanceShape& source,
                                    const OfferId& id);  // this rank takes
  Result<const PairPlan*> plan_to(const InstanceShape& taker,
                                  const OfferId& id);  // this rank gives
  // Of a call that begins something. @errors kInvalidArgument: also a closed rank
  Status check_pages(std::span<const PageId> pages, std::uint64_t first_token,
                     std::uint64_t tokens) const;
  Status check_peer(PeerId peer) const;
  Status check_addresses(const KvReference& reference) const;
  Status check_layers(std::uint32_t layers_ready) const;

  // offers.cpp
  void take_ask(PeerId peer, AskMessage message);
  Status serve(PeerId peer, const AskMessage& message, Offer& offer);
  Status check_tokens(const AskMessage& message, const Offer& offer) const;
  Status check_takers(const Taker& taker, const Offer& offer, std::uint32_t rank) const;
  void take_go(PeerId peer, const GoMessage& message);
  void take_cancel(PeerId peer, std::uint64_t ask);
  void take_nothing(PeerId peer, const NothingMessage& message);
  void take_decline(PeerId peer, const DeclineMessage& message);
  Result<std::span<const Fetch>> fetches_of(const AskMessage& message, const Offer& offer,
                                            std::uint32_t& expected);
  KvSlice slice_of(const Offer& offer, const Taker& taker, const Fetch& fetch) const;
  void raise_layers(Offer& offer, std::uint32_t layers);
  void send_note(Offer& offer, std::span<const std::byte> note);
  std::uint64_t ready_bytes(const Offer& offer, const Fetch& fetch, std::uint64_t turn_bytes) const;
  // All transfers that the pair expects have ended, and the note is sent if a rank waits for it.
  void end_if_over(Offer& offer);
  // The transfers of one rank have failed: those of its sister ranks go on.
  // @param tells  the peer, if it has no push that does
  void fail_taker(TakerKey key, const Error& error, const char* reason, bool tells);
  void end_pushes(Taker& taker, const Error& error, bool tells);
  void end_taker(TakerKey key, const Error& error, bool tells);
  void await_asks(Offer& offer);
  void end_await(Offer& offer);
  // `name` by value: it may be that of the offer that ends.
  // @param counter  null: by the status
  void end_offer(OfferName name, Status status, const char* reason,
                 std::uint64_t TransferStatistics::*counter = nullptr);
  void lose_taker(PeerId peer, const Error& error);
  Error refusal_of(const OfferName& name) const;

  // waiting_asks.cpp
  void keep_early(PeerId peer, AskMessage message);
  void drop_early(PeerId peer);
  void take_early(const std::function<bool(const AskMessage&)>& is_for);
  void take_cancelled_early(const OfferName& name);
  void cancel_early(PeerId peer, std::uint64_t ask);

  // asks.cpp
  void begin(Ask& ask);
  Status begin(const Ask& ask, const Source& source);
  void connect(const KvReference& reference, std::uint32_t rank, std::uint64_t deadline_ns,
               std::function<void(Result<PeerId>)> done);
  Result<AskMessage> message_of(const Ask& ask, const Source& source) const;
  // @param may_ask_again  Ask::may_ask_again: read with the lock
  void on_connected(AskId id, std::uint32_t source_rank, const OfferId& offer,
                    const AskMessage& message, const bool& may_ask_again, Result<PeerId> peer);
  void take_plan(PeerId peer, const PlanMessage& message);
  Status open_windows(Ask& ask, Source& source, const PlanMessage& message);
  void take_note(PeerId peer, NoteMessage message);
  void take_refusal(PeerId peer, const RefusalMessage& message);
  Status check_division(const Ask& ask, const Source& source, PeerId peer) const;
  // At its deadline: what has not come.
  Error lateness_of(const Ask& ask) const;
  void end_ask(Ask& ask, const Error* error);
  // This source has nothing more to send.
  bool is_complete(const Ask& ask, const Source& source) const;
  void end_if_arrived(Ask& ask);
  void close_windows(Ask& ask, const Error* reason);
  KvSlice slice_of(const Ask& ask, const Fetch& fetch) const;
  Ask* find_ask(std::uint64_t number, PeerId peer, Source** source);

  // copies.cpp
  void offer_copies(Ask& ask, const PairPlan& plan, const OfferName& name);
  void take_copy_ask(PeerId peer, AskMessage message);
  Status check_sister(PeerId peer, const AskMessage& message) const;
  Offer* find_copies(const AskMessage& message);
  void on_copies_ended(AskId id);
  void fail_copies(Ask& ask, const Error& error);
  void remember_end(const Ask& ask, const Error& error);
  const EndedFetch* find_ended(const AskMessage& message) const;

  const TransferOptions options;
  const kv::EngineCache cache;
  const std::uint32_t own_rank;
  std::vector<Rank> own_ranks;
  std::string model_sizes;
  std::unique_ptr<TransferEngine> engine;
  std::unique_ptr<AddressBook> book;  // null: no registry
  // Of the calls of close(); taken before `mutex`, never by a thread of the rank
  std::mutex closing;

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::condition_variable deadlines_changed;
  bool is_closed = false;  // nothing begins any more
  std::thread watcher;

  std::map<OfferName, Offer> offers;
  std::map<TakerKey, Taker> takers;
  std::map<PushId, TakerKey> push_takers;
  std::deque<EarlyAsk> early;
  std::vector<EndedOffer> ended;
  std::map<OfferName, const char*> ended_reasons;  // of the last ones
  std::deque<OfferName> ended_order;

  std::vector<std::vector<std::string>> instance_addresses;
  std::deque<EndedFetch> ended_fetches;  // the last ones
  std::map<AskId, Ask> asks;
  std::unordered_map<std::uint64_t, AskId> window_asks;
  std::uint64_t next_ask = 1;

  // By shape and turn: (is_giving, shape, turn).
  struct PlanKey {
    bool is_giving;
    InstanceShape shape;
    std::uint64_t turn;
  };
  std::deque<std::pair<PlanKey, PairPlan>> plans;
  TransferStatistics counts = {};
  // Tests only: changes the engine's options before start().
  std::function<void(EngineOptions&)> tune = {};
};

template <class M>
void TransferRank::Impl::send_proven(PeerId to, const OfferId& id, const Nonce& nonce, M message) {
  const Result<PeerInfo> info = engine->info(to);
  if (!info) return;  // lost: on_peer_lost() comes
  message.proof = proof_of(id, own_party(), {info->name, info->incarnation}, nonce, message);
  send(to, std::move(message));
}

template <class M>
bool TransferRank::Impl::is_proven(PeerId from, const OfferId& id, const Nonce& nonce,
                                   const M& message) {
  const Result<PeerInfo> info = engine->info(from);
  if (!info || !equals(message.proof,
                       proof_of(id, {info->name, info->incarnation}, own_party(), nonce, message)))
    return false;
  engine->trust(from);
  return true;
}

}  // namespace cachalot
