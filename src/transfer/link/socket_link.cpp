#include "transfer/link/socket_link.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "transfer/link/payload_copy.h"
#include "transfer/link/payload_hash.h"
#include "transfer/link/socket_address.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kTurnBytes = 4u << 20;  // of one progress(), each way
constexpr std::uint64_t kCallBytes =
    1u << 20;  // of one system call: a closed memory waits for no more than this
constexpr std::size_t kMostParts = 256;
// Pieces that are smaller, on average, go through a buffer that stays in the core's cache: the kernel's work for each
// piece costs more than this second copy. Measured: decision 0014.
constexpr std::uint64_t kSmallPiece = 512;
constexpr std::size_t kPackBytes = 128u << 10;
constexpr std::size_t kSampled = 8;  // pieces
// In mid-payload the kernel wakes the receiver for this many bytes, not for each packet. A wake-up costs the sender's core:
// on a virtual machine, 4.7 GB/s within the machine became 7.6.
constexpr std::uint64_t kWakeBytes = 512u << 10;
constexpr std::size_t kControlRead =
    4096;  // what is read beyond a frame is copied once more: so not much

// Read into and written from when a payload has no memory (any more).
std::array<std::byte, 64 << 10>& nowhere() {
  thread_local std::array<std::byte, 64 << 10> bytes{};
  return bytes;
}
constexpr std::array<std::byte, 64 << 10> kZeros{};

void* pointer(std::uint64_t at) {
  return reinterpret_cast<void*>(at);
}

// The pieces of [offset, offset + bytes) of a stream. @return their bytes, fewer if there are too many pieces
std::uint64_t add_pieces(const ByteStream& stream, std::uint64_t offset, std::uint64_t bytes,
                         std::vector<iovec>& parts) {
  ByteStreamCursor cursor(stream, offset);
  std::uint64_t added = 0;
  while (added < bytes && parts.size() < kMostParts) {
    const Piece piece = cursor.next(bytes - added);
    if (piece.bytes == 0) break;
    parts.push_back({pointer(piece.at), piece.bytes});
    added += piece.bytes;
  }
  return added;
}

// Whether the pieces at this place of a stream are small.
bool are_small(const ByteStream& stream, std::uint64_t offset, std::uint64_t bytes) {
  ByteStreamCursor cursor(stream, offset);
  std::uint64_t sampled = 0;
  for (std::size_t i = 0; i < kSampled; ++i) {
    const Piece piece = cursor.next(bytes - sampled);
    if (piece.bytes == 0) return false;  // few are left
    sampled += piece.bytes;
  }
  return sampled < kSampled * kSmallPiece;
}

}  // namespace

struct SocketLink::Incoming {
  Frame frame;
  std::uint64_t bytes = 0, done = 0;
  IncomingPayload to;
  bool is_dropped = false;
  PayloadHash hash;
};

struct SocketLink::Outgoing {
  OutgoingPayload payload;
  std::vector<std::byte> head;
  std::uint64_t sent = 0;    // of head, payload and trailer together
  std::uint64_t hashed = 0;  // of the payload
  // These bytes of the payload are in packed_.
  std::uint64_t packed_from = 0, packed_end = 0;
  bool is_void = false;
  bool has_trailer = false;  // made
  FrameTrailer trailer{};
  PayloadHash hash;
};

SocketLink::SocketLink(os::FileDescriptor fd, bool is_unix, bool is_connecting,
                       std::string peer_address, LinkEvents& events, TlsContext* tls)
    : fd_(std::move(fd)),
      is_unix_(is_unix),
      is_connecting_(is_connecting),
      address_(std::move(peer_address)),
      events_(events) {
  parts_.reserve(kMostParts + 4);
  if (tls != nullptr) tls_ = std::make_unique<TlsStream>(*tls, fd_.get(), !is_connecting);
  if (!is_unix && !is_connecting) stop_pacing_within_machine(fd_.get());
}

SocketLink::~SocketLink() = default;

std::uint32_t SocketLink::peer_process() const {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (!is_unix_ || getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
      peer.pid < 0)
    return 0;
  return static_cast<std::uint32_t>(peer.pid);
}

