// Windows: which peer may write, what has arrived, and copies out of the memory of a peer on this machine.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transfer/engine/engine_impl.h"
#include "transfer/link/payload_hash.h"

namespace cachalot::transfer {
namespace {

Frame end_frame(std::uint64_t push, std::uint64_t window, const Error& error) {
  return {FrameType::kEnd, BodyWriter().word(1).word(push).word(window).error(error).take()};
}

Frame taken_frame(std::uint64_t push, std::uint64_t offset, std::uint64_t bytes, bool is_corrupt) {
  return {FrameType::kTaken,
          BodyWriter().word(push).word(offset).word(bytes).word(is_corrupt ? 1 : 0).take()};
}

// Answers to the peer and events wait for so long: each round of them costs as much as copying 150 KiB.
constexpr std::uint64_t kCopyTurnNs = 1'000'000;
constexpr std::uint64_t kHashedBytes = 128u << 10;

struct Chunk {
  std::uint64_t push = 0, window = 0, total = 0, offset = 0, flags = 0;
};

// As if a byte had been changed on its way.
void damage_byte(const ByteStream& stream, std::uint64_t offset) {
  *reinterpret_cast<unsigned char*>(ByteStreamCursor(stream, offset).next(1).at) ^= 1;
}

Result<Chunk> read_chunk(const Frame& frame) {
  BodyReader body(frame.body);
  Chunk chunk{body.word(), body.word(), body.word(), body.word(), body.word()};
  CACHALOT_TRY(body.end());
  if (chunk.push == 0) return Error::make(Code::kBadInput, "a chunk of no push");
  return chunk;
}

// Whether this push may write into the window. Binds the window to its first push.
Status admit(Window* window, PeerId peer, std::uint64_t push, std::uint64_t total) {
  if (window == nullptr)
    return Error::make(Code::kStale, "the window is closed, or was never open");
  if (window->peer != peer)
    return Error::make(Code::kPermission, "the window was opened for another peer");
  if (window->push != 0 && window->push != push) {
    return Error::make(Code::kRefused, "another push writes into this window");
  }
  if (window->status.state == TransferState::kFailed) return window->status.error;
  if (total != window->bytes) {
    return Error::make(Code::kInvalidArgument, "a push of %llu bytes into a window of %llu",
                       static_cast<unsigned long long>(total),
                       static_cast<unsigned long long>(window->bytes));
  }
  window->push = push;
  return {};
}

}  // namespace

void TransferEngine::Impl::on_frame(Link& link, Frame frame) {
  const std::lock_guard lock(mutex);
  const auto found = connections.find(&link);
  if (found == connections.end()) return;
  Connection& connection = found->second;
  if (!connection.is_through) {
    if (connection.hello) {
      take_reads(connection, frame);
    } else {
      take_hello(connection, frame);
    }
    return;
  }
  Peer* peer = find(connection.peer);
  if (peer == nullptr) return;
  hear(connection, *peer);
  switch (frame.type) {
    case FrameType::kMessage: {
      BodyReader body(frame.body);
      auto message = std::make_shared<std::vector<std::byte>>(body.bytes(kMostMessageBytes));
      if (body.end())
        tell([id = peer->id, message](EngineEvents& to) { to.on_message(id, *message); });
      return;
    }
    case FrameType::kBegin:
      return take_begin(*peer, link, frame);
    case FrameType::kReady:
      return take_ready(*peer, frame);
    case FrameType::kTaken:
      return take_taken(*peer, frame);
    case FrameType::kEnd:
      return take_end(*peer, frame);
    case FrameType::kPing:
      return link.send({FrameType::kPong, {}});
    case FrameType::kPong:
      return;
    case FrameType::kRefusal:
      return link.close(BodyReader(frame.body).error());
    default:
      link.close(Error::make(Code::kBadInput, "peer %s: a frame of type %u is not expected here",
                             peer->info.name.c_str(), static_cast<unsigned>(frame.type)));
  }
}

IncomingPayload TransferEngine::Impl::on_payload(Link& link, const Frame& frame,
                                                 std::uint64_t bytes) {
  const std::lock_guard lock(mutex);
  Peer* peer = peer_of(link);
  if (peer == nullptr) return {};
  return find_window(*peer, link, frame, bytes);
}

IncomingPayload TransferEngine::Impl::find_window(Peer& peer, Link& link, const Frame& frame,
                                                  std::uint64_t bytes) {
  const Result<Chunk> chunk = read_chunk(frame);
  if (!chunk) {
    link.close(chunk.error());
    return {};
  }
  const auto found = windows.find(chunk->window);
  Window* window = found == windows.end() ? nullptr : &found->second;
  Status status = admit(window, peer.id, chunk->push, chunk->total);
  if (status.ok() && (chunk->offset > window->bytes || bytes > window->bytes - chunk->offset)) {
    status = Error::make(Code::kInvalidArgument, "bytes %llu to %llu of a window of %llu bytes",
                         static_cast<unsigned long long>(chunk->offset),
                         static_cast<unsigned long long>(chunk->offset + bytes),
                         static_cast<unsigned long long>(window->bytes));
    end_window(*window, &status.error(), false);
  }
  if (!status) {
    ++counters.dropped_chunks;
    link.send(end_frame(chunk->push, chunk->window, status.error()));
    return {};
  }
  // Bytes that are there are not written again: the window's reader may use them already.
  if (window->arrived.contains(chunk->offset, bytes)) return {};
  IncomingPayload payload{window->memory, chunk->offset, (chunk->flags & 1) != 0, false};
  if (options.damage) payload.is_damaged = options.damage(window->key, chunk->offset, bytes);
  return payload;
}

void TransferEngine::Impl::on_payload_end(Link& link, const Frame& frame, std::uint64_t bytes,
                                          PayloadEnd end) {
  const std::lock_guard lock(mutex);
  Peer* peer = peer_of(link);
  const Result<Chunk> chunk = read_chunk(frame);
  if (peer == nullptr || !chunk) return;
  const auto found = windows.find(chunk->window);
  if (found == windows.end() || found->second.peer != peer->id || found->second.push != chunk->push)
    return;
  Window& window = found->second;
  if (end == PayloadEnd::kCorrupt && window.arrived.contains(chunk->offset, bytes)) {
    // It came by two paths, and this one has overwritten bytes that count already.
    ++counters.corrupt_chunks;
    const Error error =
        Error::make(Code::kCorrupt, "bytes that had arrived were damaged by a second path");
    end_window(window, &error, true);
  } else if (end == PayloadEnd::kCorrupt) {
    ++counters.corrupt_chunks;
    link.send(taken_frame(chunk->push, chunk->offset, bytes, true));
  } else if (end == PayloadEnd::kWritten && window.status.state == TransferState::kRunning) {
    link.send(taken_frame(chunk->push, chunk->offset, bytes, false));
    arrived(window, chunk->offset, bytes);
  } else if (window.arrived.contains(chunk->offset, bytes)) {
    // It came twice: over a path that was given up, too.
    link.send(taken_frame(chunk->push, chunk->offset, bytes, false));
  }
}

void TransferEngine::Impl::arrived(Window& window, std::uint64_t offset, std::uint64_t bytes) {
  counters.received_bytes += bytes;
  window.arrived.add(offset, bytes);
  const std::uint64_t before = window.status.bytes;
  window.status.bytes = window.arrived.prefix();
  if (window.status.bytes == window.bytes) {
    end_window(window, nullptr, false);
  } else if (window.status.bytes != before) {
    tell([key = window.key, status = window.status](EngineEvents& to) {
      to.on_window(key, status);
    });
    changed.notify_all();
  }
}

// @param error  null: done
void TransferEngine::Impl::end_window(Window& window, const Error* error, bool tells_peer) {
  if (window.status.state != TransferState::kRunning) return;
  window.status.state = error == nullptr ? TransferState::kDone : TransferState::kFailed;
  if (error != nullptr) {
    window.status.error = *error;
    ++counters.failed_windows;
  }
  window.memory->close();
  window.reference.reset();
  if (tells_peer && window.push != 0) {
    post([this, to = window.peer, frame = end_frame(window.push, raw(window.key), *error)] {
      if (Peer* peer = find(to); peer != nullptr && !peer->links.empty())
        peer->links.front()->send(frame);
    });
  }
  tell([key = window.key, status = window.status](EngineEvents& to) { to.on_window(key, status); });
  changed.notify_all();
}

void TransferEngine::Impl::take_end(Peer& peer, const Frame& frame) {
  BodyReader body(frame.body);
  const bool is_from_receiver = body.word() != 0;
  const std::uint64_t push_number = body.word(), window_key = body.word(), code = body.word();
  const std::string text = body.text(Error::kMessageBytes);
  if (!body.end()) return;
  const bool is_known = code >= 1 && code <= static_cast<std::uint64_t>(Code::kCancelled);
  const Error error = Error::make(is_known ? static_cast<Code>(code) : Code::kIo, "peer %s: %s",
                                  peer.info.name.c_str(), text.c_str());
  if (is_from_receiver) {
    const auto found = pushes.find(PushId{push_number});
    if (found != pushes.end() && found->second.peer == peer.id &&
        raw(found->second.window) == window_key) {
      end_push(found->second, &error, false);
    }
    return;
  }
  const auto found = windows.find(window_key);
  // A push that has not sent a byte yet may end, too: then the window is not bound.
  if (found == windows.end() || found->second.peer != peer.id) return;
  if (found->second.push == push_number || found->second.push == 0)
    end_window(found->second, &error, false);
}

// --- Out of a peer's memory ---

void TransferEngine::Impl::take_begin(Peer& peer, Link& link, const Frame& frame) {
  BodyReader body(frame.body);
  const std::uint64_t push = body.word(), key = body.word(), total = body.word();
  LeaseId lease;
  lease.slot = static_cast<std::uint32_t>(body.word());
  lease.term = body.word();
  ByteStream stream = body.stream();
  const auto found = windows.find(key);
  Window* window = found == windows.end() ? nullptr : &found->second;
  Status status = body.end();
  if (status.ok() && (push == 0 || stream.bytes() != total)) {
    status = Error::make(Code::kBadInput, "a push of %llu bytes describes memory of %llu",
                         static_cast<unsigned long long>(total),
                         static_cast<unsigned long long>(stream.bytes()));
  }
  if (status.ok() && !peer.memory)
    status = Error::make(Code::kRefused, "this engine does not read the peer's memory");
  if (status.ok()) status = admit(window, peer.id, push, total);
  if (!status) {
    ++counters.dropped_chunks;
    link.send(end_frame(push, key, status.error()));
    return;
  }
  window->reference = std::make_shared<Reference>(Reference{peer.memory, std::move(stream), lease});
}

void TransferEngine::Impl::take_ready(Peer& peer, const Frame& frame) {
  BodyReader body(frame.body);
  Copy copy;
  const std::uint64_t push = body.word(), key = body.word();
  copy.window = WindowKey{key};
  copy.offset = body.word();
  const std::uint64_t bytes = body.word();
  copy.has_checksum = body.word() != 0;
  copy.checksum = body.word();
  const auto found = windows.find(key);
  if (!body.end() || found == windows.end()) return;
  Window& window = found->second;
  if (window.peer != peer.id || window.push != push || !window.reference) return;
  if (bytes == 0 || bytes > kMostPayloadBytes || copy.offset > window.bytes ||
      bytes > window.bytes - copy.offset) {
    const Error error =
        Error::make(Code::kInvalidArgument, "bytes %llu to %llu of a window of %llu bytes",
                    static_cast<unsigned long long>(copy.offset),
                    static_cast<unsigned long long>(copy.offset + bytes),
                    static_cast<unsigned long long>(window.bytes));
    end_window(window, &error, true);
    return;
  }
  copy.end = copy.offset + bytes;
  copies.push_back(copy);
}

bool TransferEngine::Impl::copy_some(std::unique_lock<std::mutex>& lock) {
  if (copies.empty()) return false;
  const std::uint64_t end_ns = base::SteadyClock::read() + kCopyTurnNs;
  while (copy_slice(lock)) {
    if (stops || !jobs.empty() || base::SteadyClock::read() >= end_ns) return true;
  }
  return false;
}

bool TransferEngine::Impl::copy_slice(std::unique_lock<std::mutex>& lock) {
  if (copies.empty()) return false;
  const Copy copy = copies.front();
  copies.pop_front();
  const auto found = windows.find(raw(copy.window));
  if (found == windows.end() || found->second.status.state != TransferState::kRunning)
    return !copies.empty();
  const std::shared_ptr<const Reference> from = found->second.reference;
  const std::shared_ptr<PayloadMemory> to = found->second.memory;
  const bool is_damaged =
      options.damage && options.damage(copy.window, copy.offset, copy.end - copy.offset);
  lock.unlock();
  Status status;
  bool is_held = false, is_corrupt = false;
  const bool is_inside = to->enter();
  if (is_inside && from->from->enter(from->lease)) {
    // With a checksum in steps, whose bytes are still in the core's cache when they are hashed.
    const std::uint64_t most = copy.has_checksum ? kHashedBytes : copy.end - copy.offset;
    PayloadHash hash;
    for (std::uint64_t at = copy.offset; at < copy.end && status.ok(); at += most) {
      const std::uint64_t bytes = std::min(most, copy.end - at);
      status = from->from->copy(from->memory, to->stream(), at, bytes);
      if (is_damaged && at == copy.offset) damage_byte(to->stream(), at);
      if (copy.has_checksum) hash.add(to->stream(), at, bytes);
    }
    // Only now is it known that the peer had not taken its memory back.
    is_held = from->from->holds(from->lease);
    is_corrupt = status.ok() && is_held && copy.has_checksum && hash.digest() != copy.checksum;
    from->from->leave(from->lease);
  }
  if (is_inside) to->leave();
  lock.lock();
  const auto again = windows.find(raw(copy.window));
  if (again == windows.end() || again->second.status.state != TransferState::kRunning)
    return !copies.empty();
  Window& window = again->second;
  Peer* peer = find(window.peer);
  if (!status.ok() || !is_held) {
    // Memory that was taken back may be unmapped: that it cannot be read is not why.
    const Error error = is_held ? status.error()
                                : Error::make(Code::kStale, "the sender has taken its memory back");
    end_window(window, &error, true);
  } else if (peer != nullptr && !peer->links.empty()) {
    if (is_corrupt) ++counters.corrupt_chunks;
    peer->links.front()->send(
        taken_frame(window.push, copy.offset, copy.end - copy.offset, is_corrupt));
    if (!is_corrupt) {
      counters.copied_bytes += copy.end - copy.offset;
      arrived(window, copy.offset, copy.end - copy.offset);
    }
  }
  return !copies.empty();
}

}  // namespace cachalot::transfer
