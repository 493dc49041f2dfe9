// What a peer sends. First byte: 0, bytes of a link; 1, frames of a link whose CRCs match; 2 to 4, the messages that
// frames carry (handover, segments, peers). A message that is accepted is the same after it was sent again.
#include <memory>
#include <utility>
#include <variant>

#include "base/check.h"
#include "input.h"
#include "node/peers/messages.h"
#include "transfer/handover/messages.h"
#include "transfer/link/frame_reader.h"
#include "transfer/segments/messages.h"

namespace cachalot::transfer {
namespace {

using Bytes = std::vector<std::byte>;

class NoLink final : public Link {
 public:
  void send(const Frame&) override {}
  void wants_payload() override {}
  void close(const Error&) override {}
  std::uint32_t peer_process() const override { return 0; }
  std::uint64_t received_bytes() const override { return 0; }
  const std::string& peer_address() const override { return address_; }

 private:
  std::string address_;
};

// Takes a frame's body apart as the engine does, and payloads into memory with gaps.
class Events final : public LinkEvents {
 public:
  void on_frame(Link&, Frame frame) override {
    BodyReader reader(frame.body);
    reader.word();
    reader.stream();
    reader.text(100);
    reader.error();
    reader.words(100);
    (void)reader.end();
  }
  IncomingPayload on_payload(Link&, const Frame& frame, std::uint64_t bytes) override {
    CACHALOT_CHECK(!is_open_);
    is_open_ = true;
    BodyReader reader(frame.body);
    const std::uint64_t offset = reader.word() % (kAreaBytes + 1);
    // The engine takes none that does not fit.
    if (bytes > kAreaBytes - offset) return {};
    return {memory_, offset, reader.word() % 2 != 0, false};
  }
  void on_payload_end(Link&, const Frame&, std::uint64_t, PayloadEnd) override {
    CACHALOT_CHECK(is_open_);
    is_open_ = false;
  }
  bool next_payload(Link&, OutgoingPayload&) override { return false; }
  void on_payload_sent(Link&, const OutgoingPayload&) override {}
  void on_closed(Link&, const Error&) override {}

  // The bytes between the pieces belong to another.
  void check() const {
    CACHALOT_CHECK(!is_open_);
    for (std::size_t i = 0; i < area_.size(); ++i) {
      CACHALOT_CHECK(i / kPiece % 2 == 0 || area_[i] == std::byte{});
    }
  }

 private:
  static constexpr std::uint64_t kPiece = 24, kPieces = 20, kAreaBytes = kPiece * kPieces;
  Bytes area_ = Bytes(2 * kAreaBytes);
  std::shared_ptr<PayloadMemory> memory_ = std::make_shared<PayloadMemory>(*Strided::make(
      reinterpret_cast<std::uintptr_t>(area_.data()), {{kPieces, 2 * kPiece}}, kPiece));
  bool is_open_ = false;
};

// Frames: type, 16 bits of body bytes, 16 bits of payload bytes, body; then payload and trailer follow as they are.
Bytes sealed_frames(fuzz::Input& input) {
  Bytes all;
  while (!input.is_empty()) {
    Frame frame;
    frame.type = static_cast<FrameType>(input.take<std::uint8_t>());
    const std::size_t words = input.take<std::uint8_t>();
    std::uint64_t payload = input.take<std::uint16_t>();
    if (frame.type != FrameType::kChunk) payload %= 2;  // mostly refused
    const auto body = input.take_bytes(words * 8);
    frame.body.assign(body.begin(), body.end());
    frame.body.resize(words * 8);
    const Bytes bytes = encode(frame, payload);
    all.insert(all.end(), bytes.begin(), bytes.end());
    const auto rest = input.take_bytes(payload);
    all.insert(all.end(), rest.begin(), rest.end());
    if (payload == 0 || rest.size() < payload) continue;
    FrameTrailer trailer = make_trailer(PayloadState::kValid, 0);
    trailer.checksum = input.take<std::uint64_t>();
    trailer.state = input.take<std::uint8_t>();
    const auto raw = std::as_bytes(std::span(&trailer, 1));
    all.insert(all.end(), raw.begin(), raw.end());
  }
  return all;
}

void try_stream(std::span<const std::byte> bytes, std::size_t most) {
  NoLink link;
  Events events;
  FrameReader reader(link, events);
  (void)check_beginning(bytes);
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(most, bytes.size()));
    bytes = bytes.subspan(part.size());
    if (!reader.take(part)) break;
  }
  reader.end();
  events.check();
}

template <class Decode>
void try_message(std::span<const std::byte> bytes, Decode&& decode_one) {
  const auto message = decode_one(bytes);
  if (!message) return;
  const Bytes sent = encode(*message);
  const auto again = decode_one(std::span<const std::byte>(sent));
  CACHALOT_CHECK(again.ok());
  CACHALOT_CHECK(encode(*again) == sent);
}

void try_input(fuzz::Input input) {
  switch (input.below(5)) {
    case 0: {
      const std::size_t most = 1 + input.below(255);
      return try_stream(input.rest(), most);
    }
    case 1: {
      const std::size_t most = 1 + input.below(255);
      return try_stream(sealed_frames(input), most);
    }
    case 2:
      return try_message(input.rest(), [](auto bytes) { return decode(bytes); });
    case 3:
      return try_message(input.rest(), [](auto bytes) { return decode_segment_message(bytes); });
    case 4:
      return try_message(input.rest(), [](auto bytes) { return node::decode_peer_message(bytes); });
  }
}

}  // namespace
}  // namespace cachalot::transfer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::transfer::try_input({data, bytes});
  return 0;
}