std::uint64_t SocketLink::received_bytes() const {
  int waiting = 0;
  if (wake_bytes_ > 1) ioctl(fd_.get(), FIONREAD, &waiting);
  return (tls_ ? tls_->received_bytes() : received_bytes_) + static_cast<std::uint64_t>(waiting);
}

void SocketLink::send(const Frame& frame) {
  if (closing_) return;
  if (control_bytes_ > most_waiting_bytes()) return close(unread(address_, control_bytes_));
  control_.push_back(encode(frame, 0));
  control_bytes_ += control_.back().size();
}

void SocketLink::close(const Error& error) {
  if (!closing_) closing_ = error;
}

void SocketLink::ready(bool readable, bool writable) {
  readable_ |= readable;
  writable_ |= writable;
}

bool SocketLink::is_runnable() const {
  if (is_closed_) return false;
  if (closing_ || readable_) return true;
  if (!writable_) return false;
  if (is_connecting_ || (tls_ && tls_->is_full())) return true;
  return !shakes_hands() && (writing_ || !control_.empty() || has_payloads_);
}

bool SocketLink::progress() {
  if (is_closed_) return false;
  if (is_connecting_ && writable_ && !closing_) {
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      close(Error::from_errno(error, "%s: connect", address_.c_str()));
    } else {
      is_connecting_ = false;
      if (!is_unix_) stop_pacing_within_machine(fd_.get());
      if (tls_) shake_hands();
    }
  } else if (shakes_hands() && !is_connecting_ && !closing_) {
    shake_hands();
  }
  for (std::uint64_t turns = kTurnBytes / kCallBytes; turns > 0 && !closing_ && !shakes_hands();
       --turns) {
    bool moved = false;
    if (writable_ && !is_connecting_) moved |= write_some();
    if (readable_ && !closing_) moved |= read_some();
    if (!moved) break;
  }
  if (closing_) finish_close();
  return is_runnable();
}

void SocketLink::finish_close() {
  // The last frame says why: as far as the socket takes it now.
  has_payloads_ = false;
  if (!control_.empty() && !writing_ && !is_connecting_ && !shakes_hands()) write_some();
  is_closed_ = true;
  fd_.close();
  if (writing_) events_.on_payload_sent(*this, writing_->payload);
  writing_.reset();
  if (reading_) events_.on_payload_end(*this, reading_->frame, reading_->bytes, PayloadEnd::kVoid);
  reading_.reset();
  control_.clear();
  events_.on_closed(*this, *closing_);
}

void SocketLink::shake_hands() {
  const int error = tls_->open();
  if (tls_->is_full()) writable_ = false;
  if (error == EAGAIN) {
    readable_ = false;
  } else if (error != 0) {
    close(tls_->error(address_, error));
  }
}

// --- Reading ---

ssize_t SocketLink::receive(std::span<const iovec> parts) {
  return tls_ ? tls_->read(parts) : readv(fd_.get(), parts.data(), static_cast<int>(parts.size()));
}

bool SocketLink::read_some() {
  if (reading_ && reading_->done < reading_->bytes) return read_payload();
  std::array<std::byte, kControlRead> bytes;
  const iovec part{bytes.data(), bytes.size()};
  const ssize_t count = receive({&part, 1});
  if (count < 0) {
    if (errno == EINTR) return true;
    stop_reading(errno);
    return false;
  }
  if (count == 0) {
    close(Error::make(Code::kIo, "%s: the peer has closed the connection", address_.c_str()));
    return false;
  }
  received_bytes_ += static_cast<std::uint64_t>(count);
  const std::byte* at = bytes.data();
  std::size_t left = static_cast<std::size_t>(count);
  while (left > 0 && !closing_) {
    std::size_t used = 0;
    if (const Status status = take(at, left, used); !status) {
      // A peer of another version finds this one in the header of the answer.
      if (status.error().code == Code::kVersionMismatch)
        send({FrameType::kRefusal, BodyWriter().error(status.error()).take()});
      close(status.error());
      return false;
    }
    at += used;
    left -= used;
  }
  return true;
}

