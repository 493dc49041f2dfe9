// Reads blocks of the own pool for peers.
//
// A block is copied out of the pool by the rules of reading (R6), sealed, and pushed from the copy: so what a peer gets is
// what the pool had at one moment, and the seal goes with it. The pool's own engines come first: the bytes a second and the
// bytes on their way are limited, and a request that waits longer than its deadline is refused. A peer that does not take
// what it asked for, or asks for more than it takes, holds up no other: each has a quarter of the bytes on their way, and a
// number of requests that may wait.
//
// Invariants
//   1. A push is of all blocks that were wanted, or there is none.
//   2. A copy is freed after its push has ended, when nothing reads it any more.
//
// @threads its own; take(), push_ended(), forget(): any
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "node/peers/messages.h"
#include "pool/format/access.h"
#include "transfer/engine/engine.h"

namespace cachalot::node {

struct PeerServerOptions {
  std::uint64_t most_bytes_per_s = 0;           // 0: no limit
  std::uint64_t most_flying_bytes = 64u << 20;  // copies that are being pushed
  std::size_t most_requests = 64;               // of one peer, that wait
};

struct PeerServerCounts {
  std::uint64_t requests, refused_requests, served_blocks, served_bytes, absent_blocks;
};

// What a server needs of the connections.
class PeerLinks {
 public:
  virtual ~PeerLinks() = default;
  virtual void send(transfer::PeerId to, const PeerMessage& message) = 0;
  virtual Result<transfer::PushId> push(transfer::PeerId to, std::uint64_t window,
                                        transfer::ByteStream memory, std::uint64_t deadline_ns) = 0;
  virtual void release(transfer::PushId push) = 0;
};

class PeerServer {
 public:
  // Both outlive it.
  PeerServer(const pool::Access& access, PeerLinks& links, const PeerServerOptions& options);
  // After it nothing reads the copies: the links were closed before.
  ~PeerServer();

  void take(transfer::PeerId from, GetMessage message);
  void push_ended(transfer::PushId push);
  // A peer was lost: its requests are dropped.
  void forget(transfer::PeerId peer);
  PeerServerCounts counts() const;

 private:
  struct Request {
    transfer::PeerId from;
    GetMessage message;
    std::uint64_t deadline_ns;
  };
  using Copy = std::unique_ptr<std::byte[]>;
  struct Flying {
    Copy copy;
    transfer::PeerId to;
    std::uint64_t bytes;
  };

  void run();
  // Under the lock.
  std::vector<Request> take_late(std::uint64_t now_ns);
  std::deque<Request>::iterator next(std::uint64_t now_ns);
  std::uint64_t wait_ns(std::uint64_t now_ns) const;
  void serve(const Request& request);
  std::uint32_t namespace_of(const BlockHash& space);
  GotMessage read(const GetMessage& wanted, std::uint32_t namespace_id, std::byte* to);
  void refuse(const Request& request, const Error& why);

  const pool::Access& access_;
  PeerLinks& links_;
  const PeerServerOptions options_;
  std::vector<BlockHash> spaces_;  // of the thread
  std::uint64_t next_ns_ = 0;      // of the thread: when the limit of bytes a second admits more

  mutable std::mutex mutex_;  // below
  std::condition_variable wake_;
  std::deque<Request> queue_;
  std::unordered_map<std::uint64_t, Flying> flying_;  // by push
  std::unordered_map<std::uint64_t, bool> ended_;  // pushes that ended before they were known here
  std::map<transfer::PeerId, std::uint64_t> flying_to_;  // bytes; none of 0
  std::uint64_t flying_bytes_ = 0;
  bool is_pushing_ = false;
  bool stop_ = false;
  PeerServerCounts counts_ = {};
  std::thread thread_;
};

}  // namespace cachalot::node
