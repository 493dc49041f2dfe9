#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "transfer/link/frame_reader.h"
#include "transfer/link/frame_writer.h"

namespace cachalot::transfer {
namespace {

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

// A buffer, and memory of every second piece in it.
struct Area {
  Area(std::uint64_t pieces, std::uint64_t piece) : bytes(pieces * piece * 2) {
    memory = std::make_shared<PayloadMemory>(*Strided::make(
        reinterpret_cast<std::uintptr_t>(bytes.data()), {{pieces, piece * 2}}, piece));
  }
  std::vector<std::byte> content() const {
    std::vector<std::byte> all;
    ByteStreamCursor cursor(memory->stream());
    for (Piece p = cursor.next(1 << 20); p.bytes > 0; p = cursor.next(1 << 20)) {
      const auto* at = reinterpret_cast<const std::byte*>(p.at);
      all.insert(all.end(), at, at + p.bytes);
    }
    return all;
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<PayloadMemory> memory;
};

struct Events : LinkEvents {
  void on_frame(Link&, Frame frame) override { frames.push_back(std::move(frame)); }
  IncomingPayload on_payload(Link&, const Frame&, std::uint64_t) override { return to; }
  void on_payload_end(Link&, const Frame&, std::uint64_t bytes, PayloadEnd end) override {
    ends.emplace_back(bytes, end);
  }
  bool next_payload(Link&, OutgoingPayload&) override { return false; }
  void on_payload_sent(Link&, const OutgoingPayload&) override { ++sent; }
  void on_closed(Link&, const Error&) override {}

