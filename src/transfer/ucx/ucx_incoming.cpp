#include "transfer/ucx/ucx_incoming.h"

#include <cstring>
#include <utility>

#include "transfer/link/payload_copy.h"
#include "transfer/link/payload_hash.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kMostPayloads =
    64;  // of one peer at the same time; an engine begins at most kMostSlices

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
  unsigned in_flight = 0;
  bool is_dropped = false;
  std::optional<FrameTrailer> trailer;
};

struct UcxIncoming::SliceReceive final : UcxOperation {
  SliceReceive(UcxIncoming& owner, std::shared_ptr<Payload> of, std::uint64_t at,
               std::uint64_t count)
      : incoming(owner), payload(std::move(of)), offset(at), bytes(count) {
    ++payload->in_flight;
    ++incoming.receives_;
  }
  void on_end(bool is_done) override {
    if (is_pinned) incoming.pins_.remove(payload->to.memory);
    if (!is_done) payload->is_dropped = true;
    --payload->in_flight;
    --incoming.receives_;
    incoming.try_end(payload);
  }
  // Bytes [at, at + part.size()) of the slice.
  void take(std::span<const std::byte> part, std::uint64_t at) {
    Payload& into = *payload;
    if (into.is_dropped || at > bytes || part.size() > bytes - at || !into.to.memory->enter()) {
      into.is_dropped = true;
      return;
    }
    scatter(part, into.to.memory->stream(), into.to.offset + offset + at);
    into.to.memory->leave();
  }

  UcxIncoming& incoming;
  std::shared_ptr<Payload> payload;
  const std::uint64_t offset, bytes;
  bool is_pinned = false;
};

UcxIncoming::UcxIncoming(UcxWorker& worker, UcxConnection& connection, Pins& pins, Link& link,
                         LinkEvents& events)
    : worker_(worker),
      connection_(connection),
      pins_(pins),
      link_(link),
      events_(events),
      reader_(link, events) {}

UcxIncoming::~UcxIncoming() = default;

ucs_status_t UcxIncoming::create_scattered(const UcxLibrary& ucx, ucp_datatype_t& type) {
  ucp_generic_dt_ops_t operations{};
  // For sending, which does not happen.
  operations.start_pack = [](void*, const void*, std::size_t) -> void* { return nullptr; };
  operations.pack = [](void*, std::size_t, void*, std::size_t) -> std::size_t { return 0; };
  operations.start_unpack = [](void*, void* receive, std::size_t) { return receive; };
  operations.packed_size = [](void* receive) -> std::size_t {
    return receive == nullptr ? 0 : static_cast<SliceReceive*>(receive)->bytes;
  };
  operations.unpack = [](void* receive, std::size_t offset, const void* bytes, std::size_t count) {
    static_cast<SliceReceive*>(receive)->take({static_cast<const std::byte*>(bytes), count},
                                              offset);
    return UCS_OK;
  };
  operations.finish = [](void*) {};
  return ucx.dt_create_generic(&operations, nullptr, &type);
}

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
  if (header.bytes != arrival.data.size() || arrival.offer != nullptr)
    return bad("the size of a segment");
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
  if (header.bytes == 0 || header.bytes != arrival.bytes || header.offset != payload->next ||
      header.bytes > payload->bytes - payload->next)
    return bad("the place of a slice");
  payload->next += header.bytes;
  if (payload->next == payload->bytes) {
    CACHALOT_TRY(check_trailer(header.trailer));
    payload->trailer = header.trailer;
  }
  // on_payload() may have closed the link.
  if (!is_stopped_ && !payload->is_dropped) receive(payload, arrival, header.offset);
  try_end(payload);
  return {};
}

void UcxIncoming::receive(const std::shared_ptr<Payload>& payload, const UcxArrival& arrival,
                          std::uint64_t offset) {
  const std::shared_ptr<PayloadMemory>& memory = payload->to.memory;
  auto receive = std::make_unique<SliceReceive>(*this, payload, offset, arrival.bytes);
  if (arrival.offer == nullptr) {  // it came with the message
    receive->take(arrival.data, 0);
    receive->on_end(true);
    return;
  }
  const Piece piece =
      ByteStreamCursor(memory->stream(), payload->to.offset + offset).next(arrival.bytes);
  if (piece.bytes == arrival.bytes && piece.bytes >= worker_.direct_bytes) {
    if (!pins_.add(memory)) return receive->on_end(false);
    receive->is_pinned = true;
    connection_.receive(arrival.offer, reinterpret_cast<void*>(piece.at), arrival.bytes, false,
                        std::move(receive));
    return;
  }
  void* const context = receive.get();
  connection_.receive(arrival.offer, context, arrival.bytes, true, std::move(receive));
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
  if (!in.trailer || in.in_flight > 0 || is_stopped_ || payloads_.erase(in.number) == 0) return;
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
