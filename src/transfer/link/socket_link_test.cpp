#include <gtest/gtest.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transfer/link/socket_address.h"
#include "transfer/link/socket_transport.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kPayloadBytes = 1u << 20;

struct Events : LinkEvents {
  void on_frame(Link&, Frame) override { ++frames; }
  IncomingPayload on_payload(Link&, const Frame&, std::uint64_t) override { return {memory, 0}; }
  void on_payload_end(Link&, const Frame&, std::uint64_t, PayloadEnd how) override { end = how; }
  bool next_payload(Link&, OutgoingPayload& payload) override {
    if (payloads == 0) return false;
    --payloads;
    payload = {{FrameType::kChunk, {}}, memory, 0, kPayloadBytes};
    return true;
  }
  void on_payload_sent(Link&, const OutgoingPayload&) override { ++payloads_sent; }
  void on_closed(Link&, const Error&) override { is_closed = true; }

  std::vector<std::byte> target = std::vector<std::byte>(kPayloadBytes);
  std::shared_ptr<PayloadMemory> memory =
      std::make_shared<PayloadMemory>(Strided::flat(target.data(), target.size()));
  int frames = 0, payloads = 0, payloads_sent = 0;
  std::optional<PayloadEnd> end;
  bool is_closed = false;
};

// A link, and a socket that sends what a test says.
class SocketLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    transport_ = *SocketTransport::open();
    transport_->start(events_, [this](Link& link) { link_ = &link; });
    const SocketAddress address = *SocketAddress::parse(*transport_->listen("tcp:127.0.0.1:0"));
    peer_ = os::FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(peer_.get(), address.get(), address.bytes), 0);
    const int on = 1;
    setsockopt(peer_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    progress_until_idle();
    ASSERT_NE(link_, nullptr);
  }
  void send_bytes(const std::vector<std::byte>& bytes) {
    ASSERT_EQ(send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send_chunk_head() { send_bytes(encode({FrameType::kChunk, {}}, kPayloadBytes)); }
  void progress_until_idle() {
    while (transport_->progress() || !transport_->arm()) {
    }
  }
  // Waits for it.
  bool has_received(std::uint64_t bytes) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (link_->received_bytes() < bytes && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    return link_->received_bytes() == bytes;
  }
  bool is_woken(int timeout_ms = 0) const {
    pollfd fd{transport_->fd(), POLLIN, 0};
    return poll(&fd, 1, timeout_ms) > 0;
  }

  Events events_;
  std::unique_ptr<SocketTransport> transport_;
  Link* link_ = nullptr;
  os::FileDescriptor peer_;
};

TEST_F(SocketLinkTest, SmallPartsOfAPayloadDoNotWakeTheReceiverButCountAsHeard) {
  send_chunk_head();
  progress_until_idle();
  const std::uint64_t before = link_->received_bytes();
  for (std::uint64_t sent = 0; sent < 64; ++sent) {
    send_bytes(std::vector<std::byte>(1024, std::byte{7}));
    ASSERT_TRUE(has_received(before + (sent + 1) * 1024));
    EXPECT_FALSE(is_woken());
  }
  EXPECT_EQ(events_.target[0], std::byte{0});
}

TEST_F(SocketLinkTest, TheLastByteOfAPayloadWakesTheReceiver) {
  send_chunk_head();
  progress_until_idle();
  send_bytes(std::vector<std::byte>(kPayloadBytes - 1, std::byte{7}));
  ASSERT_TRUE(is_woken(10'000));
  progress_until_idle();
  const FrameTrailer trailer = make_trailer(PayloadState::kValid, 0);
  std::vector<std::byte> rest(1 + sizeof trailer, std::byte{7});
  std::memcpy(&rest[1], &trailer, sizeof trailer);
  const std::byte last = rest.back();
  rest.pop_back();
  send_bytes(rest);
  EXPECT_FALSE(events_.end.has_value());
  send_bytes({last});
  ASSERT_TRUE(is_woken(10'000));
  progress_until_idle();
  EXPECT_EQ(events_.end, PayloadEnd::kWritten);
  EXPECT_EQ(events_.target, std::vector<std::byte>(kPayloadBytes, std::byte{7}));
  // A frame after it is not held back.
  send_bytes(encode({FrameType::kPing, {}}, 0));
  ASSERT_TRUE(is_woken(10'000));
  progress_until_idle();
  EXPECT_EQ(events_.frames, 1);
}

TEST_F(SocketLinkTest, TheEndOfTheConnectionInMidPayloadWakesTheReceiver) {
  send_chunk_head();
  send_bytes(std::vector<std::byte>(100));
  progress_until_idle();
  peer_.close();
  ASSERT_TRUE(is_woken(10'000));
  progress_until_idle();
  EXPECT_EQ(events_.end, PayloadEnd::kVoid);
  EXPECT_TRUE(events_.is_closed);
}

// What the peer reads: a letter a frame, p for a payload. Its bytes look like no frame.
std::string order_of(const std::vector<std::byte>& bytes) {
  std::string order;
  for (std::size_t at = 0; at + sizeof(FrameHeader) <= bytes.size();) {
    FrameHeader header;
    std::memcpy(&header, &bytes[at], sizeof header);
    if (!check_header(header)) return order + " no frame at " + std::to_string(at);
    order += header.type == static_cast<std::uint32_t>(FrameType::kChunk) ? 'p' : 'f';
    at += sizeof header + header.body_bytes + header.payload_bytes;
    if (header.payload_bytes != 0) at += sizeof(FrameTrailer);
  }
  return order;
}

TEST_F(SocketLinkTest, FramesNeverGoIntoAPayloadHoweverManyWait) {
  for (const std::size_t frames : {100, 127, 128, 129, 255, 256, 1000}) {
    events_.target.assign(kPayloadBytes, std::byte{0x77});
    events_.payloads = 2;
    events_.payloads_sent = 0;
    std::vector<std::byte> got;
    link_->wants_payload();
    for (std::size_t i = 0; i < frames; ++i) link_->send({FrameType::kPing, {}});
    const std::size_t expected =
        frames * sizeof(FrameHeader) + 2 * (encode({FrameType::kChunk, {}}, kPayloadBytes).size() +
                                            kPayloadBytes + sizeof(FrameTrailer));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (got.size() < expected && std::chrono::steady_clock::now() < end) {
      progress_until_idle();
      std::vector<std::byte> some(64 << 10);
      const ssize_t count = recv(peer_.get(), some.data(), some.size(), MSG_DONTWAIT);
      if (count > 0) got.insert(got.end(), some.begin(), some.begin() + count);
    }
    progress_until_idle();
    ASSERT_EQ(got.size(), expected);
    EXPECT_EQ(order_of(got), std::string(frames, 'f') + "pp") << frames;
    EXPECT_EQ(events_.payloads_sent, 2);
  }
}

std::string congestion_control(int fd) {
  std::array<char, 16> name{};
  socklen_t bytes = name.size();
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes), 0);
  return name.data();
}

TEST_F(SocketLinkTest, BbrIsNotUsedWithinAMachineAndOtherAlgorithmsStay) {
  EXPECT_NE(congestion_control(static_cast<SocketLink*>(link_)->fd()), "bbr");
  const int fd = peer_.get();
  for (const std::string name : {"reno", "cubic", "bbr"}) {
    // Not each system has each.
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                   static_cast<socklen_t>(name.size())) != 0)
      continue;
    stop_pacing_within_machine(fd);
    EXPECT_EQ(congestion_control(fd), name == "bbr" ? "reno" : name);
  }
}

// It was cut, or called no address.
TEST(SocketAddresses, AUnixNameThatIsTooLongIsOneClearError) {
  for (const char* kind : {"/", "@"}) {
    EXPECT_TRUE(SocketAddress::parse("unix:" + (kind + std::string(106, 'x'))).ok());
    const Result<SocketAddress> cut =
        SocketAddress::parse("unix:" + (kind + std::string(107, 'x')));
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(cut.error().message).find("a name of 108 bytes; expected at most 107"),
              std::string::npos)
        << cut.error().message;
  }
}

TEST(ListeningTest, AFileIsNoSocketAndStaysWhereItIs) {
  const std::string path = "/dev/shm/cachalot_listening." + std::to_string(getpid());
  std::ofstream(path) << "precious";
  const std::unique_ptr<SocketTransport> transport = *SocketTransport::open();
  const Result<std::string> refused = transport->listen("unix:" + path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::strstr(refused.error().message, "is a file"), nullptr) << refused.error().message;
  EXPECT_EQ(unlink(path.c_str()), 0);
  // Where a process has died, the next one listens; where one lives, it does not.
  sockaddr_un dead{};
  dead.sun_family = AF_UNIX;
  std::memcpy(dead.sun_path, path.data(), path.size());
  {
    const os::FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&dead), sizeof dead), 0);
  }
  const Result<std::string> listening = transport->listen("unix:" + path);
  ASSERT_TRUE(listening) << listening.error().message;
  EXPECT_EQ(*listening, "unix:" + path);
  EXPECT_EQ(transport->listen("unix:" + path).error().code, Code::kBusy);
}

}  // namespace
}  // namespace cachalot::transfer
