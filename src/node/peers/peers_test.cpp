#include "node/peers/peers.h"

#include <mutex>

#include "node/peers/peers_test_hosts.h"
#include "pool/reader/published_blocks.h"

namespace cachalot::node {
namespace {

TEST_P(PeersTest, WhatOneHostHasAnotherOneFinds) {
  Host &a = start(0), &b = start(1);
  const std::vector<BlockHash> hashes = a.chain(1, 40);
  EXPECT_EQ(a.store(hashes), 40u);
  ASSERT_TRUE(knows(b, 40));
  EXPECT_EQ(b.prefetch(a.chain(1, 50)), 40u);
  EXPECT_EQ(b.load(hashes), 40u);
  EXPECT_EQ(b.peers().counts().got_blocks, 40u);
  EXPECT_EQ(a.peers().counts().served.served_blocks, 40u);
  EXPECT_EQ(b.archive().store().counts().damaged_objects, 0u);
}

TEST_P(PeersTest, AHostThatComesLaterHearsOfEverything) {
  Host& a = start(0);
  const std::vector<BlockHash> hashes = a.chain(1, 40);
  EXPECT_EQ(a.store(hashes), 40u);
  Host& b = start(1);
  ASSERT_TRUE(knows(b, 40));
  EXPECT_EQ(b.prefetch(hashes), 40u);
  EXPECT_EQ(b.load(hashes), 40u);
}

// More than one message has, of which the follower takes one at a time.
TEST_P(PeersTest, AFollowerIsToldAsMuchAsItTakes) {
  constexpr std::size_t kBlocks = kMostNews + 900;
  Host& a = start(0, kBlocks + 100);
  const std::vector<BlockHash> hashes = a.chain(1, kBlocks);
  EXPECT_EQ(a.store(hashes), kBlocks);
  std::mutex mutex;
  std::vector<NewsMessage> told;
  std::atomic<std::uint64_t> waiting = ~std::uint64_t{0}, questions = 0;
  PeerFeed feed(
      a.access(),
      [&](transfer::PeerId, const NewsMessage& news) {
        waiting = ~std::uint64_t{0};
        const std::lock_guard lock(mutex);
        told.push_back(news);
        return true;
      },
      [&](transfer::PeerId) {
        ++questions;
        return waiting.load();
      });
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return told.size();
  };
  feed.add(transfer::PeerId{1});
  for (const std::size_t messages : {0u, 1u}) {
    if (messages != 0) waiting = 0;
    ASSERT_TRUE(comes_true([&] { return count() >= messages; }));
    ASSERT_TRUE(comes_true([&, begin = questions.load()] { return questions > begin + 2; }));
    EXPECT_EQ(count(), messages);
  }
  // Of a block that was told, and of one that comes later.
  for (const BlockHash& hash : {hashes.front(), hashes.back()}) {
    std::uint32_t block = pool::kNoBlock;
    pool::for_each_published(a.access(), [&](const pool::Entry& entry) {
      if (BlockHash{entry.hash_low, entry.hash_high} == hash) block = entry.block;
    });
    feed.observer().on_removed(block, hash);
  }
  ASSERT_TRUE(comes_true([&] { return count() == 2 || count() == 3; }));
  ASSERT_TRUE(comes_true([&] {
    waiting = 0;
    return feed.untold() == 0;
  }));
  PeerDirectory directory(2 * kBlocks);
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].is_anew, i == 0);
    directory.apply(0, told[i].blocks);
  }
  EXPECT_EQ(directory.blocks(), kBlocks - 2);
}

TEST_P(PeersTest, WhatIsEvictedIsForgotten) {
  Host &a = start(0), &b = start(1);
  const std::vector<BlockHash> first = a.chain(1, 60), second = a.chain(2, 60);
  EXPECT_EQ(a.store(first), 60u);
  ASSERT_TRUE(knows(b, 60));
  EXPECT_EQ(a.store(second), 60u);
  EXPECT_TRUE(comes_true([&] { return b.prefetch(second) == 60; }));
  ASSERT_TRUE(knows(b, 64));
  EXPECT_EQ(b.load(second), 60u);
}