// One step of the state machine: header, body, payload, trailer.
Status SocketLink::take(const std::byte* bytes, std::size_t count, std::size_t& used) {
  if (reading_ && reading_->done < reading_->bytes) {
    used =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, reading_->bytes - reading_->done));
    take_payload_bytes(bytes, used);
    return {};
  }
  std::size_t wanted = reading_ ? sizeof(FrameTrailer) : sizeof(FrameHeader);
  FrameHeader header{};
  if (!reading_ && buffer_.size() >= sizeof header) {
    std::memcpy(&header, buffer_.data(), sizeof header);
    wanted += header.body_bytes;
  }
  used = std::min(count, wanted - buffer_.size());
  buffer_.insert(buffer_.end(), bytes, bytes + used);
  if (!reading_ && !tls_) CACHALOT_TRY(check_beginning(buffer_));
  if (buffer_.size() < wanted) return {};
  if (reading_) return end_payload();
  std::memcpy(&header, buffer_.data(), sizeof header);
  if (wanted == sizeof header) {
    CACHALOT_TRY(check_header(header, most_body_bytes()));
    if (header.body_bytes > 0) return {};  // the body follows
  }
  const std::span<const std::byte> body =
      std::span<const std::byte>(buffer_).subspan(sizeof header);
  CACHALOT_TRY(check_body(header, body));
  Frame frame{static_cast<FrameType>(header.type), {body.begin(), body.end()}};
  buffer_.clear();
  if (frame.type == FrameType::kChunk) {
    reading_ = std::make_unique<Incoming>();
    reading_->frame = std::move(frame);
    reading_->bytes = header.payload_bytes;
    reading_->to = events_.on_payload(*this, reading_->frame, header.payload_bytes);
    reading_->is_dropped = reading_->to.memory == nullptr;
    return {};
  }
  events_.on_frame(*this, std::move(frame));
  return {};
}

void SocketLink::take_payload_bytes(const std::byte* bytes, std::size_t count) {
  Incoming& in = *reading_;
  if (!in.is_dropped && in.to.memory->enter()) {
    ByteStreamCursor cursor(in.to.memory->stream(), in.to.offset + in.done);
    for (std::size_t taken = 0; taken < count;) {
      const Piece piece = cursor.next(count - taken);
      if (piece.bytes == 0) break;
      std::memcpy(pointer(piece.at), bytes + taken, piece.bytes);
      taken += piece.bytes;
    }
    in.to.memory->leave();
    if (in.to.has_checksum) in.hash.add(bytes, count);
  } else {
    in.is_dropped = true;
  }
  in.done += count;
}

bool SocketLink::read_payload() {
  Incoming& in = *reading_;
  const std::uint64_t want = std::min(in.bytes - in.done, kCallBytes);
  parts_.clear();
  const bool is_inside = !in.is_dropped && in.to.memory->enter();
  bool is_packed = false;
  if (is_inside) {
    const ByteStream& stream = in.to.memory->stream();
    is_packed = are_small(stream, in.to.offset + in.done, want);
    if (is_packed) {
      arrived_.resize(kPackBytes);
      parts_.push_back({arrived_.data(), std::min<std::uint64_t>(want, arrived_.size())});
    } else {
      add_pieces(stream, in.to.offset + in.done, want, parts_);
    }
  } else {
    in.is_dropped = true;
    parts_.push_back({nowhere().data(), std::min<std::uint64_t>(want, nowhere().size())});
  }
  const ssize_t count = receive(parts_);
  const int error = errno;
  if (is_inside) {
    if (is_packed && count > 0) {
      scatter(std::span(arrived_).first(static_cast<std::size_t>(count)), in.to.memory->stream(),
              in.to.offset + in.done);
    }
    if (in.to.has_checksum && count > 0) {
      std::uint64_t left = static_cast<std::uint64_t>(count);
      for (const iovec& part : parts_) {
        const std::uint64_t step = std::min<std::uint64_t>(left, part.iov_len);
        in.hash.add(part.iov_base, step);
        left -= step;
        if (left == 0) break;
      }
    }
    in.to.memory->leave();
  }
  if (count > 0) {
    received_bytes_ += static_cast<std::uint64_t>(count);
    in.done += static_cast<std::uint64_t>(count);
    return true;
  }
  if (count < 0 && error == EINTR) return true;
  if (count == 0) {
    close(Error::make(Code::kIo, "%s: the peer has closed the connection", address_.c_str()));
  } else {
    stop_reading(error);
  }
  return false;
}

