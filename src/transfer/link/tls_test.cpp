// What is said of a handshake that has not come to its end. Whole connections: transfer/engine/encrypted_test.cpp.
#include "transfer/link/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "os/file_descriptor.h"

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

}  // namespace
}  // namespace cachalot::transfer