TEST_P(PeersTest, AChainIsReadFromSeveralPeers) {
  Host &a = start(0), &b = start(1), &c = start(2);
  const std::vector<BlockHash> hashes = a.chain(1, 50);
  EXPECT_EQ(a.store(std::span(hashes).first(20)), 20u);
  EXPECT_EQ(b.store(hashes), 50u);
  ASSERT_TRUE(comes_true([&] { return c.peers().counts().peers == 2; }));
  ASSERT_TRUE(comes_true([&] { return c.prefetch(hashes) == 50; }));
  EXPECT_EQ(c.prefetch(hashes), 50u);
  EXPECT_EQ(c.load(hashes), 50u);
}

// 20 blocks of its own, then 40 of a peer, then 30 more of its own: 26 of 64 places are wanted again.
TEST_P(PeersTest, WhatAPeerHasGoesBeforeWhatIsOlderUntilItIsUsedAgain) {
  Host& a = start(0);
  const std::vector<BlockHash> copies = a.chain(1, 40), own = a.chain(2, 20), last = a.chain(3, 30);
  EXPECT_EQ(a.store(copies), 40u);
  for (const int uses : {1, 2}) {
    Host& b = start(1);
    ASSERT_TRUE(knows(b, 40));
    EXPECT_EQ(b.store(own), 20u);
    EXPECT_EQ(b.prefetch(copies), 40u);
    for (int i = 0; i < uses; ++i) EXPECT_EQ(b.load(copies), 40u);
    EXPECT_EQ(b.store(last), 30u);
    EXPECT_EQ(b.load(own), uses == 1 ? 20u : 0u);
    EXPECT_EQ(b.load(copies), uses == 1 ? 14u : 34u);
  }
}

TEST_P(PeersTest, WhatAHostThatHasEndedHadIsAMiss) {
  Host& a = start(0);
  start(1);
  const std::vector<BlockHash> hashes = a.chain(1, 20);
  EXPECT_EQ(a.store(hashes), 20u);
  Host& b = *hosts_[1];
  ASSERT_TRUE(knows(b, 20));
  hosts_[0].reset();
  ASSERT_TRUE(knows(b, 0));
  EXPECT_EQ(b.prefetch(hashes), 0u);
  std::this_thread::sleep_for(std::chrono::nanoseconds(Finder::kAbsentNs));
  Host& again = start(0);
  EXPECT_EQ(again.store(hashes), 20u);
  ASSERT_TRUE(knows(b, 20));
  EXPECT_EQ(b.prefetch(hashes), 20u);
  EXPECT_EQ(b.load(hashes), 20u);
}

TEST_P(PeersTest, ALongChainComesWhole) {
  Host &a = start(0, 700), &b = start(1, 700);
  const std::vector<BlockHash> hashes = a.chain(1, 600);
  EXPECT_EQ(a.store(hashes), 600u);
  ASSERT_TRUE(knows(b, 600));
  EXPECT_EQ(b.prefetch(hashes), 600u);
  EXPECT_EQ(b.load(hashes), 600u);
}

// A part of a call may wait as long as those before it take: the last of these comes after the time that one alone has.
TEST_P(PeersTest, APeerThatSendsOnePartAfterTheOtherIsNotGivenUp) {
  changed_.patience_ns = 3 * kSecond;
  changed_.least_bytes_per_s = kBlockBytes;
  changed_.server.most_bytes_per_s = kBlockBytes * 2 / 3;
  is_impatient_ = true;
  Host &a = start(0), &b = start(1);
  const std::vector<BlockHash> hashes = a.chain(1, 4), others = a.chain(2, 4);
  EXPECT_EQ(a.store(hashes), 4u);
  ASSERT_TRUE(knows(b, 4));
  const BlockHash space = pool::read_namespaces(a.access()).at(0);
  std::vector<std::vector<std::byte>> bytes(8, std::vector<std::byte>(kBlockBytes));
  std::vector<storage::Room> rooms(bytes.begin(), bytes.end());
  std::vector<storage::Get> gets;
  for (std::size_t i = 0; i < 4;
       ++i) {  // each block a part of its own, since no peer has the next one
    gets.push_back({.key = {space, hashes[i]}, .room = std::span(&rooms[2 * i], 1)});
    gets.push_back({.key = {space, others[i]}, .room = std::span(&rooms[2 * i + 1], 1)});
  }
  const std::uint64_t begin_ns = base::SteadyClock::read();
  b.peers().get(gets, begin_ns + 60 * kSecond, [](storage::Get&) {});
  EXPECT_GE(base::SteadyClock::read() - begin_ns,
            4 * kSecond);  // the limit counts pushes that end at once
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(gets[2 * i].status) << i << ": " << gets[2 * i].status.error().message;
    EXPECT_EQ(bytes[2 * i], bytes_of(hashes[i]));
  }
  EXPECT_EQ(b.peers().counts().failed_requests, 0u);
}

