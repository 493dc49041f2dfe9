#include "transfer/link/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/link/payload_copy.h"
#include "transfer/link/payload_hash.h"

namespace cachalot::transfer {

struct FrameReader::Payload {
  Frame frame;
  std::uint64_t bytes = 0, done = 0;
  IncomingPayload to;
  bool is_dropped = false;
  PayloadHash hash;
};

FrameReader::FrameReader(Link& link, LinkEvents& events) : link_(link), events_(events) {}
FrameReader::~FrameReader() = default;

Status FrameReader::take(std::span<const std::byte> bytes) {
  while (!bytes.empty() && !is_stopped_) {
    if (payload_ && payload_->done < payload_->bytes) {
      take_payload(bytes);
      continue;
    }
    const Status status = payload_ ? take_trailer(bytes) : take_frame(bytes);
    if (!status) return status;
  }
  return {};
}

void FrameReader::end() {
  is_stopped_ = true;
  const std::unique_ptr<Payload> in = std::move(payload_);
  if (in) events_.on_payload_end(link_, in->frame, in->bytes, PayloadEnd::kVoid);
}

// Moves bytes into the buffer. @return whether it has `wanted` bytes now
bool FrameReader::fill(std::span<const std::byte>& bytes, std::size_t wanted) {
  const std::size_t step = std::min(bytes.size(), wanted - buffer_.size());
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(step));
  bytes = bytes.subspan(step);
  return buffer_.size() == wanted;
}

Status FrameReader::take_frame(std::span<const std::byte>& bytes) {
  FrameHeader header;
  if (buffer_.size() < sizeof header) {
    if (!fill(bytes, sizeof header)) return {};
    std::memcpy(&header, buffer_.data(), sizeof header);
    CACHALOT_TRY(check_header(header, link_.most_body_bytes()));
  }
  std::memcpy(&header, buffer_.data(), sizeof header);
  if (!fill(bytes, sizeof header + header.body_bytes)) return {};
  const std::span<const std::byte> body =
      std::span<const std::byte>(buffer_).subspan(sizeof header);
  CACHALOT_TRY(check_body(header, body));
  Frame frame{static_cast<FrameType>(header.type), {body.begin(), body.end()}};
  buffer_.clear();
  if (frame.type != FrameType::kChunk) {
    events_.on_frame(link_, std::move(frame));
    return {};
  }
  payload_ = std::make_unique<Payload>();
  payload_->frame = std::move(frame);
  payload_->bytes = header.payload_bytes;
  payload_->to = events_.on_payload(link_, payload_->frame, header.payload_bytes);
  payload_->is_dropped = payload_->to.memory == nullptr;
  return {};
}

void FrameReader::take_payload(std::span<const std::byte>& bytes) {
  Payload& in = *payload_;
  const std::uint64_t count = std::min<std::uint64_t>(bytes.size(), in.bytes - in.done);
  if (!in.is_dropped && in.to.memory->enter()) {
    scatter(bytes.first(count), in.to.memory->stream(), in.to.offset + in.done);
    in.to.memory->leave();
    if (in.to.has_checksum) in.hash.add(bytes.data(), count);
  } else {
    in.is_dropped = true;
  }
  in.done += count;
  bytes = bytes.subspan(count);
}

Status FrameReader::take_trailer(std::span<const std::byte>& bytes) {
  FrameTrailer trailer;
  if (!fill(bytes, sizeof trailer)) return {};
  std::memcpy(&trailer, buffer_.data(), sizeof trailer);
  buffer_.clear();
  CACHALOT_TRY(check_trailer(trailer));
  const std::unique_ptr<Payload> in = std::move(payload_);
  PayloadEnd end = PayloadEnd::kWritten;
  if (in->is_dropped || trailer.state == static_cast<std::uint32_t>(PayloadState::kVoid)) {
    end = PayloadEnd::kVoid;
  } else if (in->to.is_damaged && in->to.memory->enter()) {
    // As if the network had changed a byte.
    const Piece piece = ByteStreamCursor(in->to.memory->stream(), in->to.offset).next(1);
    if (piece.bytes > 0) *reinterpret_cast<unsigned char*>(piece.at) ^= 1;
    in->hash.add(&trailer, 1);
    in->to.memory->leave();
  }
  if (end == PayloadEnd::kWritten && in->to.has_checksum && in->hash.digest() != trailer.checksum)
    end = PayloadEnd::kCorrupt;
  events_.on_payload_end(link_, in->frame, in->bytes, end);
  return {};
}

}  // namespace cachalot::transfer
