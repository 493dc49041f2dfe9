// The parts of a transfer engine. One mutex guards the tables; bytes are moved outside of it.
//
//   engine_impl.cpp  calls of users, the progress thread, deadlines
//   peers.cpp     connections: hello, expected identity, loss
//   admission.cpp which connections from outside stay
//   outgoing.cpp  pushes: which bytes go next, what is acknowledged
//   incoming.cpp  windows: which peer may write, what has arrived; copies out of a peer's memory
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/rare_line.h"
#include "os/file_descriptor.h"
#include "transfer/engine/byte_ranges.h"
#include "transfer/engine/engine.h"

namespace cachalot::transfer {

// Of what an engine says of itself to others.
inline constexpr std::uint64_t kMostNameBytes = 256, kMostFactBytes = 64 << 10;

inline std::uint64_t raw(WindowKey key) {
  return static_cast<std::uint64_t>(key);
}

// 128 random bits that the calling side makes and tells the addresses that it calls: connections with the same ones are
// paths to one peer. Nothing else can join them.
struct Session {
  std::uint64_t high = 0, low = 0;
};
// In a time that does not depend on the values.
inline bool equals(const Session& a, const Session& b) {
  return ((a.high ^ b.high) | (a.low ^ b.low)) == 0;
}

struct Peer {
  PeerId id = {};
  PeerInfo info;
  Session session;
  bool is_trusted = false;
  bool has_spoken = false;  // it has sent a frame after its hello
  std::vector<Link*> links;
  std::shared_ptr<PeerMemory> memory;  // this engine reads the peer's memory
  bool reads_us = false;               // the peer reads this engine's memory
  std::deque<PushId> sending;          // pushes with bytes to send through links, in turn
  bool is_awaited = false;             // a push or a window waits for it
  // Of messages: in jobs, and in links as of the last round of the progress thread.
  std::uint64_t posted_bytes = 0, waiting_bytes = 0;
};

// A connection that is made by this engine: several links may be tried for it.
struct Attempt {
  PeerAddress wanted;
  // Waits for the end of that attempt, which calls the same addresses; 0: it calls by itself.
  std::uint64_t leader = 0;
  Session session;
  std::uint64_t deadline_ns = kNoDeadline;
  std::size_t links = 0;           // that have not failed
  std::vector<std::string> later;  // addresses for when all of these have failed
  std::uint64_t again_ns = 0;  // the peer had no room for another connection: when to call again
  Error last_error = Error::make(Code::kIo, "no address");
  std::function<void(Result<PeerId>)> done;
};

struct Connection {
  Link* link = nullptr;
  std::uint64_t attempt = 0;  // 0: the peer has connected
  Session session;
  std::string host;
  std::uint64_t since_ns = 0;
  bool is_refused = false;        // it ends
  std::uint64_t deadline_ns = 0;  // of the hello, and of the first frame after it; 0: none
  std::optional<PeerInfo> hello;
  std::shared_ptr<PeerMemory> memory;
  bool reads_us = false;
  bool is_through = false;  // belongs to a peer
  PeerId peer = {};
  std::uint64_t heard_ns = 0, heard_bytes = 0, pinged_ns = 0;
};

struct Push {
  PushId id = {};
  PeerId peer = {};
  WindowKey window = {};
  std::shared_ptr<PayloadMemory> memory;
  std::uint64_t bytes = 0, ready = 0, next = 0;
  std::uint64_t deadline_ns = kNoDeadline;
  bool is_queued = false;                                              // in Peer::sending
  std::map<std::uint64_t, std::pair<std::uint64_t, Link*>> in_flight;  // offset: bytes, link
  std::map<std::uint64_t, std::uint64_t> again;  // offset: bytes, to be sent once more
  std::uint32_t corrupt = 0;
  ByteRanges taken;
  std::optional<LeaseId> lease;  // the peer reads the memory itself
  TransferStatus status;
};

// What a push of a peer that does not send its bytes consists of.
struct Reference {
  std::shared_ptr<PeerMemory> from;
  ByteStream memory;
  LeaseId lease;
};

struct Window {
  WindowKey key = {};
  PeerId peer = {};
  std::shared_ptr<PayloadMemory> memory;
  std::uint64_t bytes = 0;
  std::uint64_t deadline_ns = kNoDeadline;
  std::uint64_t push = 0;  // of the peer, as it numbers them; 0: none yet
  std::shared_ptr<const Reference> reference;
  ByteRanges arrived;
  TransferStatus status;
};

struct Copy {
  WindowKey window = {};
  std::uint64_t offset = 0, end = 0;
  bool has_checksum = false;
  std::uint64_t checksum = 0;
};

struct TransferEngine::Impl final : LinkEvents {
  Impl(const EngineOptions& given, EngineEvents* receiver) : options(given), events(receiver) {}
  ~Impl() override;
  Status start(std::vector<std::unique_ptr<Transport>> extra);

