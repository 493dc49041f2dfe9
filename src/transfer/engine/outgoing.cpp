// Pushes: which bytes go next, and what the peer has.
#include <algorithm>
#include <utility>

#include "transfer/engine/engine_impl.h"
#include "transfer/link/payload_hash.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint32_t kMostCorrupt = 16;  // chunks of one push that are sent again

std::uint64_t raw(PushId id) {
  return static_cast<std::uint64_t>(id);
}

}  // namespace

Result<PushId> TransferEngine::Impl::begin_push(PeerId to, WindowKey window, ByteStream memory,
                                                std::uint64_t deadline_ns, std::uint64_t ready) {
  if (find(to) == nullptr) return Error::make(Code::kNotFound, "the peer is lost");
  const PushId id{next_number++};
  Push& push = pushes[id];
  push.id = id;
  push.peer = to;
  push.window = window;
  push.bytes = memory.bytes();
  push.memory = std::make_shared<PayloadMemory>(std::move(memory));
  push.deadline_ns = deadline_ns;
  push.ready = std::min(ready, push.bytes);
  ++counters.pushes;
  post([this, id] {
    const auto found = pushes.find(id);
    if (found == pushes.end() || found->second.status.state != TransferState::kRunning) return;
    Push& begun = found->second;
    Peer* peer = find(begun.peer);
    if (peer == nullptr) return;
    if (peer->reads_us) {
      if (Result<LeaseId> lease = leases->begin(); lease) {
        BodyWriter body;
        body.word(raw(id))
            .word(raw(begun.window))
            .word(begun.bytes)
            .word(lease->slot)
            .word(lease->term);
        body.stream(begun.memory->stream());
        Frame frame{FrameType::kBegin, body.take()};
        begun.lease = *lease;
        if (frame.body.size() <= kMostBodyBytes) {
          peer->links.front()->send(frame);
        } else {
          // So many pages that the description does not fit: the bytes go through the socket.
          leases->end(*lease);
          begun.lease.reset();
        }
      }
    }
    offer(begun);
  });
  return id;
}

// The peer may read these bytes now.
void TransferEngine::Impl::send_ready(Peer& peer, const Push& push, std::uint64_t offset,
                                      std::uint64_t bytes) {
  const std::uint64_t checksum =
      options.has_checksums ? hash_of(push.memory->stream(), offset, bytes) : 0;
  BodyWriter body;
  body.word(raw(push.id)).word(raw(push.window)).word(offset).word(bytes);
  body.word(options.has_checksums ? 1 : 0).word(checksum);
  peer.links.front()->send({FrameType::kReady, body.take()});
}

// Makes the bytes that are ready known to the peer, or to the links.
void TransferEngine::Impl::offer(Push& push) {
  Peer* peer = find(push.peer);
  if (peer == nullptr || push.status.state != TransferState::kRunning || peer->links.empty())
    return;
  if (push.lease) {
    while (push.next < push.ready) {
      const std::uint64_t bytes = std::min(push.ready - push.next, options.chunk_bytes);
      send_ready(*peer, push, push.next, bytes);
      push.next += bytes;
      counters.pushed_bytes += bytes;
    }
    return;
  }
  if (push.again.empty() && push.next >= push.ready) return;
  if (!push.is_queued) {
    push.is_queued = true;
    peer->sending.push_back(push.id);
  }
  for (Link* link : peer->links) link->wants_payload();
}

bool TransferEngine::Impl::next_payload(Link& link, OutgoingPayload& payload) {
  const std::lock_guard lock(mutex);
  Peer* peer = peer_of(link);
  return peer != nullptr && next_chunk(*peer, link, payload);
}

