// A peer that says that it has blocks, and then is silent, refuses, or sends something else.

#include "node/peers/peers_test_hosts.h"

namespace cachalot::node {
namespace {

using transfer::PeerId;

enum class Lie {
  kNone,
  kSilence,
  kRefusal,
  kNoBytes,       // the heads, and no push
  kOtherBytes,    // not those of the seal
  kOtherHead,     // of another block
  kOtherTokens,   // more than the head says
  kTooFewBlocks,  // says that it has only some, each time
  kNothing,       // says that it has none of them
  kTooMany,       // more heads than were wanted
  kGarbage,       // no message
  kOtherRequest,  // an answer to a question that was not asked
};

// Follows the protocol as far as its lie allows.
class LyingPeer final : transfer::EngineEvents {
 public:
  LyingPeer(const std::string& folder, Lie lie) : lie_(lie) {
    registry_ = *transfer::open_registry("file:" + folder);
    transfer::EngineOptions options;
    options.name = "cachalot-pool/liar";
    options.facts = {{kPeersFact, kPeersVersion}};
    options.listen = {"tcp:127.0.0.1:0"};
    {
      const std::lock_guard lock(mutex_);
      engine_ = *transfer::TransferEngine::open(options, this);
    }
    transfer::PeerRecord record = *transfer::PeerRecord::make(options.name, engine_->addresses());
    record.incarnation = engine_->incarnation();
    record.facts = options.facts;
    EXPECT_TRUE(registry_->publish(record, base::SteadyClock::read() + 5 * kSecond));
  }
  ~LyingPeer() override { engine_->close(); }

  // What it claims to have, from the next follower on.
  void claim(const BlockHash& space, std::span<const BlockHash> hashes) {
    const std::lock_guard lock(mutex_);
    news_.is_anew = true;
    BlockHash parent{};
    for (const BlockHash& hash : hashes) {
      news_.blocks.push_back({{space, hash}, parent, kBlockBytes});
      parent = hash;
    }
    tell(news_);
  }
  // The same once more.
  void repeat() {
    const std::lock_guard lock(mutex_);
    tell(news_);
  }
  // That it has nothing; the next follower hears the claims.
  void take_back() {
    const std::lock_guard lock(mutex_);
    tell({true, {}});
  }
  // From now on what it claims is true. It tells no news of that.
  void tell_the_truth() {
    const std::lock_guard lock(mutex_);
    lie_ = Lie::kNone;
  }
  std::uint64_t requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void on_message(PeerId peer, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    const Result<PeerMessage> message = decode_peer_message(bytes);
    ASSERT_TRUE(message);
    if (std::holds_alternative<FollowMessage>(*message)) {
      followers_.push_back(peer);
      (void)engine_->send(peer, encode(news_));
    }
    if (const auto* const get = std::get_if<GetMessage>(&*message)) {
      ++requests_;
      answer(peer, *get);
    }
  }

  void tell(const NewsMessage& news) {
    for (const PeerId follower : followers_) (void)engine_->send(follower, encode(news));
  }

  void answer(PeerId peer, const GetMessage& get) {
    GotMessage got{get.request, {}};
    std::size_t blocks = get.blocks.size();
    if (lie_ == Lie::kTooFewBlocks) blocks /= 2;
    if (lie_ == Lie::kNothing) blocks = 0;
    bytes_.assign(get.blocks.size() * kBlockBytes, std::byte{0});
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::vector<std::byte> right = bytes_of(get.blocks[i].hash);
      std::copy(right.begin(), right.end(),
                bytes_.begin() + static_cast<std::ptrdiff_t>(i * kBlockBytes));
      GotBlock block;
      block.head.key = {get.space, get.blocks[i].hash};
      block.head.parent = get.blocks[i].parent;
      block.head.payload_bytes = kBlockBytes;
      if (lie_ == Lie::kOtherHead) block.head.key.block.low ^= 1;
      const storage::Bytes body[] = {right};
      block.head.seal = storage::seal_of(block.head, body);
      if (lie_ == Lie::kOtherTokens) block.tokens = {1, 2, 3};
      got.blocks.push_back(block);
    }
    if (lie_ == Lie::kOtherBytes) bytes_[blocks * kBlockBytes / 2] ^= std::byte{1};
    if (lie_ == Lie::kTooMany) got.blocks.push_back(got.blocks.front());
    if (lie_ == Lie::kOtherRequest) ++got.request;
    if (lie_ == Lie::kSilence) return;
    if (lie_ == Lie::kRefusal) {
      (void)engine_->send(
          peer, encode(RefusedGetMessage{get.request, Error::make(Code::kBusy, "not now")}));
      return;
    }
    if (lie_ == Lie::kGarbage) {
      const std::vector<std::byte> garbage(100, std::byte{0xee});
      (void)engine_->send(peer, garbage);
      return;
    }
    (void)engine_->send(peer, encode(got));
    if (lie_ == Lie::kNoBytes || got.blocks.size() < get.blocks.size()) return;
    (void)engine_->push(peer, transfer::WindowKey{get.window},
                        transfer::ByteStream(transfer::Strided::flat(bytes_.data(), bytes_.size())),
                        base::SteadyClock::read() + 5 * kSecond);
  }

