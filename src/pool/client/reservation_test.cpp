// Blocks that any thread writes in place, at any time, and publishes afterwards.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <type_traits>

#include "pool/client/client.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class ReservationTest : public ::testing::Test {
 protected:
  ReservationTest() { pool_.start_keeper(); }

  // One that can vouch for its own copies.
  static ClientOptions engine() {
    ClientOptions options;
    options.pid = 7;
    options.timeout_ns = 1'000'000;
    return options;
  }
  // As an engine's own copy loop would, from whatever thread.
  WrittenBlock write(const BlockUse& use, std::uint64_t name) {
    const auto length = static_cast<std::uint32_t>(pool_.size_of(name));
    const std::vector<std::byte> bytes = payload_of(name, length);
    std::uint64_t at = 0;
    std::vector<std::byte> padded(padded_bytes(length));
    std::copy(bytes.begin(), bytes.end(), padded.begin());
    pool_.access().for_each_extent(use.block, padded.size(), [&](std::byte* to, std::uint64_t n) {
      pool_.domain().write_bulk(to, padded.data() + at, n);
      at += n;
    });
    pool_.domain().order();
    return {hash_of(name), length, {}};
  }
  Reservation reserve(Client& client, std::uint32_t blocks) {
    Result<Reservation> reservation = client.reserve(blocks);
    EXPECT_TRUE(reservation) << (reservation ? "" : reservation.error().message);
    return reservation ? *std::move(reservation) : Reservation();
  }
  OpenReservation open(Client& client, std::uint32_t blocks) {
    Result<OpenReservation> opened = reserve(client, blocks).begin();
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return *std::move(opened);
  }
  std::vector<WrittenBlock> write_all(const OpenReservation& reservation, std::uint64_t first) {
    std::vector<WrittenBlock> written;
    for (const BlockUse& use : reservation.uses()) written.push_back(write(use, first++));
    return written;
  }
  std::uint64_t count(KeeperCounter counter) { return pool_.keeper().counters()[counter]; }

  TestPool pool_;
};

TEST_F(ReservationTest, WhatWasWrittenInPlaceIsPublishedAsAChain) {
  const auto client = pool_.attach(0, engine());
  OpenReservation reservation = open(*client, 3);
  const auto written = write_all(reservation, 1);
  Verdict verdicts[3];
  ASSERT_TRUE(client->commit(nullptr, std::move(reservation).end(), written, verdicts));
  for (const Verdict verdict : verdicts) EXPECT_EQ(verdict, Verdict::kCommitted);
  EXPECT_EQ(pool_.read(*client, 1, 3), 3u);
  EXPECT_EQ(pool_.entry_of(hash_of(2)).parent, pool_.entry_of(hash_of(1)).block);
}