// Nothing is there to read.
void SocketLink::stop_reading(int error) {
  readable_ = false;
  if (tls_ && error == EBADMSG) return close(tls_->error(address_, error));
  if (error != EAGAIN) return close(Error::from_errno(error, "%s: receiving", address_.c_str()));
  if (is_unix_) return;  // poll() of these ignores it
  std::uint64_t bytes = 1;
  if (reading_ && reading_->done < reading_->bytes)
    bytes = std::min(reading_->bytes - reading_->done + sizeof(FrameTrailer), kWakeBytes);
  // A part of a record may be in the stream already.
  if (tls_) bytes = bytes > 2 * kMostRecordBytes ? bytes - 2 * kMostRecordBytes : 1;
  if (bytes == wake_bytes_) return;
  const int low = static_cast<int>(bytes);
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0) wake_bytes_ = bytes;
}

// As if the network had changed a byte.
void SocketLink::damage(Incoming& in) {
  if (!in.to.memory->enter()) return;
  const Piece piece = ByteStreamCursor(in.to.memory->stream(), in.to.offset).next(1);
  auto* byte = static_cast<unsigned char*>(pointer(piece.at));
  *byte ^= 1;
  in.hash.add(byte, 1);
  in.to.memory->leave();
}

Status SocketLink::end_payload() {
  FrameTrailer trailer;
  std::memcpy(&trailer, buffer_.data(), sizeof trailer);
  buffer_.clear();
  CACHALOT_TRY(check_trailer(trailer));
  const std::unique_ptr<Incoming> in = std::move(reading_);
  PayloadEnd end = PayloadEnd::kWritten;
  if (in->is_dropped || trailer.state == static_cast<std::uint32_t>(PayloadState::kVoid)) {
    end = PayloadEnd::kVoid;
  } else if (in->to.is_damaged) {
    damage(*in);
  }
  if (end == PayloadEnd::kWritten && in->to.has_checksum && in->hash.digest() != trailer.checksum) {
    end = PayloadEnd::kCorrupt;
  }
  events_.on_payload_end(*this, in->frame, in->bytes, end);
  return {};
}

// --- Writing ---

// @return whether all frames are among the parts
bool SocketLink::add_control() {
  std::size_t skip = control_sent_;
  for (std::vector<std::byte>& bytes : control_) {
    if (parts_.size() >= kMostParts / 2) return false;
    parts_.push_back({bytes.data() + skip, bytes.size() - skip});
    skip = 0;
  }
  return true;
}

// Precondition: inside the memory. @return whether the bytes from `offset` of the payload on are in packed_
bool SocketLink::pack(Outgoing& out, std::uint64_t offset, std::uint64_t want) {
  // What the kernel did not take of the last ones.
  if (offset >= out.packed_from && offset < out.packed_end) return true;
  const ByteStream& stream = out.payload.memory->stream();
  if (!are_small(stream, out.payload.offset + offset, want)) return false;
  packed_.resize(kPackBytes);
  const std::uint64_t bytes = std::min<std::uint64_t>(want, packed_.size());
  gather(stream, out.payload.offset + offset, std::span(packed_).first(bytes));
  out.packed_from = offset;
  out.packed_end = offset + bytes;
  return true;
}

std::uint64_t SocketLink::add_packed(const Outgoing& out, std::uint64_t offset) {
  const std::uint64_t bytes = out.packed_end - offset;
  parts_.push_back({packed_.data() + (offset - out.packed_from), bytes});
  return bytes;
}