  void stop();
  // @return false: the engine is closed, and `done` is not called
  bool connect(const PeerAddress& peer, std::uint64_t deadline_ns,
               std::function<void(Result<PeerId>)> done);

  // LinkEvents: the progress thread, without the lock.
  void on_frame(Link& link, Frame frame) override;
  IncomingPayload on_payload(Link& link, const Frame& frame, std::uint64_t bytes) override;
  void on_payload_end(Link& link, const Frame& frame, std::uint64_t bytes, PayloadEnd end) override;
  bool next_payload(Link& link, OutgoingPayload& payload) override;
  void on_payload_sent(Link&, const OutgoingPayload&) override {}
  void on_closed(Link& link, const Error& error) override;

  // engine_impl.cpp
  void run();
  void wake();
  // For the progress thread. @threads any, with the lock
  void post(std::function<void()> job);
  void tell(std::function<void(EngineEvents&)> event);
  void deliver();
  std::uint64_t expire(std::uint64_t now_ns);
  std::uint64_t expire_attempts(std::uint64_t now_ns);  // progress
  Error ended() const;

  // All below: with the lock. "progress": in the progress thread only.
  // peers.cpp
  void begin_attempt(PeerAddress wanted, std::uint64_t deadline_ns,
                     std::function<void(Result<PeerId>)> done);                  // progress
  void find_or_call(std::uint64_t number);                                       // progress
  void call(std::uint64_t number);                                               // progress
  void try_addresses(std::uint64_t number, std::vector<std::string> addresses);  // progress
  // @param is_late  its deadline has passed: attempts that wait for it call by themselves
  void end_attempt(std::uint64_t number, Result<PeerId> result, bool is_late = false);
  void on_call_closed(std::uint64_t number, const Error& error);
  void greet(Connection& connection);
  void take_hello(Connection& connection, const Frame& frame);
  void take_reads(Connection& connection, const Frame& frame);
  void refuse(Connection& connection, const Error& error);
  void join(Connection& connection);
  void hear(Connection& connection, Peer& peer);
  void lose(PeerId id, const Error& error);
  void watch_peers(std::uint64_t now_ns);
  Peer* find(PeerId id);
  Peer* find_called(const PeerAddress& wanted);
  Peer* find_session(bool is_called, const Session& session);
  void lose_predecessors(const Connection& connection);
  Peer* peer_of(Link& link);

  // admission.cpp
  void take_connection(Link& link);
  bool is_stranger(const Connection& connection);
  // Ends the one that has shown least, and is oldest. @param newest  stays
  void end_stranger(const std::string& host, const Link& newest);
  void trust(Peer& peer);

  // outgoing.cpp
  Result<PushId> begin_push(PeerId to, WindowKey window, ByteStream memory,
                            std::uint64_t deadline_ns, std::uint64_t ready);
  void offer(Push& push);
  void send_ready(Peer& peer, const Push& push, std::uint64_t offset, std::uint64_t bytes);
  bool next_chunk(Peer& peer, Link& link, OutgoingPayload& payload);
  void take_taken(Peer& peer, const Frame& frame);
  void end_push(Push& push, const Error* error, bool tells_peer);
  void requeue(Peer& peer, Link& link);

  // incoming.cpp
  IncomingPayload find_window(Peer& peer, Link& link, const Frame& frame, std::uint64_t bytes);
  void take_begin(Peer& peer, Link& link, const Frame& frame);
  void take_ready(Peer& peer, const Frame& frame);
  void take_end(Peer& peer, const Frame& frame);
  void arrived(Window& window, std::uint64_t offset, std::uint64_t bytes);
  void end_window(Window& window, const Error* error, bool tells_peer);
  // Copies for a while, or until this thread is needed elsewhere. @return whether there is more to copy
  bool copy_some(std::unique_lock<std::mutex>& lock);
  // Copies one slice. @return whether there is another one
  bool copy_slice(std::unique_lock<std::mutex>& lock);

  const EngineOptions options;
  EngineEvents* const events;
  std::uint64_t incarnation = 0;
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Transport>> transports;
  std::unique_ptr<Leases> leases;
  std::uint64_t probe = 0;  // peers of this machine read it, to see whether they can
  os::FileDescriptor wake_fd;
  // Of the calls of stop(); taken before `mutex`, never by the progress thread
  std::mutex stopping;

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool stops = false;
  std::vector<std::function<void()>> jobs;
  std::deque<std::function<void(EngineEvents&)>> news;

  std::uint64_t next_number = 1;
  base::RareLine stranger_line{4};  // of connections from outside that do not have the key
  std::unordered_map<Link*, Connection> connections;
  std::map<std::uint64_t, Attempt> attempts;
  std::map<PeerId, Peer> peers;
  std::map<PushId, Push> pushes;
  std::unordered_map<std::uint64_t, Window> windows;
  std::deque<Copy> copies;
  EngineCounters counters = {};
  std::thread thread;
};

}  // namespace cachalot::transfer
