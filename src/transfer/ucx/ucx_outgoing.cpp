#include "transfer/ucx/ucx_outgoing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/link/payload_copy.h"

namespace cachalot::transfer {
namespace {

constexpr unsigned kMostSegments = 2, kMostSlices = 2;

template <class Header>
std::vector<std::byte> copy_of(const Header& header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

struct UcxOutgoing::Payload {
  OutgoingPayload payload;
  std::uint64_t number = 0;
  std::uint64_t next = 0;  // offset of the next slice
  unsigned in_flight = 0;
  bool is_void = false;
  std::unique_ptr<PayloadHash> hash;

  bool is_sliced() const { return is_void || next == payload.bytes; }
};

struct UcxOutgoing::SegmentSend final : UcxOperation {
  // May end when its link is gone.
  SegmentSend(UcxConnection& by, UcxWorker& from, std::byte* bytes)
      : connection(by), worker(from), buffer(bytes) {
    ++connection.segments;
  }
  void on_end(bool) override {
    worker.segments.give(buffer);
    --connection.segments;
  }
  UcxConnection& connection;
  UcxWorker& worker;
  std::byte* buffer;
};

struct UcxOutgoing::SliceSend final : UcxOperation {
  SliceSend(UcxOutgoing& owner, std::shared_ptr<Payload> of)
      : outgoing(owner), payload(std::move(of)) {
    ++payload->in_flight;
    ++outgoing.slices_;
  }
  void on_end(bool is_done) override {
    if (buffer != nullptr) outgoing.worker_.slices.give(buffer);
    if (!is_done) payload->is_void = true;
    --payload->in_flight;
    --outgoing.slices_;
  }
  UcxOutgoing& outgoing;
  std::shared_ptr<Payload> payload;
  std::byte* buffer = nullptr;  // into which it was packed
  std::size_t bytes = 0;
  std::vector<std::byte> header;
};

struct UcxOutgoing::VoidSend final : UcxOperation {
  void on_end(bool) override {}
  std::vector<std::byte> header;
};

UcxOutgoing::UcxOutgoing(UcxWorker& worker, UcxConnection& connection, Link& link,
                         LinkEvents& events)
    : worker_(worker),
      connection_(connection),
      link_(link),
      events_(events),
      writer_(link, events) {}

UcxOutgoing::~UcxOutgoing() = default;

bool UcxOutgoing::wants_more() const {
  if (!has_payloads_ || writer_.bytes() >= kSegmentBytes) return false;
  return payloads_.empty() || (payloads_.back()->is_sliced() && payloads_.size() < kMostBegun);
}

bool UcxOutgoing::is_runnable() const {
  if (!connection_.is_open()) return false;
  if (!is_greeted_) return true;
  if (!is_peer_known_) return false;
  if (writer_.bytes() > 0) return connection_.segments < kMostSegments;
  if (wants_more()) return true;
  if (std::any_of(payloads_.begin(), payloads_.end(), [](const auto& payload) {
        return payload->is_sliced() && payload->in_flight == 0;
      }))
    return true;
  return !payloads_.empty() && !payloads_.back()->is_sliced() && slices_ < kMostSlices;
}

bool UcxOutgoing::step() {
  if (!connection_.is_open()) return false;
  if (!is_greeted_) {
    is_greeted_ = true;
    return send_segment();
  }
  if (!is_peer_known_) return false;
  while (wants_more()) pull();
  // A slice must not overtake a frame that was added before.
  if (writer_.bytes() > 0) return send_segment();
  return end_payload() || send_slice();
}

void UcxOutgoing::pull() {
  OutgoingPayload payload;
  has_payloads_ = events_.next_payload(link_, payload);
  if (!has_payloads_) return;
  if (payload.bytes < kSegmentBytes || payload.frame.body.size() > kMostSliceFrameBytes) {
    writer_.add(std::move(payload));
    return;
  }
  auto begun = std::make_shared<Payload>();
  begun->number = ++payload_number_;
  if (payload.has_checksum) begun->hash = std::make_unique<PayloadHash>();
  begun->payload = std::move(payload);
  payloads_.push_back(std::move(begun));
}

bool UcxOutgoing::send_segment() {
  if (connection_.segments == kMostSegments) return false;
  std::byte* buffer = worker_.segments.take();
  if (buffer == nullptr) {
    link_.close(Error::make(Code::kNoSpace, "no memory for a segment"));
    return false;
  }
  SegmentHeader header{kUcxMagic, 0, sequence_++};
  std::byte* const data = buffer + sizeof header;
  if (is_peer_known_) {
    header.bytes = static_cast<std::uint32_t>(writer_.fill({data, kSegmentBytes - sizeof header}));
  }
  std::memcpy(buffer, &header, sizeof header);
  connection_.send(UcxMessage::kSegment, {buffer, sizeof header}, {data, header.bytes},
                   std::make_unique<SegmentSend>(connection_, worker_, buffer));
  return true;
}

bool UcxOutgoing::end_payload() {
  const auto found = std::find_if(payloads_.begin(), payloads_.end(), [](const auto& payload) {
    return payload->is_sliced() && payload->in_flight == 0;
  });
  if (found == payloads_.end()) return false;
  const std::shared_ptr<Payload> ended = *found;
  payloads_.erase(found);
  if (ended->next < ended->payload.bytes && ended->next > 0) send_void(*ended);
  events_.on_payload_sent(link_, ended->payload);
  return true;
}

void UcxOutgoing::send_void(const Payload& payload) {
  auto send = std::make_unique<VoidSend>();
  send->header = copy_of(VoidHeader{kUcxMagic, 0, sequence_++, payload.number});
  const std::span<const std::byte> bytes = send->header;
  connection_.send(UcxMessage::kVoid, bytes, {}, std::move(send));
}

// Packs the next slice. @return false: the owner has taken its memory back
bool UcxOutgoing::fill_slice(Payload& payload, SliceSend& send) {
  const OutgoingPayload& from = payload.payload;
  send.buffer = worker_.slices.take();
  if (send.buffer == nullptr) {
    link_.close(Error::make(Code::kNoSpace, "no memory for a slice"));
    return false;
  }
  if (!from.memory->enter()) return false;
  send.bytes = std::min<std::uint64_t>(kPackedBytes, from.bytes - payload.next);
  gather(from.memory->stream(), from.offset + payload.next, {send.buffer, send.bytes});
  from.memory->leave();
  if (payload.hash) payload.hash->add(send.buffer, send.bytes);
  return true;
}

bool UcxOutgoing::send_slice() {
  if (payloads_.empty() || payloads_.back()->is_sliced()) return false;
  if (slices_ == kMostSlices) return false;
  Payload& payload = *payloads_.back();
  auto send = std::make_unique<SliceSend>(*this, payloads_.back());
  if (!fill_slice(payload, *send)) {
    send->on_end(false);
    return true;  // its end is next
  }
  const std::span<const std::byte> data(send->buffer, send->bytes);
  const std::vector<std::byte> frame = payload.next == 0
                                           ? encode(payload.payload.frame, payload.payload.bytes)
                                           : std::vector<std::byte>();
  SliceHeader header{};
  header.magic = kUcxMagic;
  header.frame_bytes = static_cast<std::uint32_t>(frame.size());
  header.sequence = sequence_++;
  header.payload = payload.number;
  header.offset = payload.next;
  header.bytes = data.size();
  if (payload.next + data.size() == payload.payload.bytes) {
    header.trailer = make_trailer(PayloadState::kValid, payload.hash ? payload.hash->digest() : 0);
  }
  send->header = copy_of(header);
  send->header.insert(send->header.end(), frame.begin(), frame.end());
  payload.next += data.size();
  const std::span<const std::byte> bytes = send->header;
  connection_.send(UcxMessage::kSlice, bytes, data, std::move(send));
  return true;
}

void UcxOutgoing::end() {
  has_payloads_ = false;
  writer_.end();
  for (const auto& payload : std::exchange(payloads_, {}))
    events_.on_payload_sent(link_, payload->payload);
}

}  // namespace cachalot::transfer
