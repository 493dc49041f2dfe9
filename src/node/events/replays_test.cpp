// Answers over real sockets, to subscribers that read, read later, do not read, or go: in one thread.

#include "node/events/replays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/log.h"
#include "node/events/test_subscriber.h"
#include "node/events/test_wire.h"
#include "testing/pool/test_pool.h"

namespace cachalot::events {
namespace {

constexpr int kPuts = 500;  // some megabytes of batches: more than any socket takes
constexpr std::size_t kChain = 200;

class ReplaysTest : public testing::Test {
 protected:
  ReplaysTest() {
    pool_.start_keeper().observe(changes_);
    Result<Sockets> sockets = Sockets::open({"tcp://127.0.0.1:*", "tcp://127.0.0.1:*"});
    EXPECT_TRUE(sockets) << (sockets ? "" : sockets.error().message);
    sockets_ = *std::move(sockets);
    client_ = pool_.attach(0);
    for (std::uint64_t i = 0; i < kPuts; ++i) put(i);
  }
  ~ReplaysTest() override {
    client_.reset();
    pool_.keeper().end_observing(changes_);
  }

  // A batch.
  void put(std::uint64_t chain, std::size_t blocks = kChain) {
    pool_.put(*client_, 1000 * chain, blocks);
    feed_.advance([this](const SharedMessage& message) { sockets_->publish(message); });
  }
  // Until all that it has asked for was answered.
  void serve(Wire& wire, TestSubscriber& held, int answers = 1) {
    while (answers > 0) {
      static_cast<void>(replays_.advance(*sockets_));
      sockets_->tend();
      while (answers > 0 && wire.has_replay()) {
        const Message message = wire.receive_replay();
        if (message.sequence == kEnd) {
          --answers;
        } else {
          held.apply(message);
        }
      }
    }
  }
  // Until ZeroMQ has brought the request.
  void ask(Wire& wire, std::uint64_t first) {
    wire.ask(first);
    while (replays_.is_idle()) static_cast<void>(replays_.advance(*sockets_));
  }

  pool::TestPool pool_{pool::small_geometry(256)};
  node::ChangeQueue changes_{pool_.domain(), 1u << 12};
  Feed feed_{
      pool_.access(), changes_, {.pool_name = "kv", .kept_batches = 1000, .unix_s = nullptr}};
  Replays replays_{feed_};
  std::optional<Sockets> sockets_;
  std::unique_ptr<pool::Client> client_;
};

TEST_F(ReplaysTest, SubscribersThatDoNotReadDelayNoOther) {
  const std::uint64_t all = std::uint64_t{1} << 32;  // the first number of the feed
  std::vector<std::unique_ptr<Wire>> slow;
  for (int i = 0; i < 12; ++i) {
    slow.push_back(std::make_unique<Wire>(sockets_->endpoints(), false));
    slow.back()->ask(all);
  }
  Wire healthy(sockets_->endpoints());
  healthy.ask(all);
  TestSubscriber held;
  serve(healthy, held);
  EXPECT_EQ(*held.last() + 1, feed_.next_sequence());
  EXPECT_FALSE(replays_.is_idle()) << "the sockets took all: nothing was slow";
  // A slow one loses nothing, and its answer has its end.
  TestSubscriber late;
  serve(*slow[3], late);
  EXPECT_EQ(late.blocks(), held.blocks());
  EXPECT_EQ(*late.last() + 1, feed_.next_sequence());
}

TEST_F(ReplaysTest, AnAnswerThatIsReadLateIsRightAllTheSame) {
  Wire slow(sockets_->endpoints(), false), healthy(sockets_->endpoints());
  ask(slow, std::uint64_t{1} << 32);
  // What it was asked for is kept no more when it is read.
  for (std::uint64_t i = 0; i < 1500; ++i) put(kPuts + i, 1);
  TestSubscriber late, held;
  serve(slow, late);
  slow.ask(*late.last() + 1);
  serve(slow, late);
  healthy.ask(0);
  serve(healthy, held);
  EXPECT_GT(late.clears(), 1) << "the answer did not begin anew";
  EXPECT_EQ(late.blocks(), held.blocks());
}

TEST_F(ReplaysTest, EachRequestOfASubscriberHasItsAnswer) {
  Wire wire(sockets_->endpoints());
  for (const std::uint64_t first : {std::uint64_t{0}, feed_.next_sequence(), std::uint64_t{0}})
    wire.ask(first);
  TestSubscriber held;
  serve(wire, held, 3);
  EXPECT_EQ(held.clears(), 2);
}

TEST_F(ReplaysTest, OfManyRequestsOfASubscriberAFewWait) {
  auto wire = std::make_unique<Wire>(sockets_->endpoints(), false);
  for (int i = 0; i < 1000; ++i) wire->ask(std::uint64_t{1} << 32);
  Wire healthy(sockets_->endpoints());
  healthy.ask(0);
  TestSubscriber held;
  serve(healthy, held);
  wire.reset();
  while (!replays_.is_idle()) static_cast<void>(replays_.advance(*sockets_));
}

TEST_F(ReplaysTest, AFloodOfBadRequestsIsALineAMinute) {
  testing::internal::CaptureStderr();
  base::set_log_level(base::LogLevel::kWarn);
  Wire bad(sockets_->endpoints(), false);
  for (int i = 0; i < 200; ++i) bad.send_to_replay({"", "short"});
  for (int i = 0; i < 200; ++i) bad.ask(std::uint64_t{1} << 32);
  // Until no request has come for half a second.
  while (sockets_->wait(500)) static_cast<void>(replays_.advance(*sockets_));
  base::set_log_level(base::LogLevel::kOff);
  const std::string log = testing::internal::GetCapturedStderr();
  // One of each kind.
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
  EXPECT_NE(log.find("not a number of 8 bytes; said once a minute"), std::string::npos) << log;
  EXPECT_NE(log.find("8 of its subscriber wait; said once a minute"), std::string::npos) << log;
}

TEST_F(ReplaysTest, ASubscriberThatHasGoneIsForgotten) {
  auto wire = std::make_unique<Wire>(sockets_->endpoints(), false);
  ask(*wire, std::uint64_t{1} << 32);
  wire.reset();
  while (!replays_.is_idle()) static_cast<void>(replays_.advance(*sockets_));
}

}  // namespace
}  // namespace cachalot::events
