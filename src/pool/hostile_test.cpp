// Messages that no client of ours would send: they get an error and harm only their sender.

#include <gtest/gtest.h>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

// A victim with a published chain, a granted reserve and no idea; an attacker in the next slot.
class HostileTest : public testing::Test {
 protected:
  HostileTest() : pool_(geometry()) {
    pool_.start_keeper();
    victim_ = pool_.attach(0);
    for (const Verdict v : pool_.put(*victim_, 1, 20)) EXPECT_EQ(v, Verdict::kCommitted);
    attacker_ = std::make_unique<RawClient>(pool_, 1);
    space_ = attacker_->open_namespace();
  }
  static Geometry geometry() { return small_geometry(4000, 2000); }

  void TearDown() override {
    EXPECT_TRUE(pool_.keeper().is_valid());
    EXPECT_EQ(pool_.read(*victim_, 1, 20), 20u);
    for (const Verdict v : pool_.put(*victim_, 1000, 20)) EXPECT_EQ(v, Verdict::kCommitted);
    EXPECT_EQ(pool_.read(*victim_, 1000, 20), 20u);
    EXPECT_TRUE(victim_->detach());
    EXPECT_TRUE(pool_.keeper().is_valid());
  }
  std::uint64_t count(KeeperCounter counter) { return pool_.keeper().counters()[counter]; }
  Code said(const rpc::RequestHead& head, std::span<const rpc::FollowingLine> following = {}) {
    const RawClient::Answer answer = attacker_->ask(head, following);
    EXPECT_TRUE(answer.came);
    return answer.code();
  }

  // Ends an unfinished message, by pings that count as its lines, and detaches.
  void say_goodbye() {
    for (std::uint32_t i = 0; i < rpc::kMaxMessageLines; ++i)
      attacker_->ask(RawClient::head_of(Op::kPing));
    while (attacker_->take().came) {
    }
    attacker_->ask(RawClient::head_of(Op::kDetach));
  }

  TestPool pool_;
  std::unique_ptr<Client> victim_;
  std::unique_ptr<RawClient> attacker_;
  std::uint32_t space_ = 0;
};

TEST_F(HostileTest, UnknownOperationsAreRefused) {
  for (int op = 0; op < 256; ++op) {
    if (op >= 1 && op <= 13) continue;
    EXPECT_EQ(said(RawClient::head_of(static_cast<Op>(op))), Code::kInvalidArgument) << op;
  }
  EXPECT_EQ(said(RawClient::head_of(Op::kExpansion)), Code::kUnsupported);  // this pool cannot grow
}

// Hears what the keeper passes on.
class Desk final : public StorageDesk {
 public:
  StorageAnswer answer(const StorageQuestion& question) override {
    ++questions;
    hashes = question.hashes.size();
    space = question.space;
    fetches = question.fetches;
    return {};
  }
  bool has_blocks_of(const BlockHash&) override { return false; }
  std::size_t questions = 0, hashes = 0;
  BlockHash space;
  bool fetches = false;
};

TEST_F(HostileTest, QuestionsAboutStorageAreCheckedBeforeTheyArePassedOn) {
  const auto ask = [&](std::uint32_t space, std::uint32_t flags, std::uint32_t hashes,
                       std::uint32_t lines) {
    const std::vector<rpc::FollowingLine> following(lines);
    return said(RawClient::head_of(Op::kStorage, 0, StoragePayload{space, flags, hashes},
                                   static_cast<std::uint8_t>(lines + 1)),
                following);
  };
  EXPECT_EQ(ask(space_, 0, 3, 1), Code::kUnsupported);
  Desk desk;
  pool_.keeper().set_storage_desk(&desk);
  EXPECT_EQ(ask(0, 0, 3, 1), Code::kInvalidArgument);
  EXPECT_EQ(ask(space_ + 1, 0, 3, 1), Code::kInvalidArgument);
  EXPECT_EQ(ask(space_, 16, 3, 1), Code::kInvalidArgument);
  EXPECT_EQ(ask(space_, 0, 4, 1), Code::kInvalidArgument);
  EXPECT_EQ(ask(space_, 0, kMaxStorageHashes + 1, 40), Code::kInvalidArgument);
  EXPECT_EQ(ask(space_, 0, 0xffffffff, 40), Code::kInvalidArgument);
  EXPECT_EQ(desk.questions, 0u);
  EXPECT_EQ(ask(space_, kStorageFetch, kMaxStorageHashes, 40), Code{});
  EXPECT_EQ(desk.hashes, kMaxStorageHashes);
  EXPECT_TRUE(desk.fetches);
  // Of a namespace that the pool does not have: storage may have it. Nothing is fetched.
  const StoragePayload unknown{.namespace_id = 0,
                               .flags = kStorageFetch | kStorageAsk | kStorageIsSure,
                               .hashes = 3,
                               .digest_low = 1,
                               .digest_high = 2};
  EXPECT_EQ(
      said(RawClient::head_of(Op::kStorage, 0, unknown, 2), std::vector<rpc::FollowingLine>(1)),
      Code{});
  EXPECT_EQ(desk.space, (BlockHash{1, 2}));
  EXPECT_FALSE(desk.fetches);
  pool_.keeper().set_storage_desk(nullptr);
}

