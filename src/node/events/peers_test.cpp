// The limits of all subscribers of a socket together, over each transport.

#include "node/events/peers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <deque>

#include "node/events/test_wire.h"

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

INSTANTIATE_TEST_SUITE_P(Transports, PeersTest, testing::Values("tcp", "ipc"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace cachalot::events