TEST_F(ReservationTest, WhatIsNotCommittedIsWrittenIntoAgain) {
  const auto client = pool_.attach(0, engine());
  OpenReservation first = open(*client, 4);
  const auto written = write_all(first, 1);
  Verdict verdicts[4];
  ASSERT_TRUE(client->commit(nullptr, std::move(first).end(), {written.data(), 1}, verdicts));
  (void)reserve(*client, 2);
  (void)open(*client, 2).end();
  ASSERT_TRUE(client->detach());
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
  EXPECT_EQ(count(KeeperCounter::kLive), 1u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(ReservationTest, NumbersOutOfRangeAreRefusedAndNothingIsLost) {
  const auto client = pool_.attach(0, engine());
  EXPECT_EQ(client->reserve(0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(client->reserve(kMaxCommitItems + 1).error().code, Code::kInvalidArgument);
  const std::uint32_t held = client->grants().held();
  OpenReservation reservation = open(*client, 1);
  const auto written = write_all(reservation, 1);
  const std::vector<WrittenBlock> two = {written[0], written[0]};
  Verdict verdicts[2];
  EXPECT_EQ(client->commit(nullptr, std::move(reservation).end(), two, verdicts).error().code,
            Code::kInvalidArgument);
  EXPECT_GE(client->grants().held(), held);
}

TEST_F(ReservationTest, AnotherKeeperMakesItVoid) {
  const auto client = pool_.attach(0, engine());
  OpenReservation before = open(*client, 2);
  auto written = write_all(before, 1);
  Reservation unwritten = reserve(*client, 1);
  pool_.kill_keeper();
  pool_.start_keeper();
  Verdict verdicts[2];
  EXPECT_EQ(client->commit(nullptr, std::move(before).end(), written, verdicts).error().code,
            Code::kStale);
  EXPECT_EQ(pool_.read(*client, 1, 2), 0u);
  OpenReservation after = open(*client, 2);  // attaches again
  EXPECT_EQ(std::move(unwritten).begin().error().code, Code::kStale);
  EXPECT_EQ(unwritten.uses().size(), 1u) << "it stays as it was";
  written = write_all(after, 1);
  ASSERT_TRUE(client->commit(nullptr, std::move(after).end(), written, verdicts));
  EXPECT_EQ(pool_.read(*client, 1, 2), 2u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(ReservationTest, NobodyVouchesForCopiesThatAreUnderWay) {
  const auto client = pool_.attach(0, engine());
  OpenReservation reservation = open(*client, 1);
  pool_.kill_keeper();
  pool_.start_keeper();
  EXPECT_EQ(client->reattach(0).error().code, Code::kBusy);
  std::thread copier([&] { (void)std::move(reservation).end(); });
  copier.join();
  ASSERT_TRUE(client->reattach(0));
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(ReservationTest, WhoLeavesWithCopiesUnderWayLeavesItsBlocksHeld) {
  auto client = pool_.attach(0, engine());
  const OpenReservation reservation = open(*client, 1);
  EXPECT_EQ(client->detach().error().code, Code::kBusy);
  EXPECT_FALSE(client->has_left());
  EXPECT_GT(count(KeeperCounter::kGranted), 0u);
  const auto line = pool_.line_at<ClientLine>(pool_.access().layout.client_line(0));
  EXPECT_EQ(line.drained, 0u);
}

TEST_F(ReservationTest, WhoHasLeftStoresIntoItNoMore) {
  const auto client = pool_.attach(0, engine());
  WrittenReservation written = open(*client, 1).end();
  Reservation unwritten = reserve(*client, 1);
  ASSERT_TRUE(client->detach());
  EXPECT_TRUE(client->has_left());
  EXPECT_EQ(std::move(written).begin().error().code, Code::kStale);
  EXPECT_EQ(std::move(unwritten).begin().error().code, Code::kStale);
  EXPECT_FALSE(client->may_still_store());
}

// A device that failed in a copy stores when it likes.
TEST_F(ReservationTest, WhatIsWithheldIsNotUsedAgainAndNobodyVouchesForIt) {
  auto client = pool_.attach(0, engine());
  OpenReservation lost = open(*client, 2);
  const std::vector<BlockUse> uses(lost.uses().begin(), lost.uses().end());
  std::move(lost).withhold();
  // It goes on while its keeper knows it.
  for (std::uint64_t name = 1; name < 200; ++name) {
    OpenReservation reservation = open(*client, 1);
    for (const BlockUse& use : uses) ASSERT_NE(reservation.uses()[0].block, use.block);
    const auto written = write_all(reservation, name);
    Verdict verdict;
    ASSERT_TRUE(client->commit(nullptr, std::move(reservation).end(), written, {&verdict, 1}));
  }
  const auto line = [&] { return pool_.line_at<ClientLine>(pool_.access().layout.client_line(0)); };
  const std::uint32_t incarnation = line().incarnation;
  const Status left = client->detach();
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().code, Code::kIo);
  EXPECT_EQ(line().drained, 0u);
  EXPECT_GE(count(KeeperCounter::kGranted), 2u);
  EXPECT_EQ(line().incarnation, incarnation);
  EXPECT_TRUE(client->may_still_store());
}

TEST_F(ReservationTest, WhoWithholdsBlocksDoesNotAttachAgain) {
  const auto client = pool_.attach(0, engine());
  open(*client, 1).withhold();
  const auto incarnation = [&] {
    return pool_.line_at<ClientLine>(pool_.access().layout.client_line(0)).incarnation;
  };
  const std::uint32_t before = incarnation();
  pool_.kill_keeper();
  pool_.start_keeper();
  client->renew();  // notices it
  for (int call = 0; call < 2; ++call) {
    const Result<Reservation> refused = client->reserve(1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kIo);
  }
  EXPECT_EQ(incarnation(), before);
  EXPECT_GE(count(KeeperCounter::kQuarantined), 1u);
}

TEST_F(ReservationTest, WhoNoticesOnlyThenThatTheKeeperIsAnotherAsksThatOne) {
  const auto client = pool_.attach(0, engine());  // holds nothing yet: it has to ask
  pool_.kill_keeper();
  pool_.start_keeper();
  EXPECT_EQ(reserve(*client, 2).uses().size(), 2u);
}

// --- States

template <class R>
concept CanBegin = requires(R r) {
  std::move(r).begin();
};
template <class R>
concept CanEnd = requires(R r) {
  std::move(r).end();
};
template <class R>
concept CanBeginTwice = requires(R r) {
  r.begin();
};
template <class R>
concept CanCommit = requires(Client c, R r) {
  c.commit(nullptr, std::move(r), {}, {});
};
static_assert(CanBegin<Reservation> && !CanEnd<Reservation> && !CanCommit<Reservation>);
static_assert(!CanBegin<OpenReservation> && CanEnd<OpenReservation> && !CanCommit<OpenReservation>);
static_assert(CanBegin<WrittenReservation> && !CanEnd<WrittenReservation> &&
              CanCommit<WrittenReservation>);
static_assert(!CanBeginTwice<Reservation> && !CanBeginTwice<WrittenReservation>);
static_assert(!std::is_copy_constructible_v<Reservation> &&
              !std::is_copy_constructible_v<OpenReservation> &&
              !std::is_copy_constructible_v<WrittenReservation>);

TEST_F(ReservationTest, WhatIsDroppedBeforeOrAfterItsCopiesIsUsedAgain) {
  const auto client = pool_.attach(0, engine());
  (void)reserve(*client, 1);
  const std::uint32_t held = client->grants().held();
  { const Reservation dropped = reserve(*client, 2); }
  EXPECT_EQ(client->grants().held(), held);
  { const WrittenReservation dropped = open(*client, 2).end(); }
  EXPECT_EQ(client->grants().held(), held);
  Reservation assigned = reserve(*client, 2);
  assigned = reserve(*client, 3);  // drops the first
  EXPECT_EQ(client->grants().held(), held - 3);
  assigned = Reservation();
  EXPECT_FALSE(client->may_still_store());
  EXPECT_TRUE(client->detach());
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
}

TEST_F(ReservationTest, WhatIsDroppedWhileItIsWrittenIsWithheld) {
  const auto client = pool_.attach(0, engine());
  (void)reserve(*client, 1);
  const std::uint32_t held = client->grants().held();
  { const OpenReservation dropped = open(*client, 2); }
  EXPECT_EQ(client->grants().held(), held - 2);
  EXPECT_TRUE(client->may_still_store());
  EXPECT_EQ(client->detach().error().code, Code::kIo);
  EXPECT_GE(count(KeeperCounter::kGranted), 2u);
}

TEST_F(ReservationTest, ABlockMayBeWrittenInPortions) {
  const auto client = pool_.attach(0, engine());
  WrittenReservation half = open(*client, 1).end();
  EXPECT_FALSE(client->may_still_store());
  Result<OpenReservation> again = std::move(half).begin();
  ASSERT_TRUE(again);
  EXPECT_TRUE(client->may_still_store());
  EXPECT_TRUE(half.uses().empty());  // NOLINT(bugprone-use-after-move): of no blocks any more
  const auto written = write_all(*again, 1);
  Verdict verdict;
  ASSERT_TRUE(client->commit(nullptr, (*std::move(again)).end(), written, {&verdict, 1}));
  EXPECT_EQ(verdict, Verdict::kCommitted);
  EXPECT_EQ(pool_.read(*client, 1, 1), 1u);
}

TEST_F(ReservationTest, AnotherClientsIsNotCommitted) {
  const auto client = pool_.attach(0, engine()), other = pool_.attach(1, engine());
  OpenReservation reservation = open(*client, 1);
  const auto written = write_all(reservation, 1);
  Verdict verdict;
  const Status refused =
      other->commit(nullptr, std::move(reservation).end(), written, {&verdict, 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_EQ(pool_.read(*client, 1, 1), 0u);
  EXPECT_TRUE(client->detach());
  EXPECT_TRUE(other->detach());
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
}

TEST_F(ReservationTest, OfAKeeperThatIsGoneNothingComesBack) {
  const auto client = pool_.attach(0, engine());
  Reservation unwritten = reserve(*client, 1);
  pool_.kill_keeper();
  pool_.start_keeper();
  ASSERT_TRUE(client->reattach(0));
  unwritten = Reservation();
  EXPECT_EQ(client->grants().held(), 0u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(ReservationTest, OneThatOutlivesItsClientIsOfNoBlocks) {
  auto client = pool_.attach(0, engine());
  Reservation unwritten = reserve(*client, 1);
  WrittenReservation written = open(*client, 1).end();
  client.reset();
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
  EXPECT_EQ(std::move(unwritten).begin().error().code, Code::kStale);
  EXPECT_EQ(std::move(written).begin().error().code, Code::kStale);
}

TEST_F(ReservationTest, ThreadsDropTheirsWhileTheClientIsUsed) {
  const auto client = pool_.attach(0, engine());
  for (int round = 0; round < 50; ++round) {
    std::vector<Reservation> taken;
    for (int i = 0; i < 8; ++i) taken.push_back(reserve(*client, 2));
    std::thread dropper([&] {
      for (Reservation& reservation : taken) {
        Result<OpenReservation> opened = std::move(reservation).begin();
        EXPECT_TRUE(opened);
        (void)(*std::move(opened)).end();
      }
    });
    pool_.put(*client, 1 + static_cast<std::uint64_t>(round), 1);
    dropper.join();
  }
  EXPECT_TRUE(client->detach());
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

// --- Deadlines

ClientOptions patient() {
  ClientOptions options;
  options.pid = 7;
  options.timeout_ns = options.recovery_ns = 3'600'000'000'000;
  return options;
}

TEST_F(ReservationTest, ADeadlineBoundsTheWaitForAKeeperThatSleeps) {
  const auto client = pool_.attach(0, patient());
  pool_.let_keeper_sleep(true);
  const std::uint64_t deadline_ns = pool_.clock().now_ns() + 100'000;
  client->set_deadline(deadline_ns);
  EXPECT_EQ(client->reserve(1).error().code, Code::kTimeout);
  EXPECT_LT(pool_.clock().now_ns(), deadline_ns + 1'000'000);
  pool_.let_keeper_sleep(false);
  client->set_deadline(Client::kNever);
  (void)reserve(*client, 1);
}

TEST_F(ReservationTest, ADeadlineBoundsTheWaitForAKeeperThatIsGone) {
  const auto client = pool_.attach(0, patient());
  pool_.stop_keeper();
  const std::uint64_t deadline_ns = pool_.clock().now_ns() + 100'000;
  client->set_deadline(deadline_ns);
  EXPECT_EQ(client->reserve(1).error().code, Code::kTimeout);
  EXPECT_LT(pool_.clock().now_ns(), deadline_ns + 1'000'000);
}

// Calls whose time is too short to attach again do it together.
TEST_F(ReservationTest, AnAttachmentGoesOnWhereTheLastCallLeftIt) {
  const auto client = pool_.attach(0, patient());
  pool_.kill_keeper();
  pool_.start_keeper();
  pool_.let_keeper_sleep(true);
  const auto incarnation = [&] {
    return pool_.line_at<ClientLine>(pool_.access().layout.client_line(0)).incarnation;
  };
  const std::uint32_t before = incarnation();
  for (int call = 0; call < 5; ++call) {
    client->set_deadline(pool_.clock().now_ns() + 50'000);
    EXPECT_EQ(client->reserve(1).error().code, Code::kTimeout);
    EXPECT_EQ(incarnation(), before + 1);
  }
  pool_.let_keeper_sleep(false);
  client->set_deadline(Client::kNever);
  (void)reserve(*client, 1);
  EXPECT_EQ(incarnation(), before + 1);
}

TEST_F(ReservationTest, WhatIsInDoubtIsAskedOnceHoweverManyCallsItTakes) {
  const auto client = pool_.attach(0, patient());
  (void)reserve(*client, 8);
  pool_.let_keeper_sleep(true);
  const auto bytes = payload_of(1, 100);
  for (std::uint64_t name = 1; name <= 5; ++name)
    ASSERT_TRUE(client->post_put(nullptr, {hash_of(name), bytes}));
  pool_.kill_keeper();
  pool_.start_keeper();
  pool_.let_keeper_sleep(false);
  client->renew();  // notices it
  int calls = 0;
  for (std::uint64_t time_ns = 1000;; time_ns += 1000, ++calls) {
    client->set_deadline(pool_.clock().now_ns() + time_ns);
    Result<Reservation> reserved = client->reserve(1);
    if (!reserved) {
      ASSERT_EQ(reserved.error().code, Code::kTimeout);
      continue;
    }
    break;
  }
  EXPECT_GT(calls, 1);
  client->set_deadline(Client::kNever);
  EXPECT_EQ(client->counters()[ClientCounter::kRefused], 5u);  // the dead keeper had not seen them
  EXPECT_TRUE(client->drain());
  EXPECT_TRUE(client->detach());
  EXPECT_EQ(count(KeeperCounter::kGranted) + count(KeeperCounter::kQuarantined), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

}  // namespace
}  // namespace cachalot::pool
