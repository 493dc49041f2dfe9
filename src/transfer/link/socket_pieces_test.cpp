// Two links over a TCP connection, and payloads whose pieces are small or large on either side.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transfer/link/socket_transport.h"

namespace cachalot::transfer {
namespace {

// More than the kernel keeps for a connection, so that the sender finds it full in the middle of a call.
constexpr std::uint64_t kBytes = 24u << 20;

// Pieces with a gap after each, and one byte before the first.
struct Area {
  explicit Area(std::uint64_t piece_bytes)
      : piece(piece_bytes), bytes(kBytes / piece * (piece + kGap) + 1) {
    memory = std::make_shared<PayloadMemory>(*Strided::make(
        reinterpret_cast<std::uintptr_t>(&bytes[1]), {{kBytes / piece, piece + kGap}}, piece));
  }
  std::byte& at(std::uint64_t i) { return bytes[1 + i / piece * (piece + kGap) + i % piece]; }

  static constexpr std::uint64_t kGap = 3;
  std::uint64_t piece;
  std::vector<std::byte> bytes;
  std::shared_ptr<PayloadMemory> memory;
};

struct Side : LinkEvents {
  explicit Side(std::uint64_t piece, bool is_checked) : area(piece), has_checksum(is_checked) {
    transport = *SocketTransport::open();
    transport->start(*this, [this](Link& accepted) { link = &accepted; });
  }
  void on_frame(Link&, Frame) override {}
  IncomingPayload on_payload(Link&, const Frame&, std::uint64_t) override {
    return {area.memory, 0, has_checksum};
  }
  void on_payload_end(Link&, const Frame&, std::uint64_t, PayloadEnd how) override { end = how; }
  bool next_payload(Link&, OutgoingPayload& payload) override {
    if (!has_payload) return false;
    has_payload = false;
    payload = {{FrameType::kChunk, {}}, area.memory, 0, bytes, has_checksum};
    return true;
  }
  void on_payload_sent(Link&, const OutgoingPayload&) override {}
  void on_closed(Link&, const Error&) override {}
  void progress() {
    while (transport->progress() || !transport->arm()) {
    }
  }

  Area area;
  const bool has_checksum;
  std::unique_ptr<SocketTransport> transport;
  Link* link = nullptr;
  bool has_payload = false;
  std::uint64_t bytes = kBytes / area.piece * area.piece;
  std::optional<PayloadEnd> end;
};

void begin(Side& sender) {
  sender.has_payload = true;
  sender.link->wants_payload();
  sender.progress();  // the kernel is full
}
// Until the end of the payload, in turns; most turns leave bytes in the kernel.
void finish(Side& sender, Side& receiver) {
  const std::uint64_t end_ns = base::SteadyClock::read() + 60'000'000'000;
  while (!receiver.end && base::SteadyClock::read() < end_ns) {
    sender.progress();
    receiver.progress();
  }
}

void connect(Side& sender, Side& receiver) {
  sender.link = *sender.transport->connect(*receiver.transport->listen("tcp:127.0.0.1:0"));
  const std::uint64_t end_ns = base::SteadyClock::read() + 60'000'000'000;
  while (receiver.link == nullptr && base::SteadyClock::read() < end_ns) {
    sender.progress();
    receiver.progress();
  }
  ASSERT_NE(receiver.link, nullptr);
}

// Bytes of a piece of the sender, and of the receiver; whether there is a checksum.
class SocketPieces
    : public ::testing::TestWithParam<std::tuple<std::uint64_t, std::uint64_t, bool>> {};

TEST_P(SocketPieces, ArriveWhereTheyBelongAndNowhereElse) {
  const auto [from, to, has_checksum] = GetParam();
  Side sender(from, has_checksum), receiver(to, has_checksum);
  connect(sender, receiver);
  sender.bytes = std::min(sender.bytes, receiver.bytes);
  base::Rng rng(from * 10'000 + to);
  for (std::uint64_t i = 0; i < sender.bytes; ++i)
    sender.area.at(i) = static_cast<std::byte>(rng.next());
  Area expected(to);
  for (std::uint64_t i = 0; i < sender.bytes; ++i) expected.at(i) = sender.area.at(i);
  begin(sender);
  finish(sender, receiver);
  EXPECT_EQ(receiver.end, PayloadEnd::kWritten);
  EXPECT_TRUE(receiver.area.bytes == expected.bytes);
  EXPECT_EQ(sender.transport->staging_bytes() > 0, from < 512);
  EXPECT_EQ(receiver.transport->staging_bytes() > 0, to < 512);
}

INSTANTIATE_TEST_SUITE_P(Sizes, SocketPieces,
                         ::testing::Combine(::testing::Values(100, 300, 600, 4096),
                                            ::testing::Values(100, 300, 600, 4096),
                                            ::testing::Bool()),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) + "To" +
                                  std::to_string(std::get<1>(each.param)) +
                                  (std::get<2>(each.param) ? "WithAChecksum" : "");
                         });

TEST(SocketPiecesThatAreTakenBack, AreZerosAndVoidAtTheReceiver) {
  Side sender(100, true), receiver(100, true);
  connect(sender, receiver);
  for (std::uint64_t i = 0; i < sender.bytes; ++i) sender.area.at(i) = std::byte{7};
  begin(sender);  // packed pieces wait
  sender.area.memory->close();
  for (std::uint64_t i = 0; i < sender.bytes; ++i) sender.area.at(i) = std::byte{9};
  finish(sender, receiver);
  EXPECT_EQ(receiver.end, PayloadEnd::kVoid);
  std::uint64_t first_zero = 0;
  while (first_zero < sender.bytes && receiver.area.at(first_zero) == std::byte{7}) ++first_zero;
  EXPECT_LT(first_zero, sender.bytes);
  for (std::uint64_t i = first_zero; i < sender.bytes; ++i)
    ASSERT_EQ(receiver.area.at(i), std::byte{0}) << i;
}

TEST(SocketPiecesThatAreTakenBack, ByTheReceiverAreNotWritten) {
  Side sender(100, true), receiver(100, true);
  connect(sender, receiver);
  for (std::uint64_t i = 0; i < sender.bytes; ++i) sender.area.at(i) = std::byte{7};
  begin(sender);
  receiver.progress();
  receiver.area.memory->close();
  const std::vector<std::byte> before = receiver.area.bytes;
  ASSERT_EQ(receiver.area.at(0), std::byte{7});
  finish(sender, receiver);
  EXPECT_EQ(receiver.end, PayloadEnd::kVoid);
  EXPECT_TRUE(receiver.area.bytes == before);
}

}  // namespace
}  // namespace cachalot::transfer
