// The subscribers that are connected to a ZeroMQ socket, seen from outside of it. ZeroMQ limits the messages that
// wait for each of them; this limits how many there are, and the memory that waits for all of them together.
//
// The socket's monitor tells which connections there are, the system how much of what was sent each peer takes.
// If there are too many peers, or too much waits, peers that take nothing are disconnected, or, if there is none,
// the one that takes the least. ZeroMQ frees what waited for them, and they may connect again.
//
// ZeroMQ keeps what peers send: each subscription, and all frames of a message until its last one. So a peer that sends more
// than subscriptions and requests take is disconnected, too. A local socket does not count what it was sent: there this is
// not limited.
//
// @threads one, that of the socket
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/rare_line.h"

namespace cachalot::events {

struct PeerLimits {
  std::size_t peers = 128;
  std::uint64_t unread_bytes = 64u << 20;  // that all peers together have not taken yet
};

// What ZeroMQ has of a socket's messages. It counts up and down in ZeroMQ's threads.
struct Unread {
  std::atomic<std::uint64_t> messages{0}, bytes{0};  // relaxed: figures that order nothing
};

class Peers {
 public:
  // @param name  in messages
  Peers(void* context, void* socket, const char* name, PeerLimits limits);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // False: the system had no room to watch the socket.
  bool is_watching() const { return monitor_ != nullptr; }
  // Where the sender counts its messages.
  const std::shared_ptr<Unread>& unread() const { return unread_; }
  // To be called every few milliseconds: keeps the limits.
  void tend();

 private:
  struct Peer {
    std::uint64_t inode = 0;   // of its socket: a descriptor may be another's by now
    std::uint64_t number = 0;  // grows with each connection
    std::uint64_t since_ns = 0;
    std::uint64_t taken = 0;       // bytes, since the connection began
    std::uint64_t last_taken = 0;  // bytes, between the last two looks
    bool is_behind = false;        // bytes that were sent wait here
  };
  using Entry = std::map<int, Peer>::iterator;

  void hear_of_connections();
  void end_senders(std::uint64_t now_ns);
  void look();
  std::uint64_t unread_bytes() const;
  Entry slowest();
  void disconnect(Entry peer, const char* reason);

  void* const socket_;
  void* monitor_ = nullptr;
  const char* const name_;
  const PeerLimits limits_;
  const std::shared_ptr<Unread> unread_ = std::make_shared<Unread>();
  std::map<int, Peer> peers_;  // by descriptor, which is ZeroMQ's
  std::uint64_t connections_ = 0;
  std::uint64_t next_look_ns_ = 0;
  base::RareLine line_;
};

}  // namespace cachalot::events
