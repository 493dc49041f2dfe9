// What a host gives to peers that ask for much, or do not take what they asked for.

#include "node/peers/server.h"

#include "node/peers/peers_test_hosts.h"

namespace cachalot::node {
namespace {

using transfer::PeerId;
using transfer::PushId;

// Remembers what is sent. Pushes end when the test says so.
class FakeLinks final : public PeerLinks {
 public:
  struct Push {
    PeerId to;
    std::uint64_t bytes;
    bool is_released = false;
  };

  void send(PeerId to, const PeerMessage& message) override {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<RefusedGetMessage>(message)) ++refused_[to];
    if (const auto* const got = std::get_if<GotMessage>(&message))
      got_[to].push_back(got->blocks.size());
  }
  Result<PushId> push(PeerId to, std::uint64_t, transfer::ByteStream memory,
                      std::uint64_t) override {
    const std::lock_guard lock(mutex_);
    pushes_.push_back({to, memory.bytes()});
    return PushId{pushes_.size()};
  }
  void release(PushId push) override {
    const std::lock_guard lock(mutex_);
    pushes_[static_cast<std::size_t>(push) - 1].is_released = true;
  }

  std::size_t refused(PeerId peer) {
    const std::lock_guard lock(mutex_);
    return refused_[peer];
  }
  std::vector<std::size_t> got(PeerId peer) {
    const std::lock_guard lock(mutex_);
    return got_[peer];
  }
  std::vector<PushId> pushes_to(PeerId peer) {
    const std::lock_guard lock(mutex_);
    std::vector<PushId> ids;
    for (std::size_t i = 0; i < pushes_.size(); ++i) {
      if (pushes_[i].to == peer) ids.push_back(PushId{i + 1});
    }
    return ids;
  }

 private:
  std::mutex mutex_;
  std::map<PeerId, std::size_t> refused_;
  std::map<PeerId, std::vector<std::size_t>> got_;
  std::vector<Push> pushes_;
};

constexpr PeerId kGreedy{1}, kOther{2};

class PeerServerTest : public PeersTest {
 protected:
  void SetUp() override {
    Host& host = start(0);
    hashes_ = host.chain(1, 40);
    EXPECT_EQ(host.store(hashes_), 40u);
  }
  GetMessage get(std::size_t first, std::size_t blocks, std::uint64_t deadline_ns) const {
    GetMessage message{.request = first,
                       .window = 1,
                       .deadline_ns = deadline_ns,
                       .space = block_hash::make_namespace("a model").digest,
                       .blocks = {}};
    for (std::size_t i = first; i < first + blocks; ++i)
      message.blocks.push_back({hashes_[i], i == 0 ? BlockHash{} : hashes_[i - 1], kBlockBytes});
    return message;
  }

  std::vector<BlockHash> hashes_;
  FakeLinks links_;
};

TEST_P(PeerServerTest, APeerThatTakesNothingHoldsUpNoOther) {
  PeerServer server(hosts_[0]->access(), links_, {.most_flying_bytes = 16 * kBlockBytes});
  for (std::size_t i = 0; i < 8; ++i) server.take(kGreedy, get(i, 2, kSecond / 5));
  // A quarter of the bytes: two requests. The others are refused when they are late.
  EXPECT_TRUE(comes_true([&] { return links_.refused(kGreedy) == 6; }));
  EXPECT_EQ(links_.pushes_to(kGreedy).size(), 2u);
  server.take(kOther, get(0, 3, 5 * kSecond));
  EXPECT_TRUE(comes_true([&] { return links_.pushes_to(kOther).size() == 1; }));
  EXPECT_EQ(links_.got(kOther), std::vector<std::size_t>{3});
  // When its pushes have ended it is served again.
  for (const PushId push : links_.pushes_to(kGreedy)) server.push_ended(push);
  server.take(kGreedy, get(0, 2, 5 * kSecond));
  EXPECT_TRUE(comes_true([&] { return links_.pushes_to(kGreedy).size() == 3; }));
  for (const PeerId peer : {kGreedy, kOther}) {
    for (const PushId push : links_.pushes_to(peer)) server.push_ended(push);
  }
}

TEST_P(PeerServerTest, APeerHasFewRequestsThatWait) {
  PeerServer server(hosts_[0]->access(), links_,
                    {.most_flying_bytes = 4 * kBlockBytes, .most_requests = 3});
  server.take(kGreedy, get(0, 1, 5 * kSecond));
  ASSERT_TRUE(comes_true([&] { return links_.pushes_to(kGreedy).size() == 1; }));
  for (std::size_t i = 1; i < 8; ++i) server.take(kGreedy, get(i, 1, 5 * kSecond));
  EXPECT_EQ(links_.refused(kGreedy), 4u);
  server.take(kOther, get(0, 1, 5 * kSecond));
  EXPECT_TRUE(comes_true([&] { return links_.pushes_to(kOther).size() == 1; }));
  server.forget(kGreedy);
  for (const PeerId peer : {kGreedy, kOther}) {
    for (const PushId push : links_.pushes_to(peer)) server.push_ended(push);
  }
}

TEST_P(PeerServerTest, WhatIsNotThereOrOfAnotherLengthIsNotPushed) {
  PeerServer server(hosts_[0]->access(), links_, {});
  GetMessage absent = get(0, 4, 5 * kSecond);
  absent.blocks[2].hash.low ^= 1;
  server.take(kOther, absent);
  GetMessage shorter = get(0, 4, 5 * kSecond);
  shorter.blocks[1].length -= 1;
  server.take(kOther, shorter);
  GetMessage foreign = get(0, 4, 5 * kSecond);
  foreign.space.low ^= 1;
  server.take(kOther, foreign);
  EXPECT_TRUE(comes_true([&] { return links_.got(kOther).size() == 3; }));
  EXPECT_EQ(links_.got(kOther), (std::vector<std::size_t>{2, 1, 0}));
  GetMessage none = get(0, 4, 5 * kSecond), too_long = get(0, 4, 5 * kSecond);
  none.blocks.clear();
  too_long.blocks[0].length = kBlockBytes + 1;
  server.take(kOther, none);
  server.take(kOther, too_long);
  EXPECT_TRUE(comes_true([&] { return links_.refused(kOther) == 2; }));
  EXPECT_TRUE(links_.pushes_to(kOther).empty());
}

TEST_P(PeerServerTest, ARequestForMoreThanMayBeOnItsWayIsRefused) {
  PeerServer server(hosts_[0]->access(), links_, {.most_flying_bytes = 4 * kBlockBytes});
  server.take(kGreedy, get(0, 5, 5 * kSecond));
  EXPECT_TRUE(comes_true([&] { return links_.refused(kGreedy) == 1; }));
  EXPECT_TRUE(links_.pushes_to(kGreedy).empty());
}

INSTANTIATE_TEST_SUITE_P(Domains, PeerServerTest,
                         ::testing::Values(memory::DomainKind::kCoherent,
                                           memory::DomainKind::kNoncoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