os::SecretKey key_of(unsigned char first) {
  os::SecretKey key;
  key.bytes[0] = first;
  return key;
}

TEST_P(PeersTest, PeersWithTheSameKeyReadEachOther) {
  changed_.key = key_of(1);
  Host &a = start(0), &b = start(1);
  const std::vector<BlockHash> hashes = a.chain(1, 20);
  EXPECT_EQ(a.store(hashes), 20u);
  ASSERT_TRUE(knows(b, 20));
  EXPECT_EQ(b.prefetch(hashes), 20u);
  EXPECT_EQ(b.load(hashes), 20u);
}

TEST_P(PeersTest, APeerWithAnotherKeyOrNoneReadsNothingAndIsNotRead) {
  changed_.key = key_of(1);
  Host& a = start(0);
  Host& friendly = start(3);
  changed_.key = key_of(2);
  Host& other = start(1);
  changed_.key.reset();
  Host& without = start(2);
  const std::vector<BlockHash> hashes = a.chain(1, 20), theirs = a.chain(2, 20);
  EXPECT_EQ(a.store(hashes), 20u);
  EXPECT_EQ(other.store(theirs), 20u);
  EXPECT_EQ(without.store(theirs), 20u);
  ASSERT_TRUE(knows(friendly, 20));
  // Time in which a peer would have told what it has.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(a.peers().counts().known_blocks, 0u);
  EXPECT_EQ(other.peers().counts().known_blocks, 0u);
  EXPECT_EQ(without.peers().counts().known_blocks, 0u);
  EXPECT_EQ(other.prefetch(hashes), 0u);
  EXPECT_EQ(without.prefetch(hashes), 0u);
  EXPECT_EQ(a.prefetch(theirs), 0u);
}

// Without the key: says to each of two hosts that it is the other one, and passes on what they send to prove it.
class Relay {
 public:
  Relay(const transfer::PeerRecord& a, const transfer::PeerRecord& b) {
    for (End* const end : {&as_a_, &as_b_}) {
      const bool is_a = end == &as_a_;
      end->other = is_a ? &as_b_ : &as_a_;
      transfer::EngineOptions options;
      options.name = (is_a ? a : b).name;
      options.incarnation = (is_a ? a : b).incarnation;
      options.facts = {{kPeersFact, kPeersVersion}};
      end->engine = *transfer::TransferEngine::open(options, end);
    }
    for (End* const end : {&as_a_, &as_b_}) {
      const transfer::PeerRecord& called = end == &as_a_ ? b : a;
      const Result<transfer::PeerId> peer =
          end->engine->connect({called.name, called.incarnation, called.addresses},
                               base::SteadyClock::read() + 5 * kSecond);
      EXPECT_TRUE(peer) << peer.error().message;
      if (peer) end->learn(*peer);
    }
  }
  ~Relay() {
    as_a_.engine->close();
    as_b_.engine->close();
  }
  bool has_passed_proofs() { return as_a_.proofs + as_b_.proofs >= 2; }
  bool has_heard_news() { return as_a_.has_news || as_b_.has_news; }