  std::vector<Frame> frames;
  std::vector<std::pair<std::uint64_t, PayloadEnd>> ends;
  IncomingPayload to;
  int sent = 0;
};

struct Stream {
  // Moves all, in parts of at most `most` bytes.
  Status move(std::size_t most) {
    std::vector<std::byte> part(most);
    for (;;) {
      const std::size_t count = writer.fill(part);
      if (count == 0) return {};
      if (const Status status = reader.take(std::span(part).first(count)); !status) return status;
    }
  }
  NoLink link;
  Events events;
  FrameWriter writer{link, events};
  FrameReader reader{link, events};
};

OutgoingPayload payload_of(const Area& area, bool has_checksum) {
  return {{FrameType::kChunk, BodyWriter().word(7).take()},
          area.memory,
          0,
          area.memory->stream().bytes(),
          has_checksum};
}

RC_GTEST_PROP(FrameStream, PartsOfAnySizeGiveTheSameFramesAndBytes, ()) {
  const auto piece = *rc::gen::inRange<std::uint64_t>(1, 60);
  const auto pieces = *rc::gen::inRange<std::uint64_t>(1, 60);
  const auto other = *rc::gen::elementOf(std::vector<std::uint64_t>{1, piece, pieces * piece});
  const bool has_checksum = *rc::gen::arbitrary<bool>();
  Area from(pieces, piece), to(pieces * piece / other, other);
  base::Rng rng(piece * 64 + pieces);
  for (auto& byte : from.bytes) byte = static_cast<std::byte>(rng.next());
  Stream stream;
  stream.events.to = {to.memory, 0, has_checksum, false};
  const Frame frame{FrameType::kMessage, BodyWriter().text("some words").take()};
  stream.writer.add(frame);
  stream.writer.add(payload_of(from, has_checksum));
  stream.writer.add(frame);
  RC_ASSERT(stream.move(*rc::gen::inRange<std::size_t>(1, 300)).ok());
  RC_ASSERT(stream.writer.bytes() == 0u);
  RC_ASSERT(stream.events.frames.size() == 2u);
  RC_ASSERT(stream.events.frames[1].body == frame.body);
  RC_ASSERT(stream.events.sent == 1);
  RC_ASSERT(stream.events.ends.size() == 1u);
  RC_ASSERT(stream.events.ends[0].second == PayloadEnd::kWritten);
  RC_ASSERT(to.content() == from.content());
}

TEST(FrameStream, APayloadIsVoidIfTheSenderTakesItsMemoryBackInTheMiddle) {
  Area from(10, 100), to(1, 1000);
  Stream stream;
  stream.events.to = {to.memory, 0, true, false};
  stream.writer.add(payload_of(from, true));
  std::vector<std::byte> part(400);
  ASSERT_EQ(stream.writer.fill(part), 400u);
  ASSERT_TRUE(stream.reader.take(part).ok());
  from.memory->close();
  std::fill(from.bytes.begin(), from.bytes.end(), std::byte{9});
  ASSERT_TRUE(stream.move(50).ok());
  ASSERT_EQ(stream.events.ends.size(), 1u);
  EXPECT_EQ(stream.events.ends[0].second, PayloadEnd::kVoid);
  for (const std::byte byte : to.content()) EXPECT_EQ(byte, std::byte{0});
}

TEST(FrameStream, NothingIsWrittenAfterTheReceiverHasClosedItsMemory) {
  Area from(1, 1000), to(10, 100);
  std::fill(from.bytes.begin(), from.bytes.end(), std::byte{5});
  Stream stream;
  stream.events.to = {to.memory, 0, false, false};
  stream.writer.add(payload_of(from, false));
  std::vector<std::byte> part(400);
  stream.writer.fill(part);
  ASSERT_TRUE(stream.reader.take(part).ok());
  to.memory->close();
  const auto before = to.content();
  EXPECT_NE(before[0], std::byte{0});
  ASSERT_TRUE(stream.move(64).ok());
  EXPECT_EQ(stream.events.ends[0].second, PayloadEnd::kVoid);
  EXPECT_EQ(to.content(), before);
}

TEST(FrameStream, AChangedByteIsSeenByTheChecksum) {
  Area from(10, 100), to(10, 100);
  Stream stream;
  stream.events.to = {to.memory, 0, true, true};
  stream.writer.add(payload_of(from, true));
  ASSERT_TRUE(stream.move(64).ok());
  EXPECT_EQ(stream.events.ends[0].second, PayloadEnd::kCorrupt);
}

TEST(FrameStream, OtherBytesAreRejectedAndNothingComesAfterThem) {
  Stream stream;
  std::vector<std::byte> noise(100, std::byte{0x47});
  EXPECT_FALSE(stream.reader.take(noise).ok());
  const Frame frame{FrameType::kMessage, BodyWriter().word(1).take()};
  std::vector<std::byte> bytes = encode(frame, 0);
  bytes.back() ^= std::byte{1};
  Stream other;
  const Status status = other.reader.take(bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kCorrupt);
  EXPECT_TRUE(other.events.frames.empty());
}

TEST(FrameStream, AtItsEndAPayloadThatHasBegunIsVoidOnBothSides) {
  Area from(10, 100), to(10, 100);
  Stream stream;
  stream.events.to = {to.memory, 0, false, false};
  const Frame frame{FrameType::kMessage, {}};
  stream.writer.add(frame);
  stream.writer.add(payload_of(from, false));
  stream.writer.add(frame);
  std::vector<std::byte> part(200);
  stream.writer.fill(part);
  ASSERT_TRUE(stream.reader.take(part).ok());
  stream.writer.end();
  stream.reader.end();
  EXPECT_EQ(stream.events.sent, 1);
  EXPECT_EQ(stream.events.ends[0].second, PayloadEnd::kVoid);
  EXPECT_EQ(stream.writer.bytes(), 0u);
}

TEST(FrameStream, FramesBeforeTheFirstPayloadAreKeptAtTheEnd) {
  Area from(10, 100);
  Stream stream;
  stream.writer.add(Frame{FrameType::kMessage, BodyWriter().word(3).take()});
  stream.writer.add(payload_of(from, false));
  stream.writer.end();
  ASSERT_TRUE(stream.move(1000).ok());
  ASSERT_EQ(stream.events.frames.size(), 1u);
  EXPECT_TRUE(stream.events.ends.empty());
}

}  // namespace
}  // namespace cachalot::transfer