// One chunk of each push in turn, so that a long one does not delay the short ones.
bool TransferEngine::Impl::next_chunk(Peer& peer, Link& link, OutgoingPayload& payload) {
  while (!peer.sending.empty()) {
    const PushId id = peer.sending.front();
    peer.sending.pop_front();
    const auto found = pushes.find(id);
    if (found == pushes.end() || found->second.status.state != TransferState::kRunning) continue;
    Push& push = found->second;
    std::uint64_t offset = 0, bytes = 0;
    if (!push.again.empty()) {
      offset = push.again.begin()->first;
      bytes = push.again.begin()->second;
      push.again.erase(push.again.begin());
      counters.resent_bytes += bytes;
    } else if (push.next < push.ready) {
      offset = push.next;
      bytes = std::min(push.ready - push.next, options.chunk_bytes);
      push.next += bytes;
    }
    push.is_queued = !push.again.empty() || push.next < push.ready;
    if (push.is_queued) peer.sending.push_back(id);
    if (bytes == 0) continue;
    push.in_flight[offset] = {bytes, &link};
    counters.pushed_bytes += bytes;
    const std::uint64_t flags = options.has_checksums ? 1 : 0;
    payload.frame = {FrameType::kChunk, BodyWriter()
                                            .word(raw(id))
                                            .word(raw(push.window))
                                            .word(push.bytes)
                                            .word(offset)
                                            .word(flags)
                                            .take()};
    payload.memory = push.memory;
    payload.offset = offset;
    payload.bytes = bytes;
    payload.has_checksum = options.has_checksums;
    return true;
  }
  return false;
}

void TransferEngine::Impl::take_taken(Peer& peer, const Frame& frame) {
  BodyReader body(frame.body);
  const PushId id{body.word()};
  const std::uint64_t offset = body.word(), bytes = body.word();
  const bool is_corrupt = body.word() != 0;
  const auto found = pushes.find(id);
  if (!body.end() || found == pushes.end() || found->second.peer != peer.id) return;
  Push& push = found->second;
  if (push.status.state != TransferState::kRunning || offset > push.bytes ||
      bytes > push.bytes - offset)
    return;
  const auto flight = push.in_flight.find(offset);
  if (!push.lease && (flight == push.in_flight.end() || flight->second.first != bytes))
    return;  // taken already
  if (push.lease && offset + bytes > push.next) return;
  if (flight != push.in_flight.end()) push.in_flight.erase(flight);
  if (is_corrupt) {
    ++counters.corrupt_chunks;
    if (++push.corrupt > kMostCorrupt) {
      const Error error =
          Error::make(Code::kCorrupt, "the peer received a wrong checksum at byte %llu of a push",
                      static_cast<unsigned long long>(offset));
      end_push(push, &error, true);
    } else if (push.lease) {
      send_ready(peer, push, offset, bytes);
    } else {
      push.again[offset] = bytes;
      offer(push);
    }
    return;
  }
  push.taken.add(offset, bytes);
  const std::uint64_t before = push.status.bytes;
  push.status.bytes = push.taken.prefix();
  if (push.status.bytes == push.bytes) {
    end_push(push, nullptr, false);
  } else if (push.status.bytes != before) {
    tell([id, status = push.status](EngineEvents& to) { to.on_push(id, status); });
    changed.notify_all();
  }
}

// @param error  null: done
void TransferEngine::Impl::end_push(Push& push, const Error* error, bool tells_peer) {
  if (push.status.state != TransferState::kRunning) return;
  push.status.state = error == nullptr ? TransferState::kDone : TransferState::kFailed;
  if (error != nullptr) {
    push.status.error = *error;
    ++counters.failed_pushes;
  }
  // First the lease: a peer that copies just now will see that it has ended.
  if (push.lease) leases->end(*push.lease);
  push.lease.reset();
  push.memory->close();
  push.in_flight.clear();
  push.again.clear();
  if (tells_peer) {
    const Frame frame{FrameType::kEnd, BodyWriter()
                                           .word(0)
                                           .word(raw(push.id))
                                           .word(raw(push.window))
                                           .word(static_cast<std::uint64_t>(error->code))
                                           .text(error->message)
                                           .take()};
    post([this, to = push.peer, frame] {
      if (Peer* peer = find(to); peer != nullptr && !peer->links.empty())
        peer->links.front()->send(frame);
    });
  }
  tell([id = push.id, status = push.status](EngineEvents& to) { to.on_push(id, status); });
  changed.notify_all();
}

// A path is gone: what it had not delivered goes by another one.
void TransferEngine::Impl::requeue(Peer& peer, Link& link) {
  for (auto& [id, push] : pushes) {
    if (push.peer != peer.id || push.status.state != TransferState::kRunning) continue;
    for (auto flight = push.in_flight.begin(); flight != push.in_flight.end();) {
      if (flight->second.second == &link) {
        push.again[flight->first] = flight->second.first;
        flight = push.in_flight.erase(flight);
      } else {
        ++flight;
      }
    }
    offer(push);
  }
}

}  // namespace cachalot::transfer
