// Connections: both sides say hello, each checks that the other one is the peer that it expects.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "os/process.h"
#include "transfer/engine/engine_impl.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kMostFacts = 256;
constexpr std::uint64_t kMostSegments = 1024;
// A connection from outside that says hello, and asks for nothing.
constexpr std::uint64_t kSilentNs = 60'000'000'000;
constexpr std::uint64_t kCallAgainNs = 20'000'000;

Frame error_frame(FrameType type, const Error& error) {
  return {type, BodyWriter().error(error).take()};
}

Error silence(std::uint64_t timeout_ns) {
  return Error::make(Code::kTimeout, "nothing was heard of the peer for %llu ms",
                     static_cast<unsigned long long>(timeout_ns / 1'000'000));
}

Error refusal_in(const Frame& frame) {
  BodyReader body(frame.body);
  const Error error = body.error();
  return Error::make(error.code, "the peer refuses: %s", error.message);
}

struct Hello {
  PeerInfo info;
  Session session;
  std::string expected_name;
  std::uint64_t expected_incarnation = 0;
  std::optional<PeerMemoryOffer> memory;
};

PeerMemoryOffer read_memory(BodyReader& body) {
  PeerMemoryOffer memory;
  memory.lease_fd = body.word();
  memory.probe_at = body.word();
  memory.probe = body.word();
  for (std::uint64_t left = std::min(body.word(), kMostSegments); left > 0 && body.status().ok();
       --left) {
    SharedSegment segment;
    segment.at = body.word();
    segment.bytes = body.word();
    segment.fd = body.word();
    segment.file_offset = body.word();
    memory.segments.push_back(segment);
  }
  return memory;
}

Result<Hello> read_hello(const Frame& frame) {
  if (frame.type != FrameType::kHello) {
    return Error::make(Code::kBadInput, "the first frame of a peer is of type %u; expected a hello",
                       static_cast<unsigned>(frame.type));
  }
  BodyReader body(frame.body);
  Hello hello;
  hello.info.name = body.text(kMostNameBytes);
  hello.info.incarnation = body.word();
  hello.session.high = body.word();
  hello.session.low = body.word();
  hello.expected_name = body.text(kMostNameBytes);
  hello.expected_incarnation = body.word();
  if (body.word() != 0) hello.memory = read_memory(body);
  for (std::uint64_t left = std::min(body.word(), kMostFacts); left > 0 && body.status().ok();
       --left) {
    const std::string key = body.text(kMostFactBytes);
    hello.info.facts[key] = body.text(kMostFactBytes);
  }
  CACHALOT_TRY(body.end());
  if (hello.info.name.empty() || hello.info.incarnation == 0) {
    return Error::make(Code::kBadInput, "a peer's hello has no name or no incarnation");
  }
  return hello;
}

// Whether a peer is the one that was asked for.
Status check_identity(const std::string& wanted_name, std::uint64_t wanted, const std::string& name,
                      std::uint64_t incarnation) {
  if (!wanted_name.empty() && wanted_name != name) {
    return Error::make(Code::kStale, "engine %s answers; expected %s", name.c_str(),
                       wanted_name.c_str());
  }
  if (wanted != 0 && wanted != incarnation) {
    return Error::make(Code::kStale,
                       "engine %s has restarted: incarnation %llx answers, expected %llx",
                       name.c_str(), static_cast<unsigned long long>(incarnation),
                       static_cast<unsigned long long>(wanted));
  }
  return {};
}

}  // namespace

Peer* TransferEngine::Impl::find(PeerId id) {
  const auto found = peers.find(id);
  return found == peers.end() ? nullptr : &found->second;
}

// A peer that an attempt may use as it is: this engine has called it, at one of the addresses.
Peer* TransferEngine::Impl::find_called(const PeerAddress& wanted) {
  const auto is_at = [&](const Link* link) {
    return std::ranges::find(wanted.addresses, link->peer_address()) != wanted.addresses.end();
  };
  // The newest first: an older one may be of a process that has ended.
  for (auto at = peers.rbegin(); at != peers.rend(); ++at) {
    Peer& peer = at->second;
    if (!peer.info.is_called ||
        !check_identity(wanted.name, wanted.incarnation, peer.info.name, peer.info.incarnation))
      continue;
    const bool is_anywhere = wanted.addresses.empty() && !wanted.name.empty();
    if (is_anywhere || std::ranges::any_of(peer.links, is_at)) return &peer;
  }
  return nullptr;
}

Peer* TransferEngine::Impl::find_session(bool is_called, const Session& session) {
  for (auto& [id, peer] : peers) {
    if (peer.info.is_called == is_called && equals(peer.session, session)) return &peer;
  }
  return nullptr;
}