  std::mutex mutex_;  // below
  Lie lie_;
  std::unique_ptr<transfer::Registry> registry_;
  NewsMessage news_;
  std::vector<PeerId> followers_;
  std::uint64_t requests_ = 0;
  std::vector<std::byte> bytes_;
  std::unique_ptr<transfer::TransferEngine> engine_;
};

class LyingPeerTest : public PeersTest {
 protected:
  BlockHash space() const { return block_hash::make_namespace("a model").digest; }
};

// Whatever it sends: no wrong byte, and no call that waits longer than it said.
TEST_P(LyingPeerTest, ALieIsAMiss) {
  is_impatient_ = true;
  for (const Lie lie : {Lie::kSilence, Lie::kRefusal, Lie::kNoBytes, Lie::kOtherBytes,
                        Lie::kOtherHead, Lie::kOtherTokens, Lie::kTooFewBlocks, Lie::kNothing,
                        Lie::kTooMany, Lie::kGarbage, Lie::kOtherRequest}) {
    SCOPED_TRACE(static_cast<int>(lie));
    Host& host = start(0);
    LyingPeer liar(folder_, lie);
    const std::vector<BlockHash> hashes = host.chain(1, 20);
    liar.claim(space(), hashes);
    ASSERT_TRUE(knows(host, 20));
    const std::uint64_t begin_ns = base::SteadyClock::read();
    const std::size_t found = host.prefetch(hashes, 5 * kSecond);
    EXPECT_LT(base::SteadyClock::read() - begin_ns, 6 * kSecond);
    EXPECT_GE(liar.requests(), 1u);
    EXPECT_EQ(host.load(hashes), found);  // and every byte is right
    EXPECT_TRUE(found == 0 || lie == Lie::kOtherBytes) << found;
    if (lie == Lie::kOtherBytes || lie == Lie::kOtherHead || lie == Lie::kOtherTokens) {
      // What came damaged is not asked for again.
      (void)host.prefetch(hashes, 5 * kSecond);
      const std::uint64_t requests = liar.requests();
      std::this_thread::sleep_for(std::chrono::nanoseconds(Finder::kAbsentNs));
      EXPECT_EQ(host.prefetch(hashes, 5 * kSecond), found);
      EXPECT_EQ(liar.requests(), requests);
    }
    // The pool works as before.
    const std::vector<BlockHash> own = host.chain(2, 10);
    EXPECT_EQ(host.store(own), 10u);
    EXPECT_EQ(host.load(own), 10u);
    hosts_[0].reset();
  }
}

// An old snapshot, or a message that a man in the middle sends again.
TEST_P(LyingPeerTest, NewsThatAreOldOrComeTwiceCostMissesAtMost) {
  Host &host = start(0), &other = start(1);
  LyingPeer liar(folder_, Lie::kNothing);
  const std::vector<BlockHash> gone = host.chain(1, 20), there = host.chain(2, 20);
  EXPECT_EQ(other.store(there), 20u);
  liar.claim(space(), gone);
  ASSERT_TRUE(knows(host, 40));
  for (int i = 0; i < 3; ++i) liar.repeat();
  liar.take_back();
  ASSERT_TRUE(knows(host, 20));
  liar.repeat();
  ASSERT_TRUE(knows(host, 40));
  EXPECT_EQ(host.prefetch(gone, 5 * kSecond), 0u);
  EXPECT_EQ(host.prefetch(there), 20u);
  EXPECT_EQ(host.load(there), 20u);
  liar.take_back();
  ASSERT_TRUE(knows(host, 20));
}

// A peer that stores a block again may tell so before a reader has noted that it was not there. No other news come.
TEST_P(LyingPeerTest, WhatWasNotThereIsAskedForAgainWithoutNews) {
  Host& host = start(0);
  LyingPeer peer(folder_, Lie::kNothing);
  const std::vector<BlockHash> hashes = host.chain(1, 20);
  peer.claim(space(), hashes);
  ASSERT_TRUE(knows(host, 20));
  EXPECT_EQ(host.prefetch(hashes, 5 * kSecond), 0u);
  EXPECT_GE(peer.requests(), 1u);
  peer.tell_the_truth();
  EXPECT_TRUE(comes_true([&] { return host.prefetch(hashes, 5 * kSecond) == 20; }));
  EXPECT_EQ(host.load(hashes), 20u);
}

TEST_P(LyingPeerTest, WhatALiarDoesNotGiveComesFromAnotherPeer) {
  Host& owner = start(1);
  const std::vector<BlockHash> hashes = owner.chain(1, 20);
  EXPECT_EQ(owner.store(hashes), 20u);
  for (const Lie lie : {Lie::kSilence, Lie::kRefusal, Lie::kNothing, Lie::kGarbage}) {
    SCOPED_TRACE(static_cast<int>(lie));
    changed_.patience_ns = kSecond / 2;
    is_impatient_ = lie == Lie::kSilence;
    LyingPeer liar(folder_, lie);
    liar.claim(space(), hashes);
    Host& host = start(0);
    // Of both.
    ASSERT_TRUE(comes_true([&] {
      const PeersCounts counts = host.peers().counts();
      return counts.peers == 2 && counts.heard_changes == 40;
    }));
    EXPECT_EQ(host.prefetch(hashes), 20u);
    EXPECT_EQ(host.load(hashes), 20u);
    hosts_[0].reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, LyingPeerTest,
                         ::testing::Values(memory::DomainKind::kCoherent,
                                           memory::DomainKind::kNoncoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
