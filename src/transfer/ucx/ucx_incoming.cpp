#include "transfer/ucx/ucx_incoming.h"

#include <cstring>
#include <utility>

#include "transfer/link/payload_copy.h"
#include "transfer/link/payload_hash.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kMostPayloads =
    64;  // of one peer at the same time; an engine begins at most kMostBegun

Error bad(const char* what) {
  return Error::make(Code::kBadInput, "a message of the peer is not valid: %s", what);
}

template <class Header>
bool read(std::span<const std::byte> bytes, Header& header) {
  if (bytes.size() < sizeof header) return false;
  std::memcpy(&header, bytes.data(), sizeof header);
  return true;
}

}  // namespace

struct UcxIncoming::Payload {
  std::uint64_t number = 0;
  Frame frame;
  std::uint64_t bytes = 0;
  std::uint64_t next = 0;  // offset of the next slice
  IncomingPayload to;
  bool is_dropped = false;
  std::optional<FrameTrailer> trailer;
};

UcxIncoming::UcxIncoming(Link& link, LinkEvents& events)
    : link_(link), events_(events), reader_(link, events) {}

UcxIncoming::~UcxIncoming() = default;

void UcxIncoming::stop() {
  is_stopped_ = true;
  reader_.stop();
  for (auto& [number, payload] : payloads_) payload->is_dropped = true;
}

void UcxIncoming::end() {
  stop();
  reader_.end();
  for (const auto& [number, payload] : std::exchange(payloads_, {}))
    events_.on_payload_end(link_, payload->frame, payload->bytes, PayloadEnd::kVoid);
}

Status UcxIncoming::take(const UcxArrival& arrival) {
  if (is_stopped_) return {};
  switch (arrival.message) {
    case UcxMessage::kSegment:
      return take_segment(arrival);
    case UcxMessage::kSlice:
      return take_slice(arrival);
    case UcxMessage::kVoid:
      return take_void(arrival);
  }
  return {};
}

Status UcxIncoming::check_sequence(std::uint32_t magic, std::uint64_t sequence) {
  if (magic != kUcxMagic) return bad("it is not of a Cachalot peer");
  if (sequence == sequence_++) return {};
  return Error::make(Code::kCorrupt, "message %llu of the peer came when %llu was expected",
                     static_cast<unsigned long long>(sequence),
                     static_cast<unsigned long long>(sequence_ - 1));
}

Status UcxIncoming::take_segment(const UcxArrival& arrival) {
  SegmentHeader header{};
  if (!read(arrival.header, header)) return bad("a short header");
  CACHALOT_TRY(check_sequence(header.magic, header.sequence));
  if (header.bytes != arrival.data.size()) return bad("the size of a segment");
  return reader_.take(arrival.data);
}

Status UcxIncoming::begin_payload(std::uint64_t number, std::span<const std::byte> bytes) {
  FrameHeader header{};
  if (!read(bytes, header)) return bad("a slice without its frame");
  CACHALOT_TRY(check_header(header));
  const std::span<const std::byte> body = bytes.subspan(sizeof header);
  if (body.size() != header.body_bytes) return bad("the size of a frame");
  CACHALOT_TRY(check_body(header, body));
  if (header.type != static_cast<std::uint16_t>(FrameType::kChunk) || header.payload_bytes == 0)
    return bad("a frame without a payload");
  if (number <= last_payload_ || payloads_.size() == kMostPayloads)
    return bad("the number of a payload");
  last_payload_ = number;
  auto payload = std::make_shared<Payload>();
  payload->number = number;
  payload->frame = {FrameType::kChunk, {body.begin(), body.end()}};
  payload->bytes = header.payload_bytes;
  payloads_[number] = payload;
  payload->to = events_.on_payload(link_, payload->frame, payload->bytes);
  payload->is_dropped |= payload->to.memory == nullptr;
  return {};
}

Status UcxIncoming::take_slice(const UcxArrival& arrival) {
  SliceHeader header{};
  if (!read(arrival.header, header)) return bad("a short header");
  CACHALOT_TRY(check_sequence(header.magic, header.sequence));
  const std::span<const std::byte> frame = arrival.header.subspan(sizeof header);
  if (header.frame_bytes != frame.size()) return bad("the size of a slice's frame");
  if (!frame.empty()) CACHALOT_TRY(begin_payload(header.payload, frame));
  const auto found = payloads_.find(header.payload);
  if (found == payloads_.end()) return bad("a slice of no payload");
  const std::shared_ptr<Payload> payload = found->second;
  if (header.bytes == 0 || header.bytes != arrival.data.size() || header.offset != payload->next ||
      header.bytes > payload->bytes - payload->next)
    return bad("the place of a slice");
  payload->next += header.bytes;
  if (payload->next == payload->bytes) {
    CACHALOT_TRY(check_trailer(header.trailer));
    payload->trailer = header.trailer;
  }
  // on_payload() may have closed the link.
  if (!is_stopped_ && !payload->is_dropped) copy(*payload, arrival.data, header.offset);
  try_end(payload);
  return {};
}

void UcxIncoming::copy(Payload& payload, std::span<const std::byte> data, std::uint64_t offset) {
  if (!payload.to.memory->enter()) {
    payload.is_dropped = true;
    return;
  }
  scatter(data, payload.to.memory->stream(), payload.to.offset + offset);
  payload.to.memory->leave();
}

Status UcxIncoming::take_void(const UcxArrival& arrival) {
  VoidHeader header{};
  if (!read(arrival.header, header)) return bad("a short header");
  CACHALOT_TRY(check_sequence(header.magic, header.sequence));
  const auto found = payloads_.find(header.payload);
  if (found == payloads_.end() || found->second->trailer) return bad("the end of no payload");
  found->second->trailer = make_trailer(PayloadState::kVoid, 0);
  try_end(std::shared_ptr<Payload>(found->second));
  return {};
}

// Ends a payload of which all has come.
void UcxIncoming::try_end(const std::shared_ptr<Payload>& payload) {
  Payload& in = *payload;
  if (!in.trailer || is_stopped_ || payloads_.erase(in.number) == 0) return;
  const bool is_void = in.trailer->state == static_cast<std::uint32_t>(PayloadState::kVoid);
  PayloadEnd end = PayloadEnd::kWritten;
  if (in.is_dropped || is_void) {
    end = PayloadEnd::kVoid;
  } else if (in.to.has_checksum || in.to.is_damaged) {
    if (!in.to.memory->enter()) {
      end = PayloadEnd::kVoid;
    } else {
      const ByteStream& stream = in.to.memory->stream();
      if (in.to.is_damaged) {  // as if the network had changed a byte
        const Piece piece = ByteStreamCursor(stream, in.to.offset).next(1);
        if (piece.bytes > 0) *reinterpret_cast<unsigned char*>(piece.at) ^= 1;
      }
      if (in.to.has_checksum && hash_of(stream, in.to.offset, in.bytes) != in.trailer->checksum)
        end = PayloadEnd::kCorrupt;
      in.to.memory->leave();
    }
  }
  events_.on_payload_end(link_, in.frame, in.bytes, end);
}

}  // namespace cachalot::transfer
