// The publisher against real ZeroMQ subscribers: its thread, its sockets, its replays.

#include "node/events/publisher.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>

#include "node/events/test_subscriber.h"
#include "node/events/test_wire.h"
#include "testing/pool/test_pool.h"

namespace cachalot::events {
namespace {

using pool::hash_of;

// A subscriber that asks for what it has not heard.
class Follower {
 public:
  explicit Follower(const Endpoints& endpoints) : wire_(endpoints) {}

  void catch_up() {
    wire_.ask(held_.last() ? *held_.last() + 1 : 0);
    for (Message message; (message = wire_.receive_replay()).sequence != kEnd;) {
      held_.apply(message);
    }
  }
  // Until it has heard batch `last`.
  void hear_up_to(std::uint64_t last) {
    while (!held_.last() || *held_.last() < last) {
      const Message message = wire_.receive_live();
      if (::testing::Test::HasFailure()) return;
      if (held_.last() && message.sequence <= *held_.last()) continue;
      if (!held_.last() || message.sequence != *held_.last() + 1) {
        catch_up();
      } else {
        held_.apply(message);
      }
    }
  }
  TestSubscriber& held() { return held_; }
  Wire& wire() { return wire_; }

 private:
  Wire wire_;
  TestSubscriber held_;
};

class PublisherTest : public testing::Test {
 protected:
  void start(Endpoints wanted = {"tcp://127.0.0.1:*", "tcp://127.0.0.1:*"}) {
    pool_.start_keeper();
    Result<Sockets> sockets = Sockets::open(wanted);
    ASSERT_TRUE(sockets) << sockets.error().message;
    endpoints_ = sockets->endpoints();
    publisher_ = std::make_unique<Publisher>(pool_.keeper(), pool_.access(), wanted,
                                             *std::move(sockets), options());
    client_ = pool_.attach(0);
  }
  FeedOptions options() {
    FeedOptions options;
    options.pool_name = "kv";
    options.epoch = pool_.keeper().epoch();
    return options;
  }
  std::size_t live() {
    return static_cast<std::size_t>(pool_.keeper().counters()[pool::KeeperCounter::kLive]);
  }
  // The publisher may be behind the keeper.
  bool holds_all(const TestSubscriber& subscriber) {
    const auto is_published = [&](const auto& held) {
      return pool_.keeper().is_published(*block_hash::parse_block_hash(held.first),
                                         client_->namespace_id());
    };
    return subscriber.blocks().size() == live() &&
           std::all_of(subscriber.blocks().begin(), subscriber.blocks().end(), is_published);
  }
  void TearDown() override { publisher_.reset(); }

