// Which connections from outside stay. Any process may connect, so those that have shown nothing are few: of one host and
// in all. For a new one the oldest ends, first of those without a hello. A host that has most of them loses its own.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/clock.h"
#include "transfer/engine/engine_impl.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kMostOfHost = 64, kMostStrangers = 256;

// "tcp:10.0.0.2:7001": without the port.
std::string host_of(const std::string& address) {
  return address.starts_with("unix:") ? "unix" : address.substr(0, address.rfind(':'));
}

}  // namespace

// Trust is that of the peer, which several connections may lead to.
bool TransferEngine::Impl::is_stranger(const Connection& connection) {
  if (connection.attempt != 0 || connection.is_refused) return false;
  const Peer* const peer = connection.is_through ? find(connection.peer) : nullptr;
  return peer == nullptr || !peer->is_trusted;
}

void TransferEngine::Impl::take_connection(Link& link) {
  Connection& added = connections[&link];
  added.link = &link;
  added.host = host_of(link.peer_address());
  added.since_ns = base::SteadyClock::read();
  added.deadline_ns = added.since_ns + options.peer_timeout_ns;
  std::map<std::string, std::size_t> of_host;
  std::size_t all = 0;
  for (const auto& [other, connection] : connections) {
    if (!is_stranger(connection)) continue;
    ++of_host[connection.host];
    ++all;
  }
  if (of_host[added.host] > kMostOfHost) {
    end_stranger(added.host, link);
  } else if (all > kMostStrangers) {
    const auto most =
        std::ranges::max_element(of_host, {}, [](const auto& entry) { return entry.second; });
    end_stranger(most->first, link);
  }
}

void TransferEngine::Impl::end_stranger(const std::string& host, const Link& newest) {
  Connection* ended = nullptr;
  const auto rank = [](const Connection& c) { return std::tuple(c.is_through, c.since_ns); };
  for (auto& [link, connection] : connections) {
    if (link == &newest || connection.host != host || !is_stranger(connection)) continue;
    if (ended == nullptr || rank(connection) < rank(*ended)) ended = &connection;
  }
  if (ended == nullptr) return;
  ended->is_refused = true;
  refuse(*ended, Error::make(Code::kBusy,
                             "%.60s has more than %zu connections that have shown nothing, or all "
                             "hosts have more than "
                             "%zu: the oldest one ends",
                             host.c_str(), kMostOfHost, kMostStrangers));
}

void TransferEngine::Impl::trust(Peer& peer) {
  peer.is_trusted = true;
  for (Link* link : peer.links) {
    link->trust();
    connections.at(link).deadline_ns = 0;
  }
}

}  // namespace cachalot::transfer
