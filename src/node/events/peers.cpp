#include "node/events/peers.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <zmq.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::events {
namespace {

constexpr std::uint64_t kLookNs = 250'000'000;
// Of a message beside its payload: topic, frames, allocations; and what each peer's queue has of it.
constexpr std::uint64_t kMessageBytes = 512;
constexpr std::uint64_t kQueuedBytes = 192;
// That a peer may send: at once, and for each second of its connection.
constexpr std::uint64_t kMostSentBytes = 256u << 10, kSentBytesPerS = 256;

// 0: not open.
std::uint64_t inode_of(int descriptor) {
  struct stat found {};
  return fstat(descriptor, &found) == 0 ? found.st_ino : 0;
}

// Bytes that the peer's system does not accept yet.
int waiting_bytes(int descriptor) {
  int bytes = 0;
  if (ioctl(descriptor, SIOCOUTQNSD, &bytes) == 0) return bytes;  // TCP
  return ioctl(descriptor, SIOCOUTQ, &bytes) == 0 ? bytes : 0;    // a local socket
}

// Nothing: it is a local socket, which does not count its bytes.
std::optional<tcp_info> info_of(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return info;
}

// Bytes that the peer has taken so far. Of a local socket it is enough that its queue has changed.
std::uint64_t taken_bytes(int descriptor, int waiting) {
  const std::optional<tcp_info> info = info_of(descriptor);
  return info ? info->tcpi_bytes_acked : static_cast<std::uint64_t>(waiting);
}

struct Event {
  std::uint16_t kind = 0;
  int descriptor = -1;
};

std::optional<Event> next_event(void* monitor) {
  std::optional<Event> event;
  for (bool more = true; more;) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    const int got = zmq_msg_recv(&frame, monitor, ZMQ_DONTWAIT);
    constexpr int kEventBytes = 6;  // then comes a frame with the address
    if (got == kEventBytes && !event) {
      const auto* const bytes = static_cast<const char*>(zmq_msg_data(&frame));
      event.emplace();
      std::memcpy(&event->kind, bytes, sizeof event->kind);
      std::memcpy(&event->descriptor, bytes + sizeof event->kind, sizeof event->descriptor);
    }
    more = got >= 0 && zmq_msg_more(&frame) != 0;
    zmq_msg_close(&frame);
  }
  return event;
}

}  // namespace

Peers::Peers(void* context, void* socket, const char* name, PeerLimits limits)
    : socket_(socket), name_(name), limits_(limits) {
  const std::string address = std::string("inproc://peers") + name;
  constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED;
  if (zmq_socket_monitor(socket, address.c_str(), kEvents) != 0) return;
  monitor_ = zmq_socket(context, ZMQ_PAIR);
  if (monitor_ == nullptr) return;
  // ZeroMQ's thread would wait for room.
  const int unlimited = 0;
  zmq_setsockopt(monitor_, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
  zmq_connect(monitor_, address.c_str());
}

Peers::~Peers() {
  zmq_socket_monitor(socket_, nullptr, 0);  // first: it would wait for a reader
  if (monitor_ != nullptr) zmq_close(monitor_);
}

void Peers::tend() {
  hear_of_connections();
  while (peers_.size() > limits_.peers) {
    Entry peer = slowest();
    // All are in time: the last one that came.
    if (!peer->second.is_behind) {
      peer = std::max_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
        return a.second.number < b.second.number;
      });
    }
    disconnect(peer, "too many are connected");
  }
  const std::uint64_t now_ns = base::SteadyClock::read();
  end_senders(now_ns);
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kLookNs;
  look();
  if (unread_bytes() <= limits_.unread_bytes || peers_.empty()) return;
  hear_of_connections();
  constexpr const char* kReason = "too much waits for all";
  bool is_one_gone = false;
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const auto here = peer++;
    if (!here->second.is_behind || here->second.last_taken != 0) continue;
    disconnect(here, kReason);
    is_one_gone = true;
  }
  if (is_one_gone) return;
  const Entry peer = slowest();
  if (peer->second.is_behind) disconnect(peer, kReason);
}

void Peers::hear_of_connections() {
  while (const std::optional<Event> event = next_event(monitor_)) {
    if (event->kind == ZMQ_EVENT_DISCONNECTED) {
      peers_.erase(event->descriptor);
    } else {
      peers_[event->descriptor] = {.inode = inode_of(event->descriptor),
                                   .number = ++connections_,
                                   .since_ns = base::SteadyClock::read()};
    }
  }
}

void Peers::end_senders(std::uint64_t now_ns) {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const auto here = peer++;
    const std::uint64_t seconds =
        (now_ns - std::min(now_ns, here->second.since_ns)) / 1'000'000'000;
    const std::optional<tcp_info> info = info_of(here->first);
    if (info && info->tcpi_bytes_received > kMostSentBytes + seconds * kSentBytesPerS)
      disconnect(here, "it sends more than requests");
  }
}

void Peers::look() {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const auto [descriptor, was] = *peer;
    if (inode_of(descriptor) != was.inode) {
      peer = peers_.erase(peer);
      continue;
    }
    const int waiting = waiting_bytes(descriptor);
    Peer& is = peer->second;
    is.taken = taken_bytes(descriptor, waiting);
    is.last_taken = std::max(is.taken, was.taken) - std::min(is.taken, was.taken);
    is.is_behind = waiting > 0;
    ++peer;
  }
}

std::uint64_t Peers::unread_bytes() const {
  const auto behind = static_cast<std::uint64_t>(std::count_if(
      peers_.begin(), peers_.end(), [](const auto& peer) { return peer.second.is_behind; }));
  return unread_->bytes.load(std::memory_order_relaxed) +
         unread_->messages.load(std::memory_order_relaxed) *
             (kMessageBytes + kQueuedBytes * behind);
}

// One that is behind, if there is one: that which takes the least.
Peers::Entry Peers::slowest() {
  return std::min_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
    if (a.second.is_behind != b.second.is_behind) return a.second.is_behind;
    return a.second.last_taken < b.second.last_taken;
  });
}

// ZeroMQ's thread sees the end of the connection, closes it, and frees what waits for it.
void Peers::disconnect(Entry peer, const char* reason) {
  if (line_.is_due()) {
    base::log(base::LogLevel::kWarn, "events",
              "%s: a subscriber is disconnected, %s: %zu are connected, %" PRIu64
              " bytes are not read; said once a minute",
              name_, reason, peers_.size(), unread_bytes());
  }
  // Over TCP a shutdown would still let in what the peer sends: this resets the connection.
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (inode_of(peer->first) == peer->second.inode && connect(peer->first, &none, sizeof none) != 0)
    shutdown(peer->first, SHUT_RDWR);
  peers_.erase(peer);
}

}  // namespace cachalot::events
