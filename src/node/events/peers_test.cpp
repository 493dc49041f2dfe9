// The limits of all subscribers of a socket together, over each transport.

#include "node/events/peers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>

#include "node/events/test_wire.h"
#include "os/file_descriptor.h"

namespace cachalot::events {
namespace {

constexpr std::size_t kPayloadBytes = 64u << 10;
constexpr std::size_t kMostUnread = 4u << 20;
constexpr auto kTwoLooks = std::chrono::milliseconds(600);  // of Peers, with time to spare
using Clock = std::chrono::steady_clock;

class PeersTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    file_ = "/dev/shm/cachalot_peers." + std::to_string(getpid());
    const std::string live = kind == "ipc" ? "ipc://" + file_ : "tcp://127.0.0.1:*";
    Result<Sockets> sockets = Sockets::open({live, ""}, {.peers = 3, .unread_bytes = kMostUnread});
    ASSERT_TRUE(sockets) << sockets.error().message;
    sockets_ = *std::move(sockets);
  }
  void TearDown() override {
    sockets_.reset();
    unlink(file_.c_str());
  }

  void publish() {
    auto message =
        std::make_shared<const Message>(Message{"kv@", next_++, std::string(kPayloadBytes, 'x')});
    unread_.push_back(message);
    sockets_->publish(message);
  }
  // Messages that the socket still has.
  std::size_t unread() {
    std::erase_if(unread_, [](const auto& message) { return message.expired(); });
    return unread_.size();
  }
  // Waits until its subscription has come.
  std::unique_ptr<Wire> subscribe(bool has_room) {
    auto wire = std::make_unique<Wire>(sockets_->endpoints(), has_room);
    while (!wire->has_live()) {
      publish();
      rest();
    }
    return wire;
  }
  void rest() {
    sockets_->tend();
    static_cast<void>(sockets_->wait(1));
  }
  void rest_for(std::chrono::milliseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) rest();
  }
  // Until the message with this number, which must come.
  void read_until(Wire& wire, std::uint64_t number) {
    while (wire.receive_live().sequence != number) ASSERT_FALSE(HasFailure());
  }

  std::string file_;
  std::optional<Sockets> sockets_;
  std::uint64_t next_ = 0;
  std::deque<std::weak_ptr<const Message>> unread_;
};

TEST_P(PeersTest, WhatMuteSubscribersDoNotReadIsBounded) {
  const auto mute = subscribe(false), other = subscribe(false), healthy = subscribe(true);
  std::uint64_t heard = 0;
  std::size_t most = 0;
  bool was_freed = false;
  for (int i = 0; i < 3000 && !was_freed; ++i) {
    publish();
    rest();
    while (healthy->has_live()) heard = healthy->receive_live().sequence;
    most = std::max(most, unread());
    was_freed = most * kPayloadBytes > kMostUnread && unread() < most / 2;
  }
  EXPECT_TRUE(was_freed) << unread() << " messages are unread";
  // The healthy one hears on. It may have had to connect again: on a busy machine it can seem to take nothing, too.
  for (const std::uint64_t from = next_; heard < from;) {
    publish();
    rest();
    while (healthy->has_live()) heard = healthy->receive_live().sequence;
    ASSERT_LT(next_, from + 5000);
  }
}

TEST_P(PeersTest, OneConnectionTooManyIsRefused) {
  std::vector<std::unique_ptr<Wire>> heard;
  for (int i = 0; i < 3; ++i) heard.push_back(subscribe(true));
  // None of them is behind: one that is would make room for the newcomer.
  for (const auto& wire : heard) read_until(*wire, next_ - 1);
  rest_for(kTwoLooks);
  Wire refused(sockets_->endpoints());
  rest_for(kTwoLooks);
  // The others have lost nothing.
  publish();
  for (const auto& wire : heard) read_until(*wire, next_ - 1);
  EXPECT_FALSE(refused.has_live());
  heard.pop_back();
  while (!refused.has_live()) {  // it tries again
    publish();
    rest();
  }
}

// A connection of ZeroMQ's protocol 3.0, written byte by byte.
os::FileDescriptor connect_as(const std::string& type, const std::string& endpoint) {
  os::FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  std::string greeting(64, '\0');
  greeting.replace(0, 1, "\xff").replace(9, 2, "\x7f\x03").replace(12, 4, "NULL");
  const std::string ready = std::string("\x05READY\x0bSocket-Type") + std::string(3, '\0') +
                            static_cast<char>(type.size()) + type;
  const std::string all = greeting + '\x04' + static_cast<char>(ready.size()) + ready;
  EXPECT_EQ(send(fd.get(), all.data(), all.size(), MSG_NOSIGNAL), static_cast<ssize_t>(all.size()));
  // Its greeting and the head of its first command: what came before that would end the connection.
  std::string answer(66, '\0');
  EXPECT_EQ(recv(fd.get(), answer.data(), answer.size(), MSG_WAITALL),
            static_cast<ssize_t>(answer.size()));
  return fd;
}

// ZeroMQ would keep all frames of a message that does not end.
TEST(EventPeers, OneThatSendsWithoutAnEndIsDisconnected) {
  constexpr std::size_t kMost = 64u << 20;
  Result<Sockets> sockets = Sockets::open({"tcp://127.0.0.1:*", "tcp://127.0.0.1:*"});
  ASSERT_TRUE(sockets) << sockets.error().message;
  const Endpoints& endpoints = sockets->endpoints();
  std::string frames;
  for (int i = 0; i < 1000; ++i) frames += "\x01\xff" + std::string(255, 'x');  // more follow
  for (const auto& [type, endpoint] :
       {std::pair("SUB", endpoints.live), std::pair("DEALER", endpoints.replay)}) {
    const os::FileDescriptor fd = connect_as(type, endpoint);
    std::size_t sent = 0;
    bool is_ended = false;
    while (!is_ended && sent < kMost) {
      const std::size_t at = sent % frames.size();
      const ssize_t some =
          send(fd.get(), frames.data() + at, frames.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (some > 0) sent += static_cast<std::size_t>(some);
      is_ended = some < 0 && errno != EAGAIN;
      sockets->tend();
      if (some < 0) std::this_thread::yield();
    }
    EXPECT_TRUE(is_ended) << type << ": " << sent << " bytes were taken";
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, PeersTest, testing::Values("tcp", "ipc"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace cachalot::events
