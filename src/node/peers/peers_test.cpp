#include "node/peers/peers.h"

#include "node/peers/peers_test_hosts.h"

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

storage::StorageKey key_of(unsigned char first) {
  storage::StorageKey key;
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

TEST(PeerProofTest, AProofIsOneForOneChallengeAndTwoPeers) {
  const ChallengeMessage challenge{{1, 2}};
  const PeerIdentity a{"a", 1}, b{"b", 2};
  const ProofMessage proof = *prove(key_of(1), challenge, a, b);
  EXPECT_TRUE(is_equal(proof, *prove(key_of(1), challenge, a, b)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(2), challenge, a, b)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), {{1, 3}}, a, b)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), challenge, b, a)));
  EXPECT_FALSE(is_equal(proof, *prove(key_of(1), challenge, {"a", 3}, b)));
  EXPECT_NE(make_challenge()->nonce, make_challenge()->nonce);
}

INSTANTIATE_TEST_SUITE_P(Domains, PeersTest,
                         ::testing::Values(memory::DomainKind::kCoherent,
                                           memory::DomainKind::kNoncoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