  pool::TestPool pool_{pool::small_geometry(32)};
  Endpoints endpoints_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<pool::Client> client_;
};

TEST_F(PublisherTest, ASubscriberThatAsksOnceAndThenListensHoldsThePoolsBlocks) {
  start();
  base::Rng rng(5);
  Follower follower(endpoints_);
  follower.catch_up();
  for (int i = 0; i < 1000; ++i) {
    pool_.put(*client_, rng.below(100), 1 + rng.below(6));
    if (rng.below(5) == 0) static_cast<void>(client_->requests().evict(hash_of(rng.below(100))));
  }
  // All that was published can be asked for.
  while (!holds_all(follower.held())) follower.catch_up();
  Follower late(endpoints_);
  while (!holds_all(late.held())) late.catch_up();
  EXPECT_EQ(late.held().blocks(), follower.held().blocks());
}

TEST_F(PublisherTest, TheLiveStreamGoesOnWhereTheSnapshotEnds) {
  start();
  pool_.put(*client_, 1, 5);
  Follower follower(endpoints_);
  while (follower.held().blocks().size() != 5) follower.catch_up();
  pool_.put(*client_, 50, 4);
  follower.hear_up_to(*follower.held().last() + 1);
  EXPECT_EQ(follower.held().blocks().size(), 9u);
  static_cast<void>(client_->requests().evict_everything());
  follower.hear_up_to(*follower.held().last() + 1);
  EXPECT_TRUE(follower.held().blocks().empty());
}

TEST_F(PublisherTest, WhatIsNoReplayRequestIsPassedOver) {
  start();
  Follower follower(endpoints_);
  follower.wire().send_to_replay({"", "short"});
  follower.wire().send_to_replay({"no delimiter", "01234567"});
  follower.wire().send_to_replay({"01234567"});
  follower.wire().send_to_replay({"", "01234567", "more"});
  follower.catch_up();
  EXPECT_EQ(follower.held().clears(), 1);
}

TEST_F(PublisherTest, ItWaitsForAnAddressThatAnotherProcessHas) {
  Result<Sockets> other = Sockets::open({"tcp://127.0.0.1:*", ""});
  ASSERT_TRUE(other);
  const std::string file = "/dev/shm/cachalot_events." + std::to_string(getpid());
  const Endpoints wanted{other->endpoints().live, "ipc://" + file};
  EXPECT_EQ(Sockets::open(wanted).error().code, Code::kBusy);
  pool_.start_keeper();
  publisher_ =
      std::make_unique<Publisher>(pool_.keeper(), pool_.access(), wanted, std::nullopt, options());
  client_ = pool_.attach(0);
  pool_.put(*client_, 1, 3);
  other = Error::make(Code::kBusy, "closed");
  Follower follower(wanted);
  while (follower.held().blocks().size() != 3) follower.catch_up();
  publisher_.reset();
  unlink(file.c_str());
}

TEST_F(PublisherTest, ASubscriberMayBeTheOneThatIsBound) {
  void* const context = zmq_ctx_new();
  void* const socket = zmq_socket(context, ZMQ_SUB);
  const int wait_ms = 20'000;
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
  zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
  ASSERT_EQ(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
  char bound[256];
  std::size_t size = sizeof bound;
  ASSERT_EQ(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size), 0);
  start({std::string("connect:") + bound, ""});
  // The connection may come after the first batches: later ones arrive.
  char topic[8];
  const int short_ms = 100;
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &short_ms, sizeof short_ms);
  int got = -1;
  for (std::uint64_t name = 0; got < 0 && name < 200; ++name) {
    pool_.put(*client_, name, 1);
    got = zmq_recv(socket, topic, sizeof topic, 0);
  }
  EXPECT_GT(got, 0);
  zmq_close(socket);
  zmq_ctx_term(context);
}

TEST(EndpointsTest, APathWhereAProcessListensIsBusyAndStaysItsOwn) {
  const std::string file = "/dev/shm/cachalot_endpoints." + std::to_string(getpid());
  {
    const Result<Sockets> first = Sockets::open({"ipc://" + file, "tcp://127.0.0.1:*"});
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_EQ(first->endpoints().live, "ipc://" + file);
    EXPECT_EQ(Sockets::open({"ipc://" + file, ""}).error().code, Code::kBusy);
    EXPECT_EQ(Sockets::open({"tcp://127.0.0.1:*", "ipc://" + file}).error().code, Code::kBusy);
    EXPECT_EQ(access(file.c_str(), F_OK), 0);
  }
  EXPECT_NE(access(file.c_str(), F_OK), 0);
}

TEST(EndpointsTest, BadOnesAreRefusedByFlagAndValue) {
  const auto refusal = [](const Endpoints& endpoints) {
    const Result<Sockets> opened = Sockets::open(endpoints);
    if (opened) return std::string("none");
    EXPECT_EQ(opened.error().code, Code::kInvalidArgument) << opened.error().message;
    return std::string(opened.error().message);
  };
  for (const char* const bad :
       {"", "5557", "tcp:/x:1", "udp://*:1", "tcp://", "tcp://:5", "tcp://host", "tcp://*:99999",
        "tcp://*:port", "ipc://", "connect:", "connect:host:1", "inproc://x",
        "tcp://no-such-interface-here:5557"}) {
    const std::string text = refusal({bad, ""});
    EXPECT_NE(text.find("--kv-events: "), std::string::npos) << bad << ": " << text;
  }
  EXPECT_NE(refusal({"tcp://127.0.0.1:*", "connect:tcp://127.0.0.1:5"}).find("--kv-events-replay"),
            std::string::npos);
}

}  // namespace
}  // namespace cachalot::events