Peer* TransferEngine::Impl::peer_of(Link& link) {
  const auto found = connections.find(&link);
  return found == connections.end() || !found->second.is_through ? nullptr
                                                                 : find(found->second.peer);
}

// --- Connecting ---

void TransferEngine::Impl::begin_attempt(PeerAddress wanted, std::uint64_t deadline_ns,
                                         std::function<void(Result<PeerId>)> done) {
  const std::uint64_t number = next_number++;
  Attempt& attempt = attempts[number];
  attempt.wanted = std::move(wanted);
  attempt.deadline_ns = deadline_ns;
  attempt.done = std::move(done);
  find_or_call(number);
}

void TransferEngine::Impl::find_or_call(std::uint64_t number) {
  Attempt& attempt = attempts.at(number);
  if (const Peer* peer = find_called(attempt.wanted); peer != nullptr)
    return end_attempt(number, peer->id);
  for (const auto& [other, running] : attempts) {
    if (other == number || running.leader != 0 || running.wanted != attempt.wanted) continue;
    attempt.leader = other;
    return;
  }
  attempt.leader = 0;
  const Result<os::Uuid> random = os::random_uuid();
  if (!random) return end_attempt(number, random.error());
  attempt.session = {random->high, random->low};
  call(number);
}

void TransferEngine::Impl::call(std::uint64_t number) {
  Attempt& attempt = attempts.at(number);
  attempt.again_ns = 0;
  // This machine's sockets one by one, for each of them is enough; then all others together.
  std::vector<std::string> local, remote;
  for (const std::string& address : attempt.wanted.addresses) {
    (address.starts_with("unix:") ? local : remote).push_back(address);
  }
  attempt.later = std::move(remote);
  try_addresses(number, local.empty() ? std::exchange(attempt.later, {}) : std::move(local));
}

void TransferEngine::Impl::try_addresses(std::uint64_t number, std::vector<std::string> now) {
  for (;;) {
    Attempt& attempt = attempts.at(number);
    for (const std::string& address : now) {
      const auto transport = std::find_if(transports.begin(), transports.end(),
                                          [&](const auto& t) { return t->understands(address); });
      if (transport == transports.end()) {
        attempt.last_error =
            Error::make(Code::kUnsupported, "no transport for address \"%s\"", address.c_str());
        continue;
      }
      Result<Link*> link = (*transport)->connect(address);
      if (!link) {
        attempt.last_error = link.error();
        continue;
      }
      Connection& connection = connections[*link];
      connection.link = *link;
      connection.attempt = number;
      connection.session = attempt.session;
      connection.deadline_ns = attempt.deadline_ns;
      (*link)->trust();
      ++attempt.links;
      greet(connection);
      if (address.starts_with("unix:")) {
        // The next ones only if this one fails.
        const auto rest = std::find(now.begin(), now.end(), address);
        attempt.later.insert(attempt.later.begin(), rest + 1, now.end());
        return;
      }
    }
    if (attempt.links > 0) return;
    if (attempt.later.empty()) {
      end_attempt(number, Error(attempt.last_error));
      return;
    }
    now = std::exchange(attempt.later, {});
  }
}

void TransferEngine::Impl::end_attempt(std::uint64_t number, Result<PeerId> result, bool is_late) {
  const auto found = attempts.find(number);
  if (found == attempts.end()) return;
  auto done = std::move(found->second.done);
  attempts.erase(found);
  // Links that are still on their way stay only if they lead to the peer.
  if (!result) {
    for (auto& [link, connection] : connections) {
      if (connection.attempt == number && !connection.is_through) link->close(result.error());
    }
  }
  std::vector<std::uint64_t> waiting;
  for (const auto& [other, attempt] : attempts) {
    if (attempt.leader == number) waiting.push_back(other);
  }
  for (const std::uint64_t other : waiting) {
    if (is_late) {
      find_or_call(other);
    } else {
      end_attempt(other, result ? Result<PeerId>(*result) : Result<PeerId>(result.error()));
    }
  }
  auto shared = std::make_shared<Result<PeerId>>(std::move(result));
  news.push_back([done = std::move(done), shared](EngineEvents&) { done(std::move(*shared)); });
}

void TransferEngine::Impl::greet(Connection& connection) {
  std::string wanted_name;
  std::uint64_t wanted = 0;
  if (const auto attempt = attempts.find(connection.attempt); attempt != attempts.end()) {
    wanted_name = attempt->second.wanted.name;
    wanted = attempt->second.wanted.incarnation;
  }
  BodyWriter body;
  body.text(options.name).word(incarnation);
  // The other side need not say its own.
  const Session session = connection.attempt != 0 ? connection.session : Session{};
  body.word(session.high).word(session.low).text(wanted_name).word(wanted);
  // Addresses of this process are for processes of this machine only.
  const bool is_local = connection.link->peer_process() != 0;
  body.word(is_local ? 1 : 0);
  if (is_local) {
    body.word(static_cast<std::uint64_t>(leases->fd()))
        .word(reinterpret_cast<std::uintptr_t>(&probe))
        .word(probe);
    body.word(options.segments.size());
    for (const SharedSegment& s : options.segments)
      body.word(s.at).word(s.bytes).word(s.fd).word(s.file_offset);
  }
  body.word(options.facts.size());
  for (const auto& [key, value] : options.facts) body.text(key).text(value);
  connection.link->send({FrameType::kHello, body.take()});
}