TEST_F(HostileTest, CountsThatTheMessageHasNoRoomForAreRefused) {
  const UsesPayload uses{space_, {}};
  for (const Op op : {Op::kTouch, Op::kGiveBack}) {
    for (const std::uint16_t n : std::initializer_list<std::uint16_t>{0, 6, 7, 383, 65535}) {
      EXPECT_EQ(said(RawClient::head_of(op, n, uses)), Code::kInvalidArgument) << n;
    }
  }
  const CommitPayload chain{space_, 0, 0, 0};
  std::vector<rpc::FollowingLine> lines(40);
  for (const std::uint16_t n : std::initializer_list<std::uint16_t>{0, 1, 3, 32, 33, 65535}) {
    EXPECT_EQ(said(RawClient::head_of(Op::kCommit, n, chain, 3), {lines.data(), 2}),
              Code::kInvalidArgument)
        << n;
  }
  EXPECT_EQ(said(RawClient::head_of(Op::kCommit, 33, chain, 34), {lines.data(), 33}),
            Code::kInvalidArgument);
}

TEST_F(HostileTest, AMessageOfNoLinesOrTooManyCostsOneLineAndTheNextIsServed) {
  for (const int lines : {0, 65, 255}) {
    EXPECT_EQ(
        said(RawClient::head_of(Op::kPing, 0, UsesPayload{}, static_cast<std::uint8_t>(lines))),
        Code::kInvalidArgument);
    EXPECT_TRUE(attacker_->ask(RawClient::head_of(Op::kPing)).is_yes());
  }
  EXPECT_EQ(count(KeeperCounter::kMalformed), 3u);
}

TEST_F(HostileTest, AMessageThatNeverEndsDelaysNobodyElse) {
  EXPECT_FALSE(attacker_->ask(RawClient::head_of(Op::kCommit, 60, UsesPayload{}, 61)).came);
  EXPECT_TRUE(victim_->requests().ping());
  EXPECT_EQ(pool_.read(*victim_, 1, 20), 20u);
}

TEST_F(HostileTest, ALineOfAnotherIncarnationIsNotRead) {
  const std::uint64_t served = count(KeeperCounter::kRequests);
  rpc::RingWriter forged(
      pool_.access().region.salted(rpc::request_salt(attacker_->incarnation() + 1)),
      pool_.access().layout.request_ring(1), kRingLines);
  forged.write(memory::to_line(RawClient::head_of(Op::kStop)));
  pool_.keeper().poll();
  EXPECT_EQ(count(KeeperCounter::kRequests), served);
}

TEST_F(HostileTest, BlocksThatTheSenderDoesNotHoldStayAsTheyAre) {
  const BlockUse own = attacker_->grant(1)[0];
  const Entry published = pool_.entry_of(hash_of(5));
  std::vector<BlockUse> foreign = {{published.block, published.generation},
                                   {own.block, own.generation + 1},
                                   {own.block, own.generation - 1},
                                   {0xfffffffeu, 1},
                                   {kNoBlock, 1},
                                   {geometry().blocks, 0}};
  // What the victim holds: all blocks below its highest that are neither published nor the attacker's.
  for (std::uint32_t block = 20; block < 20 + victim_->grants().held(); ++block)
    foreign.push_back({block, 1});
  const std::uint64_t granted = count(KeeperCounter::kGranted), live = count(KeeperCounter::kLive);
  for (const BlockUse& use : foreign) {
    EXPECT_EQ(said(RawClient::head_of(Op::kGiveBack, 1, UsesPayload{space_, {use}})),
              Code::kRefused)
        << use.block;
    EXPECT_EQ(attacker_->commit_one(space_, nullptr, RawClient::item(500, use)), Verdict::kNotHeld)
        << use.block;
    EXPECT_EQ(said(RawClient::head_of(Op::kTouch, 1, UsesPayload{space_, {use}})), Code::kStale)
        << use.block;
  }
  EXPECT_EQ(count(KeeperCounter::kGranted), granted);
  EXPECT_EQ(count(KeeperCounter::kLive), live);
}

TEST_F(HostileTest, OneBlockIsNotPublishedUnderTwoNames) {
  const BlockUse use = attacker_->grant(1)[0];
  const CommitItem twice[] = {RawClient::item(500, use), RawClient::item(501, use)};
  EXPECT_EQ(attacker_->commit(space_, nullptr, twice),
            (std::vector<Verdict>{Verdict::kCommitted, Verdict::kNotHeld}));
}