 private:
  struct End final : transfer::EngineEvents {
    void learn(transfer::PeerId called) {
      std::vector<std::vector<std::byte>> early;
      {
        const std::lock_guard lock(mutex);
        peer = called;
        early.swap(waiting);
      }
      for (const auto& bytes : early) (void)engine->send(called, bytes);
    }
    // Of the other end's host, for this one's.
    void pass(std::span<const std::byte> bytes) {
      {
        const std::lock_guard lock(mutex);
        if (!peer) return waiting.emplace_back(bytes.begin(), bytes.end()), void();
      }
      (void)engine->send(*peer, bytes);
    }
    void on_message(transfer::PeerId, std::span<const std::byte> bytes) override {
      const Result<PeerMessage> message = decode_peer_message(bytes);
      if (!message) return;
      if (std::holds_alternative<NewsMessage>(*message)) has_news = true;
      if (std::holds_alternative<ChallengeMessage>(*message)) other->pass(bytes);
      if (!std::holds_alternative<ProofMessage>(*message)) return;
      other->pass(bytes);
      ++proofs;
      other->pass(encode(FollowMessage{}));
    }

    End* other = nullptr;
    std::mutex mutex;
    std::optional<transfer::PeerId> peer;
    std::vector<std::vector<std::byte>> waiting;
    std::atomic<int> proofs{0};
    std::atomic<bool> has_news{false};
    std::unique_ptr<transfer::TransferEngine> engine;
  };

  End as_a_, as_b_;
};

TEST_P(PeersTest, WithAKeyWhatTravelsIsEncryptedUnlessTheHostSaysOtherwise) {
  changed_.key = key_of(1);
  start(0);
  changed_.is_encrypted = false;
  Host& plain = start(1);
  start(2);
  EXPECT_EQ(plain.store(plain.chain(1, 20)), 20u);
  ASSERT_TRUE(knows(*hosts_[2], 20)) << "both do not encrypt, and have the key";
  EXPECT_EQ(hosts_[0]->peers().counts().known_blocks, 0u);
  transfer::EngineOptions options;
  options.name = "stranger";
  const auto stranger = *transfer::TransferEngine::open(options);
  const auto call = [&](std::size_t host) {
    return stranger->connect({"", 0, hosts_[host]->peers().addresses()},
                             base::SteadyClock::read() + 10 * kSecond);
  };
  EXPECT_TRUE(call(1)) << "a stranger connects, and has to prove";
  EXPECT_EQ(call(0).error().code, Code::kPermission);
  stranger->close();
}

TEST_P(PeersTest, AStrangerThatPassesOnTheProofsOfTwoHostsIsNoPeer) {
  changed_.key = key_of(1);
  changed_.is_encrypted = false;
  changed_.look_pause_ns = 20'000'000;
  Host& a = start(0);
  start(1);
  EXPECT_EQ(a.store(a.chain(1, 20)), 20u);
  ASSERT_TRUE(knows(*hosts_[1], 20));
  const auto registry = *transfer::open_registry("file:" + folder_);
  const auto records = *registry->list("", base::SteadyClock::read() + kSecond);
  ASSERT_EQ(records.size(), 2u);
  Relay relay(records[0], records[1]);
  EXPECT_TRUE(comes_true([&] { return relay.has_passed_proofs(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(relay.has_heard_news());
}

TEST(PeerProofTest, AProofIsOneForOneChallengeAndTwoPeers) {
  const ChallengeMessage challenge{{1, 2}};
  const PeerIdentity a{"a", 1}, b{"b", 2};
  const ProofMessage proof = *prove(key_of(1), challenge, a, b, Side::kCalls);
  EXPECT_TRUE(is_equal(proof, *prove(key_of(1), challenge, a, b, Side::kCalls)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(2), challenge, a, b, Side::kCalls)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), {{1, 3}}, a, b, Side::kCalls)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), challenge, b, a, Side::kCalls)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), challenge, {"a", 3}, b, Side::kCalls)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), challenge, a, b, Side::kIsCalled)));
  EXPECT_NE(make_challenge()->nonce, make_challenge()->nonce);
}

INSTANTIATE_TEST_SUITE_P(Domains, PeersTest,
                         ::testing::Values(memory::DomainKind::kCoherent,
                                           memory::DomainKind::kNoncoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
