// The prefill side: which peer may take what, and when the pages are free again.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transfer/handover/rank_impl.h"

namespace cachalot {
namespace {

constexpr std::size_t kRememberedOffers = 4096;
// Of one standing offer at a time: a peer may ask as often as it likes.
constexpr std::size_t kMostTakers = 1024;

// Of the first tokens of an offer.
std::span<const PageId> pages_of(const Offer& offer, std::uint64_t tokens) {
  if (tokens == offer.tokens) return offer.pages;
  const std::uint64_t page_tokens = offer.tokens / offer.hashes.size();
  return std::span(offer.pages).first(tokens / page_tokens);
}

}  // namespace

// Why an id leads to nothing.
Error TransferRank::Impl::refusal_of(const OfferName& name) const {
  if (const auto found = ended_reasons.find(name); found != ended_reasons.end()) {
    return Error::make(Code::kStale, "the offer has ended: %s", found->second);
  }
  return Error::make(Code::kNotFound, "instance %s has no such offer, or has restarted since",
                     options.instance.c_str());
}

void TransferRank::Impl::take_ask(PeerId peer, AskMessage message) {
  if (message.is_copy) return take_copy_ask(peer, std::move(message));
  Status status = check_peer(peer);
  const auto found = offers.find(message.offer);
  if (status.ok() && found == offers.end() && message.waits_for_offer &&
      !ended_reasons.contains(message.offer))
    return keep_early(peer, std::move(message));
  // A peer that does not know the id does not hear that there is such an offer.
  if (status.ok() && (found == offers.end() || found->second.copied ||
                      !is_proven(peer, found->second.id, {}, message)))
    status = refusal_of(message.offer);
  if (status.ok()) status = serve(peer, message, found->second);
  if (status.ok()) return;
  ++counts.refused_asks;
  send(peer, RefusalMessage{message.ask, status.error()});
}

Status TransferRank::Impl::check_layers(std::uint32_t layers_ready) const {
  if (layers_ready <= cache.geometry().layers) return {};
  return Error::make(Code::kInvalidArgument, "%u layers are ready; this rank has %u layers",
                     layers_ready, cache.geometry().layers);
}

// Whether the offer has what is asked for: the same tokens, which a hash tells.
Status TransferRank::Impl::check_tokens(const AskMessage& message, const Offer& offer) const {
  const std::uint64_t page_tokens = cache.page_tokens();
  const bool is_part =
      message.tokens < offer.tokens && !offer.hashes.empty() && message.tokens % page_tokens == 0;
  if (message.first_token >= message.tokens || (message.tokens != offer.tokens && !is_part)) {
    return Error::make(Code::kInvalidArgument,
                       "tokens %llu to %llu were asked for; the offer has %llu tokens%s",
                       static_cast<unsigned long long>(message.first_token),
                       static_cast<unsigned long long>(message.tokens),
                       static_cast<unsigned long long>(offer.tokens),
                       offer.hashes.empty() ? ", and none of a part" : "");
  }
  if (offer.hashes.empty()) return {};
  if (!message.hash) {
    if (!is_part && !offer.is_standing) return {};
    return Error::make(Code::kInvalidArgument, "%s was asked for without a hash",
                       is_part ? "a part of an offer" : "a standing offer");
  }
  if (*message.hash != offer.hashes[message.tokens / page_tokens - 1]) {
    return Error::make(Code::kRefused, "the first %llu tokens of the offer are others",
                       static_cast<unsigned long long>(message.tokens));
  }
  return {};
}

// One instance takes an offer, each of its ranks once; of a standing offer not too many at a time.
Status TransferRank::Impl::check_takers(const Taker& taker, const Offer& offer,
                                        std::uint32_t rank) const {
  std::size_t count = 0;
  for (const auto& [key, other] : takers) {
    if (other.offer != offer.name) continue;
    ++count;
    if (!offer.is_standing && !other.fetches.empty() && !taker.fetches.empty() &&
        other.fetches.front().destination == rank) {
      return Error::make(
          Code::kRefused, "rank %u of this instance %s", rank,
          other.has_failed ? "has failed to take the offer" : "is taking the offer already");
    }
  }
  if (!offer.is_standing || count < kMostTakers) return {};
  return Error::make(Code::kBusy, "%zu ranks are taking the offer", count);
}

Status TransferRank::Impl::serve(PeerId peer, const AskMessage& message, Offer& offer) {
  const TakerKey key{peer, message.ask};
  if (takers.contains(key))
    return Error::make(Code::kBadInput, "ask %llu came twice",
                       static_cast<unsigned long long>(message.ask));
  if (!offer.copied) CACHALOT_TRY(check_tokens(message, offer));
  if (offer.is_closed) {
    return Error::make(Code::kStale, "rank %u asks too late: a sister has failed, or has waited",
                       message.rank);
  }
  if (offer.taker && *offer.taker != message.shape) {
    return Error::make(Code::kRefused, "an instance of another shape is taking this offer");
  }
  std::uint32_t expected = 0;
  CACHALOT_TRY_ASSIGN(const std::span<const Fetch> fetches, fetches_of(message, offer, expected));
  if (message.rank >= message.shape.ranks()) {
    return Error::make(Code::kInvalidArgument, "rank %u of an instance of %u", message.rank,
                       message.shape.ranks());
  }
  Taker taker;
  taker.peer = peer;
  taker.ask = message.ask;
  taker.offer = offer.name;
  taker.first_token = message.first_token;
  taker.tokens = message.tokens;
  for (const Fetch& fetch : fetches) {
    if (fetch.source == own_rank) taker.fetches.push_back(fetch);
  }
  if (taker.fetches.empty() || taker.fetches.size() != message.fetches.size()) {
    return Error::make(Code::kInvalidArgument,
                       "%zu transfers were asked for; this pair of instances has %zu",
                       message.fetches.size(), taker.fetches.size());
  }
  CACHALOT_TRY(check_takers(taker, offer, message.rank));
  taker.left = static_cast<std::uint32_t>(taker.fetches.size());
  for (std::size_t i = 0; i < taker.fetches.size(); ++i) {
    const Fetch& fetch = taker.fetches[i];
    CACHALOT_TRY_ASSIGN(const StreamShape mine, stream_shape(cache, slice_of(offer, taker, fetch)));
    CACHALOT_TRY_ASSIGN(const StreamOrder order, choose_order(mine, message.fetches[i]));
    taker.orders.push_back(order);
  }
  if (!offer.is_standing) {
    offer.taker = message.shape;
    offer.expected = expected;
  }
  send_proven(peer, offer.id, message.nonce, PlanMessage{message.ask, taker.orders});
  if (offer.note) send(peer, NoteMessage{message.ask, *offer.note});
  takers.emplace(key, std::move(taker));
  return {};
}

// What a rank takes of an offer. @param expected  transfers that the offer waits for
Result<std::span<const Fetch>> TransferRank::Impl::fetches_of(const AskMessage& message,
                                                              const Offer& offer,
                                                              std::uint32_t& expected) {
  if (offer.copied) {
    const KvReference& reference = asks.at(*offer.copied).reference;
    CACHALOT_TRY_ASSIGN(const PairPlan* const plan, plan_from(reference.shape, reference.id));
    expected = offer.expected;
    return plan->copies_of(message.rank);
  }
  CACHALOT_TRY_ASSIGN(const PairPlan* const plan, plan_to(message.shape, offer.id));
  expected = plan->expected_transfers(own_rank);
  return plan->fetches_of(message.rank);
}

KvSlice TransferRank::Impl::slice_of(const Offer& offer, const Taker& taker,
                                     const Fetch& fetch) const {
  return {pages_of(offer, taker.tokens), taker.first_token - offer.first_page_token,
          taker.tokens - taker.first_token, fetch.source_layers, fetch.source_heads};
}

void TransferRank::Impl::raise_layers(Offer& offer, std::uint32_t layers) {
  offer.layers_ready = std::max(offer.layers_ready, layers);
  for (const auto& [key, taker] : takers) {
    if (taker.offer != offer.name) continue;
    for (std::size_t i = 0; i < taker.pushes.size(); ++i) {
      if (taker.pushes[i] == PushId{}) continue;
      const Fetch& fetch = taker.fetches[i];
      const std::uint64_t turn_bytes =
          fetch.token_bytes * (taker.tokens - taker.first_token) / fetch.layers.count();
      static_cast<void>(engine->advance(taker.pushes[i], ready_bytes(offer, fetch, turn_bytes)));
    }
  }
}

void TransferRank::Impl::send_note(Offer& offer, std::span<const std::byte> note) {
  offer.note.emplace(note.begin(), note.end());
  for (const auto& [key, taker] : takers) {
    if (taker.offer == offer.name && !taker.has_failed)
      send(taker.peer, NoteMessage{taker.ask, *offer.note});
  }
  end_if_over(offer);
}

std::uint64_t TransferRank::Impl::ready_bytes(const Offer& offer, const Fetch& fetch,
                                              std::uint64_t turn_bytes) const {
  const std::uint32_t first = fetch.source_layers.first;
  if (offer.layers_ready <= first) return 0;
  return std::min(offer.layers_ready - first, fetch.source_layers.count()) * turn_bytes;
}

void TransferRank::Impl::take_go(PeerId peer, const GoMessage& message) {
  const auto found = takers.find({peer, message.ask});
  if (found == takers.end()) return;  // cancelled meanwhile
  Taker& taker = found->second;
  const auto offer = offers.find(taker.offer);
  if (offer == offers.end() || taker.has_gone || message.windows.size() != taker.fetches.size())
    return;
  taker.has_gone = true;
  for (std::size_t i = 0; i < taker.fetches.size(); ++i) {
    const Fetch& fetch = taker.fetches[i];
    Result<ByteStream> stream =
        kv_stream(cache, slice_of(offer->second, taker, fetch), taker.orders[i]);
    Result<PushId> push =
        stream
            ? engine->push(peer, WindowKey{message.windows[i]}, *stream, offer->second.deadline_ns,
                           ready_bytes(offer->second, fetch, stream->turn_bytes()))
            : Result<PushId>(stream.error());
    if (!push) {
      fail_taker({peer, message.ask}, push.error(), "a transfer failed", true);
      return;
    }
    taker.pushes.push_back(*push);
    push_takers[*push] = found->first;
  }
}

void TransferRank::Impl::on_push(PushId id, const TransferStatus& status) {
  if (status.state == TransferState::kRunning) return;
  const std::lock_guard lock(mutex);
  const auto found = push_takers.find(id);
  if (found == push_takers.end()) return;
  const auto taker = takers.find(found->second);
  push_takers.erase(found);
  if (taker == takers.end()) return;
  const OfferName offer_name = taker->second.offer;
  const auto offer = offers.find(offer_name);
  engine->release(id);
  std::ranges::replace(taker->second.pushes, id, PushId{});
  if (offer == offers.end()) return;
  if (offer->second.is_standing) {
    const bool is_failed = status.state == TransferState::kFailed;
    offer->second.done += !is_failed;
    const bool has_all =
        std::ranges::all_of(taker->second.pushes, [](PushId push) { return push == PushId{}; });
    if (is_failed || has_all) end_taker(taker->first, status.error, false);
    return;
  }
  if (status.state == TransferState::kFailed) {
    if (offer->second.deadline_ns <= base::SteadyClock::read())
      end_offer(offer_name, status.error, "it has expired");
    else
      fail_taker(taker->first, status.error, "a transfer failed", false);
    return;
  }
  --taker->second.left;
  ++offer->second.done;
  end_if_over(offer->second);
}

void TransferRank::Impl::end_if_over(Offer& offer) {
  if (offer.is_standing || !offer.taker || offer.done + offer.failed < offer.expected) return;
  if (offer.has_note && !offer.note) {
    // Failed ranks do not wait for it.
    bool has_taker = false, has_live = false;
    for (const auto& [key, taker] : takers) {
      if (taker.offer != offer.name) continue;
      has_taker = true;
      has_live = has_live || !taker.has_failed;
    }
    if (has_live || !has_taker) return;
  }
  if (offer.failure)
    end_offer(offer.name, *offer.failure, offer.failure_reason);
  else
    end_offer(offer.name, {}, "it was taken");
}

void TransferRank::Impl::fail_taker(TakerKey key, const Error& error, const char* reason,
                                    bool tells) {
  const auto found = takers.find(key);
  if (found == takers.end() || found->second.has_failed) return;
  Taker& taker = found->second;
  const auto entry = offers.find(taker.offer);
  if (entry == offers.end() || entry->second.is_standing) {
    end_taker(key, error, tells);
    return;
  }
  Offer& offer = entry->second;
  end_pushes(taker, error, tells);
  taker.has_failed = true;
  offer.failed += std::exchange(taker.left, 0);
  if (!offer.failure) {
    offer.failure = error;
    offer.failure_reason = reason;
  }
  if (!offer.copied) await_asks(offer);
  end_if_over(offer);
}

void TransferRank::Impl::await_asks(Offer& offer) {
  if (offer.ask_by_ns != 0) return;
  offer.ask_by_ns = base::SteadyClock::read() + options.peer_timeout_ns;
  deadlines_changed.notify_all();
}

// The time for asks is over.
void TransferRank::Impl::end_await(Offer& offer) {
  offer.is_closed = true;
  std::uint32_t asked = 0;
  for (const auto& [key, taker] : takers) {
    if (taker.offer == offer.name) asked += static_cast<std::uint32_t>(taker.fetches.size());
  }
  if (asked >= offer.expected) return;
  const Error error =
      Error::make(Code::kTimeout, "%u of %u transfers were not asked for within %llu ms",
                  offer.expected - asked, offer.expected,
                  static_cast<unsigned long long>(options.peer_timeout_ns / 1'000'000));
  offer.failed += offer.expected - asked;
  if (!offer.failure) {
    offer.failure = error;
    offer.failure_reason = "a rank did not ask for it in time";
  }
  if (offer.copied) remember_end(asks.at(*offer.copied), error);
  end_if_over(offer);
}

void TransferRank::Impl::end_pushes(Taker& taker, const Error& error, bool tells) {
  bool is_pushing = false;
  for (PushId& push : taker.pushes) {
    if (push == PushId{}) continue;
    is_pushing = true;
    push_takers.erase(push);
    engine->release(push, &error);  // after this, nothing reads the pages
    push = PushId{};
  }
  // Without a push the peer would wait for its deadline.
  if (tells && !is_pushing) send(taker.peer, RefusalMessage{taker.ask, error});
}

void TransferRank::Impl::end_taker(TakerKey key, const Error& error, bool tells) {
  const auto found = takers.find(key);
  if (found == takers.end()) return;
  // One that has all waits for the note at most.
  const auto offer = offers.find(found->second.offer);
  const bool needs_note = offer != offers.end() && offer->second.has_note && !offer->second.note;
  const bool waits = !found->second.has_failed && (found->second.left > 0 || needs_note);
  end_pushes(found->second, error, tells && waits);
  takers.erase(found);
}

void TransferRank::Impl::end_offer(OfferName name, Status status, const char* reason,
                                   std::uint64_t TransferStatistics::*counter) {
  const auto found = offers.find(name);
  if (found == offers.end()) return;
  const Error error = status.ok() ? Error::make(Code::kCancelled, "the offer has ended: %s", reason)
                                  : status.error();
  std::vector<TakerKey> of_offer;
  for (const auto& [key, taker] : takers) {
    if (taker.offer == name) of_offer.push_back(key);
  }
  const bool tells = !status.ok() || found->second.is_standing;
  for (const TakerKey& key : of_offer) end_taker(key, error, tells);
  const std::optional<AskId> copied = found->second.copied;
  const OfferId id = found->second.id;
  offers.erase(found);
  if (copied) return on_copies_ended(*copied);
  if (counter == nullptr) {
    const bool is_late = !status.ok() && status.error().code == Code::kTimeout;
    counter = status.ok() ? &TransferStatistics::taken_offers
              : is_late   ? &TransferStatistics::expired_offers
                          : &TransferStatistics::failed_offers;
  }
  ++(counts.*counter);
  ended.push_back({id, std::move(status)});
  ended_reasons[name] = reason;
  ended_order.push_back(name);
  if (ended_order.size() > kRememberedOffers) {
    ended_reasons.erase(ended_order.front());
    ended_order.pop_front();
  }
  changed.notify_all();
}

void TransferRank::Impl::take_cancel(PeerId peer, std::uint64_t ask) {
  cancel_early(peer, ask);
  const auto found = takers.find({peer, ask});
  if (found == takers.end()) return;
  const Error error = Error::make(Code::kCancelled, "the decode instance has cancelled");
  fail_taker(found->first, error, "the decode instance cancelled it", false);
}

// A rank whose bytes are not needed would wait for ever, if it counted ranks.
void TransferRank::Impl::take_nothing(PeerId peer, const NothingMessage& message) {
  const auto found = offers.find(message.offer);
  if (found == offers.end() || found->second.is_standing || !check_peer(peer).ok() ||
      !is_proven(peer, found->second.id, {}, message))
    return;
  Offer& offer = found->second;
  const Result<const PairPlan*> plan = plan_to(message.shape, offer.id);
  if (!plan || (*plan)->expected_transfers(own_rank) != 0 ||
      (offer.taker && *offer.taker != message.shape))
    return;
  offer.taker = message.shape;
  offer.expected = 0;
  end_if_over(offer);
}

void TransferRank::Impl::take_decline(PeerId peer, const DeclineMessage& message) {
  const auto found = offers.find(message.offer);
  if (found == offers.end() || found->second.is_standing || found->second.taker ||
      !check_peer(peer).ok() || !is_proven(peer, found->second.id, {}, message))
    return;
  end_offer(message.offer, {}, "the decode instance did not need it",
            &TransferStatistics::declined_offers);
}

void TransferRank::Impl::lose_taker(PeerId peer, const Error& error) {
  std::erase_if(early, [&](const EarlyAsk& e) { return e.peer == peer; });
  std::vector<TakerKey> lost;
  for (const auto& [key, taker] : takers) {
    if (key.first == peer) lost.push_back(key);
  }
  for (const TakerKey& key : lost) fail_taker(key, error, "the decode instance was lost", false);
}

// --- Public ---

Status TransferRank::offer(const OfferOptions& o) {
  if (impl_->bounce) return impl_->bounce->offer(o);
  const std::lock_guard lock(impl_->mutex);
  if (o.id == OfferId{}) return Error::make(Code::kInvalidArgument, "an offer without an id");
  const OfferName name = name_of(o.id);
  if (impl_->offers.contains(name) || impl_->ended_reasons.contains(name)) {
    return Error::make(Code::kBusy, "an offer of this id exists, or has ended");
  }
  CACHALOT_TRY(impl_->check_pages(o.pages, 0, o.tokens));
  if (o.layers_ready != kAllLayers) CACHALOT_TRY(impl_->check_layers(o.layers_ready));
  const bool is_whole = o.tokens % impl_->cache.page_tokens() == 0;
  if (!o.hashes.empty() && (o.hashes.size() != o.pages.size() || !is_whole)) {
    return Error::make(Code::kInvalidArgument,
                       "%zu hashes for %llu tokens; expected one for each of %zu whole pages",
                       o.hashes.size(), static_cast<unsigned long long>(o.tokens), o.pages.size());
  }
  if (o.is_standing && (o.hashes.empty() || o.has_note)) {
    return Error::make(Code::kInvalidArgument,
                       "a standing offer with%s hashes and with%s note; expected hashes, no note",
                       o.hashes.empty() ? "out" : "", o.has_note ? " a" : "out a");
  }
  Offer& offer = impl_->offers[name];
  offer.name = name;
  offer.id = o.id;
  offer.pages.assign(o.pages.begin(), o.pages.end());
  offer.tokens = o.tokens;
  offer.deadline_ns =
      base::SteadyClock::read() + std::min<std::uint64_t>(o.deadline_ns, ~std::uint64_t{0} >> 2);
  offer.layers_ready = o.layers_ready;
  offer.has_note = o.has_note;
  offer.hashes.assign(o.hashes.begin(), o.hashes.end());
  offer.is_standing = o.is_standing;
  ++impl_->counts.offers;
  impl_->deadlines_changed.notify_all();
  impl_->take_early([&](const AskMessage& m) { return !m.is_copy && m.offer == name; });
  impl_->take_cancelled_early(name);
  return {};
}

Status TransferRank::layers_ready(const OfferId& id, std::uint32_t layers) {
  if (impl_->bounce) return impl_->bounce->layers_ready(id, layers);
  const std::lock_guard lock(impl_->mutex);
  const OfferName name = name_of(id);
  const auto found = impl_->offers.find(name);
  if (found == impl_->offers.end()) return impl_->refusal_of(name);
  CACHALOT_TRY(impl_->check_layers(layers));
  impl_->raise_layers(found->second, layers);
  return {};
}

Status TransferRank::finish(const OfferId& id, std::span<const std::byte> note) {
  if (impl_->bounce) return impl_->bounce->finish(id, note);
  if (note.size() > kMostNoteBytes) {
    return Error::make(Code::kInvalidArgument, "a note of %zu bytes; expected at most %llu",
                       note.size(), static_cast<unsigned long long>(kMostNoteBytes));
  }
  CACHALOT_TRY(layers_ready(id, impl_->cache.geometry().layers));
  const std::lock_guard lock(impl_->mutex);
  const OfferName name = name_of(id);
  const auto found = impl_->offers.find(name);
  if (found == impl_->offers.end()) return impl_->refusal_of(name);
  impl_->send_note(found->second, note);
  return {};
}

Status TransferRank::withdraw(const OfferId& id) {
  if (impl_->bounce) return impl_->bounce->withdraw(id);
  const std::lock_guard lock(impl_->mutex);
  const OfferName name = name_of(id);
  if (!impl_->offers.contains(name)) return impl_->refusal_of(name);
  impl_->end_offer(name,
                   Error::make(Code::kCancelled, "the prefill instance has withdrawn the offer"),
                   "the prefill instance withdrew it");
  return {};
}

std::vector<EndedOffer> TransferRank::ended_offers() {
  if (impl_->bounce) return impl_->bounce->ended_offers();
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->ended, {});
}

}  // namespace cachalot