void TransferEngine::Impl::refuse(Connection& connection, const Error& error) {
  connection.link->send(error_frame(FrameType::kRefusal, error));
  connection.link->close(error);
}

void TransferEngine::Impl::take_hello(Connection& connection, const Frame& frame) {
  if (frame.type == FrameType::kRefusal) {
    connection.link->close(refusal_in(frame));
    return;
  }
  Result<Hello> hello = read_hello(frame);
  if (!hello) {
    refuse(connection, hello.error());
    return;
  }
  Status identity =
      check_identity(hello->expected_name, hello->expected_incarnation, options.name, incarnation);
  if (const auto attempt = attempts.find(connection.attempt);
      identity.ok() && attempt != attempts.end()) {
    const PeerAddress& wanted = attempt->second.wanted;
    identity =
        check_identity(wanted.name, wanted.incarnation, hello->info.name, hello->info.incarnation);
  }
  if (!identity) {
    refuse(connection, identity.error());
    return;
  }
  connection.hello = std::move(hello->info);
  if (connection.attempt == 0) {
    connection.session = hello->session;
    greet(connection);
  }
  // On one machine each side says whether it reads the memory of the other one.
  std::uint64_t reads = 0;
  if (const std::uint32_t process = connection.link->peer_process();
      process != 0 && options.reads_peer_memory && hello->memory) {
    Result<PeerMemory> memory = PeerMemory::open(process, *hello->memory);
    if (memory) {
      reads = 1;
      connection.memory = std::make_shared<PeerMemory>(*std::move(memory));
    } else {
      base::log(base::LogLevel::kInfo, "transfer", "peer %s: bytes go through the socket: %s",
                connection.hello->name.c_str(), memory.error().message);
    }
  }
  connection.link->send({FrameType::kReads, BodyWriter().word(reads).take()});
}

void TransferEngine::Impl::take_reads(Connection& connection, const Frame& frame) {
  BodyReader body(frame.body);
  connection.reads_us = body.word() == 1 && connection.link->peer_process() != 0;
  if (frame.type != FrameType::kReads || !body.end()) {
    refuse(connection,
           Error::make(Code::kBadInput, "the second frame of a peer is of type %u; expected kReads",
                       static_cast<unsigned>(frame.type)));
    return;
  }
  join(connection);
}

// The connection leads to a peer now: to one of its session, or a new one.
void TransferEngine::Impl::join(Connection& connection) {
  PeerInfo& info = *connection.hello;
  const bool is_called = connection.attempt != 0;
  Peer* peer = find_session(is_called, connection.session);
  if (peer != nullptr &&
      (peer->info.name != info.name || peer->info.incarnation != info.incarnation)) {
    refuse(connection, Error::make(Code::kStale, "engine %s answers at an address of %s",
                                   info.name.c_str(), peer->info.name.c_str()));
    return;
  }
  if (peer == nullptr) {
    if (is_called && !attempts.contains(connection.attempt)) {
      refuse(connection, Error::make(Code::kCancelled, "the peer was lost meanwhile"));
      return;
    }
    if (is_called) lose_predecessors(connection);
    info.is_called = is_called;
    info.host = connection.host;
    const PeerId id{next_number++};
    peer = &peers[id];
    peer->id = id;
    peer->info = info;
    peer->session = connection.session;
    peer->is_trusted = is_called;
    tell([id, info](EngineEvents& to) { to.on_peer(id, info); });
  }
  peer->links.push_back(connection.link);
  connection.heard_ns = base::SteadyClock::read();
  if (connection.memory) peer->memory = connection.memory;
  peer->reads_us = connection.reads_us;
  connection.is_through = true;
  connection.peer = peer->id;
  connection.deadline_ns = 0;
  if (peer->is_trusted) {
    connection.link->trust();
  } else if (!peer->has_spoken) {
    connection.deadline_ns = connection.heard_ns + kSilentNs;
  }
  if (is_called) end_attempt(connection.attempt, peer->id);
  // Pushes that wait use the new path, too.
  connection.link->wants_payload();
}