TEST_F(HostileTest, ABlockGivenBackTwiceInOneMessageIsFreeOnce) {
  const BlockUse use = attacker_->grant(1)[0];
  EXPECT_EQ(said(RawClient::head_of(Op::kGiveBack, 3, UsesPayload{space_, {use, use, use}})),
            Code::kRefused);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(HostileTest, NamespacesThatWereNeverOpenedHoldNothing) {
  const BlockUse use = attacker_->grant(1)[0];
  for (const std::uint32_t space : {0u, space_ + 1, 257u, 65536u + space_, 0xffffffffu}) {
    EXPECT_TRUE(attacker_->commit(space, nullptr, std::vector{RawClient::item(500, use)}).empty())
        << space;
    EXPECT_EQ(said(RawClient::head_of(Op::kTouch, 1, UsesPayload{space, {use}})), Code::kStale);
    const BlockHash hash = hash_of(1);
    EXPECT_EQ(said(RawClient::head_of(
                  Op::kEvict, 0, EvictPayload{space, EvictScope::kBlock, hash.low, hash.high})),
              Code::kNotFound);
  }
}

TEST_F(HostileTest, AHundredThousandMessagesOfNoiseHarmOnlyTheirSender) {
  base::Rng rng(20260101);
  std::vector<BlockUse> held;
  const std::uint64_t evictions = count(KeeperCounter::kEvictions);
  for (int i = 0; i < 100'000; ++i) {
    rpc::RequestHead head{};
    std::vector<rpc::FollowingLine> following;
    const auto noise = [&](unsigned char* bytes, std::size_t n) {
      for (std::size_t b = 0; b < n; ++b) bytes[b] = static_cast<unsigned char>(rng.next());
    };
    head.op = static_cast<std::uint8_t>(rng.below(8) == 0 ? rng.next() : 1 + rng.below(9));
    head.count = static_cast<std::uint16_t>(rng.below(4) == 0 ? rng.next() : rng.below(8));
    if (rng.below(16) == 0) head.epoch = static_cast<std::uint32_t>(rng.next());
    noise(head.payload, sizeof head.payload);
    // Half of them name a namespace and blocks that exist.
    if (rng.below(2) == 0) std::memcpy(head.payload, &space_, sizeof space_);
    if (!held.empty() && rng.below(4) == 0)
      std::memcpy(head.payload + 4, &held[rng.below(held.size())], sizeof(BlockUse));
    const std::uint64_t lines = rng.below(6) == 0 ? rng.below(40) : rng.below(3);
    following.resize(lines);
    for (rpc::FollowingLine& line : following) {
      noise(line.payload, sizeof line.payload);
      if (held.empty() || count(KeeperCounter::kLive) > 2500 || rng.below(2) == 0) continue;
      CommitItem item = RawClient::item(5000 + rng.below(2000), held[rng.below(held.size())],
                                        static_cast<std::uint32_t>(1 + rng.below(300)));
      item.flags = static_cast<std::uint32_t>(rng.below(3));
      rpc::store_payload(line.payload, item);
    }
    head.lines = static_cast<std::uint8_t>(rng.below(12) == 0 ? rng.next() : 1 + lines);
    const auto op = static_cast<Op>(head.op);
    if (op == Op::kCommit && rng.below(2) == 0) {
      head.count = static_cast<std::uint16_t>(lines);
      rpc::store_payload(head.payload, CommitPayload{space_, 0, 0, 0});
    }
    // A client that may evict may evict everything, and stop the keeper: these are no forgeries.
    if (op == Op::kEvict)
      rpc::store_payload(head.payload,
                         EvictPayload{space_, EvictScope::kBlock, rng.next(), rng.next()});
    if (op == Op::kGrant && head.lines == 1 && lines == 0) {
      held = attacker_->grant(static_cast<std::uint16_t>(rng.below(40)));
    } else {
      attacker_->ask(head, following);
    }
    while (attacker_->take().came) {
    }
    if (i % 1000 == 0) {
      ASSERT_TRUE(pool_.keeper().is_valid()) << i;
    }
    // A client that detached, or left a message unfinished, attaches again.
    const bool has_left = count(KeeperCounter::kClients) < 2;
    if (i % 100 == 99 || has_left) {
      if (!has_left) say_goodbye();
      attacker_->attach();
      held = attacker_->grant(20);
    }
  }
  EXPECT_EQ(count(KeeperCounter::kEvictions), evictions);
  EXPECT_GT(count(KeeperCounter::kCommits), 200u);
  EXPECT_GT(count(KeeperCounter::kMalformed), 100u);
}

TEST_F(HostileTest, FlagsOfANamespaceThatNobodyKnowsAreRefused) {
  const std::uint64_t before = count(KeeperCounter::kNamespaces);
  for (std::uint32_t bit = 1; bit < 32; ++bit) {
    for (const std::uint32_t flags : {1u << bit, 1u << bit | kNamespaceIfThere}) {
      EXPECT_EQ(said(RawClient::head_of(Op::kNamespace, 0, NamespacePayload{77, bit, flags})),
                Code::kInvalidArgument);
    }
  }
  EXPECT_EQ(count(KeeperCounter::kNamespaces), before);
  // What is refused to a client without a namespace: number 0 is none.
  const std::vector<BlockUse> uses = attacker_->grant(1);
  ASSERT_EQ(uses.size(), 1u);
  const CommitItem item = RawClient::item(900, uses[0]);
  EXPECT_TRUE(attacker_->commit(0, nullptr, {&item, 1}).empty());
}

}  // namespace
}  // namespace cachalot::pool
