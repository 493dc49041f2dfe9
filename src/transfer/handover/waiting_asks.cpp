// Asks that came before what they are for: an offer, or the fetch that they copy. Any peer may send them, with any name, so
// they are bounded for each peer and in all; an ask of one peer does not give way to those of a peer that has more.
#include <algorithm>
#include <map>
#include <utility>

#include "transfer/handover/rank_impl.h"

namespace cachalot {
namespace {

constexpr std::size_t kMostEarlyAsks = 1024, kMostEarlyOfPeer = 512;
// A pair of ranks has few transfers. An ask of this many keeps 20 KB.
constexpr std::size_t kMostEarlyFetches = 256;

// The last one of those that have most.
template <class Key>
Key most_of(const std::map<Key, std::size_t>& counts) {
  auto most = counts.begin();
  for (auto it = counts.begin(); it != counts.end(); ++it) {
    if (it->second >= most->second) most = it;
  }
  return most->first;
}

}  // namespace

void TransferRank::Impl::keep_early(PeerId peer, AskMessage message) {
  const Result<PeerInfo> info = engine->info(peer);
  if (!info) return;  // lost: on_peer_lost() comes
  if (message.fetches.size() > kMostEarlyFetches) {
    ++counts.refused_asks;
    send(peer, RefusalMessage{
                   message.ask,
                   Error::make(Code::kInvalidArgument,
                               "an ask for %zu transfers before its offer; expected at most %zu",
                               message.fetches.size(), kMostEarlyFetches)});
    return;
  }
  early.push_back({peer, info->host, std::move(message)});
  const auto of_peer = static_cast<std::size_t>(
      std::ranges::count_if(early, [&](const EarlyAsk& e) { return e.peer == peer; }));
  if (of_peer > kMostEarlyOfPeer) return drop_early(peer);
  if (early.size() <= kMostEarlyAsks) return;
  std::map<std::string, std::size_t> hosts;
  for (const EarlyAsk& ask : early) ++hosts[ask.host];
  const std::string host = most_of(hosts);
  std::map<PeerId, std::size_t> peers_of;
  for (const EarlyAsk& ask : early) {
    if (ask.host == host) ++peers_of[ask.peer];
  }
  drop_early(most_of(peers_of));
}

// One of this peer: a cancelled one, else the newest.
void TransferRank::Impl::drop_early(PeerId peer) {
  auto dropped = early.end();
  std::size_t of_peer = 0;
  for (auto it = early.begin(); it != early.end(); ++it) {
    if (it->peer != peer) continue;
    ++of_peer;
    if (dropped == early.end() || !dropped->is_cancelled) dropped = it;
  }
  if (!dropped->is_cancelled) {
    ++counts.refused_asks;
    send(peer,
         RefusalMessage{
             dropped->message.ask,
             Error::make(
                 Code::kBusy,
                 "%zu asks of this rank wait for an offer or a fetch, %zu in all; expected at "
                 "most %zu of a rank, %zu in all",
                 of_peer, early.size(), kMostEarlyOfPeer, kMostEarlyAsks)});
  }
  early.erase(dropped);
}

void TransferRank::Impl::take_early(const std::function<bool(const AskMessage&)>& is_for) {
  for (EarlyAsk& waiting : std::exchange(early, {})) {
    if (!waiting.is_cancelled && is_for(waiting.message))
      take_ask(waiting.peer, std::move(waiting.message));
    else
      early.push_back(std::move(waiting));
  }
}

// Ranks that asked and cancelled before the offer came. Those that asked again meanwhile take it.
void TransferRank::Impl::take_cancelled_early(const OfferName& name) {
  for (EarlyAsk& cancelled : std::exchange(early, {})) {
    if (!cancelled.is_cancelled || cancelled.message.offer != name) {
      early.push_back(std::move(cancelled));
      continue;
    }
    const auto found = offers.find(name);
    if (found == offers.end() || found->second.is_standing) continue;
    const AskMessage& message = cancelled.message;
    if (check_peer(cancelled.peer).ok() &&
        is_proven(cancelled.peer, found->second.id, {}, message) &&
        serve(cancelled.peer, message, found->second).ok())
      take_cancel(cancelled.peer, message.ask);
  }
}

// The offer, when it comes, would wait for this rank. A copy waits for no more than `peer_timeout`.
void TransferRank::Impl::cancel_early(PeerId peer, std::uint64_t ask) {
  const auto waiting = std::ranges::find_if(early, [&](const EarlyAsk& e) {
    return e.peer == peer && e.message.ask == ask && !e.is_cancelled;
  });
  if (waiting == early.end()) return;
  if (waiting->message.is_copy)
    early.erase(waiting);
  else
    waiting->is_cancelled = true;
}

}  // namespace cachalot
