// Ranks of one machine that hold the same bytes: one of them fetches, and offers the pages of its ask to the others.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transfer/handover/rank_impl.h"

namespace cachalot {
namespace {

constexpr std::size_t kRememberedFetches = 4096;

SharedFetch shared_fetch(const Ask& ask) {
  return {ask.name, ask.first_token, ask.tokens, ask.hash};
}
SharedFetch shared_fetch(const AskMessage& m) {
  return {m.offer, m.first_token, m.tokens, m.hash};
}

}  // namespace

void TransferRank::Impl::offer_copies(Ask& ask, const PairPlan& plan, const OfferName& name) {
  const auto expected = static_cast<std::uint32_t>(std::ranges::count_if(
      plan.copies(), [&](const Fetch& copy) { return copy.source == own_rank; }));
  if (expected == 0) return;
  Offer& offer = offers[name];
  offer.name = name;
  offer.id = ask.reference.id;
  offer.copied = ask.id;
  offer.pages = ask.pages;
  offer.tokens = ask.tokens;
  offer.first_page_token = ask.first_token - ask.first_token % cache.page_tokens();
  offer.deadline_ns = ask.deadline_ns;
  offer.has_note = ask.reference.expects_note;
  offer.taker = options.shape;
  offer.expected = expected;
  ask.copies = name;
  const SharedFetch key = shared_fetch(ask);
  std::erase_if(ended_fetches, [&](const EndedFetch& e) { return e.fetch == key; });
  take_early([&](const AskMessage& m) { return m.is_copy && shared_fetch(m) == key; });
}

Status TransferRank::Impl::check_sister(PeerId peer, const AskMessage& message) const {
  CACHALOT_TRY(check_peer(peer));
  CACHALOT_TRY_ASSIGN(const PeerInfo info, engine->info(peer));
  if (message.shape == options.shape && info.name == rank_name(options.instance, message.rank))
    return {};
  return Error::make(Code::kRefused, "rank %s asks for a copy; expected rank %u of instance %s",
                     info.name.c_str(), message.rank, options.instance.c_str());
}

// Several asks may want the same: a rank takes from each of them once.
Offer* TransferRank::Impl::find_copies(const AskMessage& message) {
  for (auto& [name, offer] : offers) {
    if (!offer.copied || shared_fetch(asks.at(*offer.copied)) != shared_fetch(message)) continue;
    const bool has_taken = std::ranges::any_of(takers, [&, &given = name](const auto& entry) {
      const Taker& taker = entry.second;
      return taker.offer == given && taker.fetches.front().destination == message.rank;
    });
    if (!has_taken) return &offer;
  }
  return nullptr;
}

void TransferRank::Impl::take_copy_ask(PeerId peer, AskMessage message) {
  Status status = check_sister(peer, message);
  Offer* const offer = status.ok() ? find_copies(message) : nullptr;
  const EndedFetch* const over = status.ok() && offer == nullptr ? find_ended(message) : nullptr;
  if (status.ok() && offer == nullptr && over == nullptr)
    return keep_early(peer, std::move(message));  // this rank has not asked yet
  if (status.ok() && !is_proven(peer, offer != nullptr ? offer->id : over->id, {}, message)) {
    status = Error::make(Code::kRefused, "the asking rank does not know the offer");
  } else if (over != nullptr) {
    // The code is that of the fetch, so that a rank asks again where the rank that fetches does.
    status = Error::make(over->error.code, "rank %u, which fetches for its machine: %s", own_rank,
                         over->error.message);
  }
  if (status.ok()) status = serve(peer, message, *offer);
  if (status.ok()) return;
  ++counts.refused_asks;
  send(peer, RefusalMessage{message.ask, status.error()});
}

void TransferRank::Impl::on_copies_ended(AskId id) {
  Ask& ask = asks.at(id);
  ask.copies.reset();
  if (ask.status.state == HandoverState::kRunning) end_if_arrived(ask);
}

// The ask has failed: ranks that copy from it, or would, hear it.
void TransferRank::Impl::fail_copies(Ask& ask, const Error& error) {
  if (!ask.copies) return;
  end_offer(*ask.copies, error, "the fetch has failed");
  remember_end(ask, error);
  take_early(
      [&](const AskMessage& m) { return m.is_copy && shared_fetch(m) == shared_fetch(ask); });
}

void TransferRank::Impl::remember_end(const Ask& ask, const Error& error) {
  const std::uint64_t least_ns = base::SteadyClock::read() + options.peer_timeout_ns;
  ended_fetches.push_back(
      {shared_fetch(ask), ask.reference.id, error, std::max(ask.deadline_ns, least_ns)});
  if (ended_fetches.size() > kRememberedFetches) ended_fetches.pop_front();
}

const EndedFetch* TransferRank::Impl::find_ended(const AskMessage& message) const {
  const SharedFetch key = shared_fetch(message);
  const std::uint64_t now_ns = base::SteadyClock::read();
  const auto found = std::ranges::find_if(
      ended_fetches, [&](const EndedFetch& e) { return e.fetch == key && e.until_ns > now_ns; });
  return found == ended_fetches.end() ? nullptr : &*found;
}

// --- Public ---

Status TransferRank::set_instance_addresses(std::vector<std::vector<std::string>> addresses) {
  if (impl_->bounce) return impl_->bounce->rank().set_instance_addresses(std::move(addresses));
  const std::lock_guard lock(impl_->mutex);
  if (addresses.size() != impl_->options.shape.ranks()) {
    return Error::make(Code::kInvalidArgument, "addresses of %zu ranks; this instance has %u",
                       addresses.size(), impl_->options.shape.ranks());
  }
  impl_->instance_addresses = std::move(addresses);
  return {};
}

}  // namespace cachalot
