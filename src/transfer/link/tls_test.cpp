// What is said of a handshake that has not come to its end. Whole connections: transfer/engine/encrypted_test.cpp.
#include "transfer/link/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "os/file_descriptor.h"
#include "transfer/link/socket_link.h"

namespace cachalot::transfer {
namespace {

class Handshake : public testing::Test {
 protected:
  void SetUp() override {
    os::SecretKey key;
    key.bytes.fill(7);
    context_ = *TlsContext::make(key);
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    caller_fd_ = os::FileDescriptor(fds[0]);
    called_fd_ = os::FileDescriptor(fds[1]);
    caller_ = std::make_unique<TlsStream>(*context_, caller_fd_.get(), false);
    called_ = std::make_unique<TlsStream>(*context_, called_fd_.get(), true);
  }

  static std::string said(const TlsStream& stream, int error) {
    return stream.error("tcp:x:1", error).message;
  }

  std::unique_ptr<TlsContext> context_;
  os::FileDescriptor caller_fd_, called_fd_;
  std::unique_ptr<TlsStream> caller_, called_;
};

// As a caller does whose time is over while the process that it calls is stopped.
TEST_F(Handshake, ACallerThatHasGivenUpIsNoStranger) {
  ASSERT_EQ(caller_->open(), EAGAIN);
  caller_fd_.close();
  int error = called_->open();
  if (error == EAGAIN) error = called_->open();
  const Error told = called_->error("tcp:x:1", error);
  EXPECT_EQ(told.code, Code::kIo) << told.message;
  EXPECT_NE(std::string(told.message).find("ended before it was encrypted"), std::string::npos)
      << told.message;
}

TEST_F(Handshake, AConnectionThatHasTimedOutSaysNothingOfTheKey) {
  for (const TlsStream* stream : {caller_.get(), called_.get()}) {
    const std::string text = said(*stream, ETIMEDOUT);
    EXPECT_EQ(text.find("cluster key"), std::string::npos) << text;
  }
  EXPECT_NE(said(*caller_, ETIMEDOUT).find("timed out"), std::string::npos);
}

// A process without a key does so, and one that ends.
TEST_F(Handshake, APeerThatClosesMayHaveNoKey) {
  ASSERT_EQ(caller_->open(), EAGAIN);
  called_fd_.close();
  const Error told = caller_->error("tcp:x:1", caller_->open());
  EXPECT_EQ(told.code, Code::kPermission);
  EXPECT_NE(std::string(told.message).find("has no cluster key"), std::string::npos)
      << told.message;
}

// One payload, which fits into the stream's buffer.
struct OnePayload : LinkEvents {
  void on_frame(Link&, Frame) override {}
  IncomingPayload on_payload(Link&, const Frame&, std::uint64_t) override { return {}; }
  void on_payload_end(Link&, const Frame&, std::uint64_t, PayloadEnd) override {}
  bool next_payload(Link&, OutgoingPayload& payload) override {
    if (std::exchange(is_given, true)) return false;
    payload = {{FrameType::kChunk, {}}, memory, 0, bytes.size()};
    return true;
  }
  void on_payload_sent(Link&, const OutgoingPayload&) override {}
  void on_closed(Link&, const Error& error) override { ADD_FAILURE() << error.message; }

  bool is_given = false;
  std::vector<std::byte> bytes = std::vector<std::byte>(200 << 10, std::byte{7});
  std::shared_ptr<PayloadMemory> memory =
      std::make_shared<PayloadMemory>(Strided::flat(bytes.data(), bytes.size()));
};

// The link has nothing more to give, and the socket has taken a part of what is encrypted.
TEST_F(Handshake, ALinkSendsItsLastEncryptedBytesAsTheSocketTakesThem) {
  const int bytes = 16 << 10;
  ASSERT_EQ(setsockopt(called_fd_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  called_.reset();
  OnePayload events;
  SocketLink link(std::move(called_fd_), false, false, "tcp:x:1", events, context_.get());
  // As epoll does whenever the other side has written or read.
  const auto progress = [&link] {
    link.ready(true, true);
    for (int left = 1000; link.progress(); --left) ASSERT_GT(left, 0) << "it spins";
  };
  for (int left = 100; caller_->open() != 0; --left) {
    ASSERT_GT(left, 0);
    ASSERT_NO_FATAL_FAILURE(progress());
  }
  const std::size_t expected = sizeof(FrameHeader) + events.bytes.size() + sizeof(FrameTrailer);
  std::vector<std::byte> taken(expected + 1);
  std::size_t count = 0;
  for (int left = 1000; count < expected && left > 0; --left) {
    ASSERT_NO_FATAL_FAILURE(progress());
    const iovec part{&taken[count], taken.size() - count};
    if (const ssize_t some = caller_->read({&part, 1}); some > 0)
      count += static_cast<std::size_t>(some);
  }
  EXPECT_EQ(count, expected);
}

}  // namespace
}  // namespace cachalot::transfer