void SocketLink::add_payload() {
  Outgoing& out = *writing_;
  const std::uint64_t head = out.head.size(), bytes = out.payload.bytes;
  if (out.sent < head) parts_.push_back({out.head.data() + out.sent, head - out.sent});
  std::uint64_t offset = out.sent > head ? out.sent - head : 0;
  if (offset < bytes) {
    const std::uint64_t want = std::min(bytes - offset, kCallBytes);
    const std::size_t first = parts_.size();
    if (!out.is_void) {
      // write_some() has entered the memory.
      const std::uint64_t added =
          pack(out, offset, want)
              ? add_packed(out, offset)
              : add_pieces(out.payload.memory->stream(), out.payload.offset + offset, want, parts_);
      if (out.payload.has_checksum && offset + added > out.hashed) {
        // Bytes of an earlier call that the kernel did not take are hashed already.
        std::uint64_t skip = out.hashed - offset;
        for (std::size_t i = first; i < parts_.size(); ++i) {
          const std::uint64_t skipped = std::min<std::uint64_t>(skip, parts_[i].iov_len);
          skip -= skipped;
          out.hash.add(static_cast<std::byte*>(parts_[i].iov_base) + skipped,
                       parts_[i].iov_len - skipped);
        }
        out.hashed = offset + added;
      }
      offset += added;
    } else {
      const std::uint64_t step = std::min<std::uint64_t>(want, kZeros.size());
      parts_.push_back({const_cast<std::byte*>(kZeros.data()), step});
      offset += step;
    }
  }
  if (offset < bytes) return;
  if (!out.has_trailer) {
    out.trailer = make_trailer(out.is_void ? PayloadState::kVoid : PayloadState::kValid,
                               out.payload.has_checksum && !out.is_void ? out.hash.digest() : 0);
    out.has_trailer = true;
  }
  const std::uint64_t skip = out.sent > head + bytes ? out.sent - head - bytes : 0;
  parts_.push_back({reinterpret_cast<std::byte*>(&out.trailer) + skip, sizeof out.trailer - skip});
}

ssize_t SocketLink::transmit() {
  if (tls_) return tls_->write(parts_);
  msghdr message{};
  message.msg_iov = parts_.data();
  message.msg_iovlen = parts_.size();
  return sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
}

bool SocketLink::write_some() {
  parts_.clear();
  // Frames go between payloads, never into one: a payload begins when all frames are sent or go with it, for consume()
  // takes what was sent for frames first.
  const bool is_between = !writing_ || writing_->sent == 0;
  const bool may_write = !is_between || add_control();
  if (!writing_ && may_write) {
    OutgoingPayload payload;
    if (has_payloads_ && (has_payloads_ = events_.next_payload(*this, payload))) {
      writing_ = std::make_unique<Outgoing>();
      writing_->head = encode(payload.frame, payload.bytes);
      writing_->payload = std::move(payload);
    }
  }
  bool is_inside = false;
  if (writing_ && may_write) {
    Outgoing& out = *writing_;
    const bool needs_memory = !out.is_void && out.sent < out.head.size() + out.payload.bytes;
    is_inside = needs_memory && out.payload.memory->enter();
    if (needs_memory && !is_inside) {
      // The owner took its memory back in mid-payload: the promised bytes are zeros, and the trailer says so.
      out.is_void = true;
      out.has_trailer = false;
    }
    add_payload();
  }
  // Without parts: bytes that were encrypted before wait for the socket.
  if (parts_.empty() && !(tls_ && tls_->is_full())) return false;
  const ssize_t count = transmit();
  const int error = errno;
  if (is_inside) writing_->payload.memory->leave();
  if (count < 0) {
    if (error == EINTR) return true;
    writable_ = false;
    if (error != EAGAIN) close(Error::from_errno(error, "%s: sending", address_.c_str()));
    return false;
  }
  consume(static_cast<std::size_t>(count));
  return true;
}

void SocketLink::consume(std::size_t sent) {
  while (sent > 0 && !control_.empty() && (!writing_ || writing_->sent == 0)) {
    const std::size_t step = std::min(sent, control_.front().size() - control_sent_);
    sent -= step;
    control_sent_ += step;
    if (control_sent_ == control_.front().size()) {
      control_bytes_ -= control_sent_;
      control_.pop_front();
      control_sent_ = 0;
    }
  }
  if (!writing_) return;
  writing_->sent += sent;
  if (writing_->sent < writing_->head.size() + writing_->payload.bytes + sizeof(FrameTrailer))
    return;
  const std::unique_ptr<Outgoing> done = std::move(writing_);
  events_.on_payload_sent(*this, done->payload);
}

}  // namespace cachalot::transfer