// Another incarnation answers at the address of a called peer: that one has ended, and does not come back.
void TransferEngine::Impl::lose_predecessors(const Connection& connection) {
  const PeerInfo& info = *connection.hello;
  const auto is_there = [&](const Link* link) {
    return link->peer_address() == connection.link->peer_address();
  };
  std::vector<PeerId> ended;
  for (const auto& [id, peer] : peers) {
    if (peer.info.is_called && peer.info.incarnation != info.incarnation &&
        std::ranges::any_of(peer.links, is_there))
      ended.push_back(id);
  }
  for (const PeerId id : ended)
    lose(id, Error::make(Code::kStale, "engine %s has restarted", info.name.c_str()));
}

// A frame has come after the hello.
void TransferEngine::Impl::hear(Connection& connection, Peer& peer) {
  if (std::exchange(peer.has_spoken, true)) return;
  connection.deadline_ns = 0;
  for (Link* link : peer.links) connections.at(link).deadline_ns = 0;
}

// --- Losing ---

void TransferEngine::Impl::on_closed(Link& link, const Error& error) {
  const std::lock_guard lock(mutex);
  const auto found = connections.find(&link);
  if (found == connections.end()) return;
  const Connection connection = std::move(found->second);
  connections.erase(found);
  if (connection.attempt == 0 && error.code == Code::kPermission && stranger_line.is_due())
    base::log(base::LogLevel::kWarn, "transfer", "%s", error.message);
  if (!connection.is_through) return on_call_closed(connection.attempt, error);
  Peer* peer = find(connection.peer);
  if (peer == nullptr) return;
  std::erase(peer->links, &link);
  if (peer->links.empty() || options.loses_peers_with_a_path) {
    lose(peer->id, error);
  } else {
    base::log(base::LogLevel::kWarn, "transfer", "peer %s: one path of %zu is gone: %s",
              peer->info.name.c_str(), peer->links.size() + 1, error.message);
    requeue(*peer, link);
  }
}

// A link of an attempt has not led to the peer.
void TransferEngine::Impl::on_call_closed(std::uint64_t number, const Error& error) {
  const auto found = attempts.find(number);
  if (found == attempts.end()) return;
  Attempt& attempt = found->second;
  attempt.last_error = error;
  if (--attempt.links > 0) return;
  if (!attempt.later.empty()) {
    try_addresses(number, std::exchange(attempt.later, {}));
  } else if (error.code == Code::kBusy) {
    attempt.again_ns = base::SteadyClock::read() + kCallAgainNs;
  } else {
    end_attempt(number, Error(error));
  }
}

void TransferEngine::Impl::lose(PeerId id, const Error& error) {
  const auto found = peers.find(id);
  if (found == peers.end()) return;
  for (Link* link : found->second.links) link->close(error);
  peers.erase(found);
  for (auto& [number, push] : pushes) {
    if (push.peer == id) end_push(push, &error, false);
  }
  for (auto& [key, window] : windows) {
    if (window.peer == id) end_window(window, &error, false);
  }
  tell([id, error](EngineEvents& to) { to.on_peer_lost(id, error); });
}

// A peer for which something waits, and with watches_idle_peers each, must be heard of, on each path.
void TransferEngine::Impl::watch_peers(std::uint64_t now_ns) {
  std::set<PeerId> awaited;
  for (const auto& [id, push] : pushes) {
    if (push.status.state == TransferState::kRunning && push.next > push.status.bytes)
      awaited.insert(push.peer);
  }
  for (const auto& [key, window] : windows) {
    if (window.status.state == TransferState::kRunning) awaited.insert(window.peer);
  }
  std::vector<PeerId> silent;
  for (auto& [id, peer] : peers) {
    const bool was_awaited =
        std::exchange(peer.is_awaited, options.watches_idle_peers || awaited.contains(id));
    std::vector<Link*> silent_links;
    for (Link* link : peer.links) {
      Connection& connection = connections.at(link);
      const std::uint64_t bytes = link->received_bytes();
      if (bytes != connection.heard_bytes || !was_awaited || !peer.is_awaited) {
        connection.heard_bytes = bytes;
        connection.heard_ns = connection.pinged_ns = now_ns;
      } else if (now_ns - connection.heard_ns > options.peer_timeout_ns) {
        silent_links.push_back(link);
      } else if (now_ns - std::max(connection.heard_ns, connection.pinged_ns) >
                 options.peer_timeout_ns / 4) {
        connection.pinged_ns = now_ns;
        link->send({FrameType::kPing, {}});
      }
    }
    if (silent_links.empty()) continue;
    if (silent_links.size() == peer.links.size()) {
      silent.push_back(id);
      continue;
    }
    // One of several paths: the bytes go by the others.
    for (Link* link : silent_links) link->close(silence(options.peer_timeout_ns));
  }
  for (const PeerId id : silent) lose(id, silence(options.peer_timeout_ns));
}

}  // namespace cachalot::transfer
