// Clients that fall silent, die or come back: suspicion, evidence, commits in doubt.
#include "testing/pool/test_faults.h"

namespace cachalot::pool {
namespace {

TEST_F(FaultTest, WhoIsSilentIsSuspectedAndItsGrantsAreQuarantined) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 2);
  const std::uint64_t granted = count(KeeperCounter::kGranted);
  ASSERT_GT(granted, 0u);
  let_time_pass();
  EXPECT_EQ(count(KeeperCounter::kSuspicions), 1u);
  expect_counts(0, granted);
  EXPECT_NE(held(0), 0u);
  // What it published stays, and it may read.
  EXPECT_EQ(pool_.read(*client, 1, 2), 2u);
}

TEST_F(FaultTest, WhoRenewsItselfIsNotSuspectedHoweverLongItComputes) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 2);
  for (int i = 0; i < 3000; ++i) {
    pool_.keeper().tend();
    if (i % 10 == 0) client->renew();
  }
  EXPECT_EQ(count(KeeperCounter::kSuspicions), 0u);
  EXPECT_FALSE(client->is_lost());
  // The echo of its heartbeat is in the keeper's view.
  EXPECT_GT(pool_.line_at<ViewLine>(pool_.access().layout.view_line(0, 0)).heartbeat, 10u);
}

TEST_F(FaultTest, ASuspectThatWakesUpAttachesAgainWithinItsNextCall) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 2);
  let_time_pass();
  client->renew();
  EXPECT_TRUE(client->is_lost());
  pool_.put(*client, 10, 3);
  EXPECT_FALSE(client->is_lost());
  EXPECT_EQ(client->counters()[ClientCounter::kReattachments], 1u);
  EXPECT_EQ(pool_.read(*client, 10, 3), 3u);
  // The same process vouched for its old incarnation: nothing stays in quarantine.
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

#ifdef CACHALOT_FAIL_POINTS
// What passes for a client that stands still between its line and its look at the answer.
FaultTest* test_of_standstill = nullptr;

TEST_F(FaultTest, WhoIsTakenForDeadWhileItAttachesEntersAgainAtOnce) {
  test_of_standstill = this;
  base::fail_point_handler = [](base::FailPoint point) {
    if (point != base::FailPoint::kAttachLineWritten || test_of_standstill == nullptr) return;
    std::exchange(test_of_standstill, nullptr)->let_time_pass();
  };
  const std::uint64_t before_ns = pool_.clock().now_ns();
  ClientOptions options = as_process(7);
  options.timeout_ns = 100'000'000;
  const auto client = pool_.try_attach(0, options);
  base::fail_point_handler = nullptr;
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ(count(KeeperCounter::kSuspicions), 1u);
  EXPECT_LT(pool_.clock().now_ns() - before_ns, options.timeout_ns);
  pool_.put(**client, 1, 3);
  EXPECT_EQ(pool_.read(**client, 1, 3), 3u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}
#endif

TEST_F(FaultTest, OnlyEvidenceFreesWhatASuspectHolds) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  let_time_pass();
  const std::uint64_t quarantined = count(KeeperCounter::kQuarantined);
  ASSERT_GT(quarantined, 0u);
  let_time_pass();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), quarantined);  // it is quiet: no evidence
  // Another process in its slot is no evidence either, however often it asks.
  for (int i = 0; i < 3; ++i) {
    const auto other = pool_.try_attach(0, as_process(8));
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, Code::kBusy);
  }
  EXPECT_EQ(count(KeeperCounter::kQuarantined), quarantined);
  // The same pid with another start time is another process.
  evidence_.gone.push_back({0, 7, 1, 1, 5, 6});
  let_time_pass();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), quarantined);
  evidence_.gone.push_back(process(7));
  pool_.keeper().tend();
  expect_counts(0, 0);
  EXPECT_TRUE(pool_.try_attach(0, as_process(8)));
}

TEST_F(FaultTest, WhoExitsWithoutAWordIsGoneAtTheNextLook) {
  auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  evidence_.gone.push_back(process(7));
  pool_.keeper().tend();
  expect_counts(0, 0);
  EXPECT_EQ(count(KeeperCounter::kClients), 0u);
  EXPECT_EQ(count(KeeperCounter::kSuspicions), 0u);
}

TEST_F(FaultTest, AnOperatorsWordIsEvidenceButNotAgainstTheLiving) {
  const auto operating = pool_.attach(2, as_process(9));
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  EXPECT_EQ(operating->requests().fence(0).error().code, Code::kBusy);
  EXPECT_EQ(operating->requests().fence(1).error().code, Code::kNotFound);
  EXPECT_EQ(operating->requests().fence(3).error().code, Code::kInvalidArgument);
  for (int i = 0; i < 300; ++i) {
    pool_.keeper().tend();
    operating->renew();
  }
  const std::uint64_t quarantined = count(KeeperCounter::kQuarantined);
  const auto released = operating->requests().fence(0);
  ASSERT_TRUE(released);
  EXPECT_EQ(*released, quarantined);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(FaultTest, QuarantineIsBoundedBySlotsTimesGrants) {
  for (std::uint32_t pid = 10; pid < 40; ++pid) {
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      auto client = pool_.try_attach(slot, as_process(pid));
      if (!client) continue;
      pool_.put(**client, pid * 10, 1);
      let_time_pass();
    }
  }
  EXPECT_LE(count(KeeperCounter::kQuarantined), 3u * 16u);
}

TEST_F(FaultTest, QuarantineOutlivesAnyNumberOfKeepers) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  const std::uint64_t granted = count(KeeperCounter::kGranted);
  for (int keeper = 0; keeper < 5; ++keeper) {
    pool_.kill_keeper();
    start();
    expect_counts(0, granted);
    EXPECT_NE(held(0), 0u);
  }
  evidence_.gone.push_back(process(7));
  pool_.keeper().tend();
  expect_counts(0, 0);
}

TEST_F(FaultTest, AWriterGoesOnByItselfWithTheNextKeeper) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 2);
  pool_.kill_keeper();
  start();
  pool_.put(*client, 10, 2);
  EXPECT_EQ(pool_.read(*client, 1, 2), 2u);
  EXPECT_EQ(pool_.read(*client, 10, 2), 2u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  EXPECT_EQ(client->epoch(), pool_.keeper().epoch());
}

TEST_F(FaultTest, ACommitThatWasDoneAndNeverAnsweredIsCommitted) {  // W2, W5
  ClientOptions options = as_process(7);
  const auto client = pool_.attach(0, options);
  pool_.put(*client, 1, 1);
  const auto bytes = payload_of(50, 256);
  const PutItem item{hash_of(50), bytes};
  ASSERT_TRUE(client->post_put(nullptr, item));
  pool_.keeper().poll();  // executes it; the answer was not read
  const Entry before = pool_.entry_of(hash_of(50));
  pool_.kill_keeper();
  start();
  const std::uint64_t committed = client->counters()[ClientCounter::kCommitted];
  ASSERT_TRUE(client->reattach(0));
  EXPECT_EQ(client->counters()[ClientCounter::kCommitted], committed + 1);
  const Entry after = pool_.entry_of(hash_of(50));
  EXPECT_EQ(after.block, before.block);
  EXPECT_EQ(after.generation, before.generation);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(FaultTest, ACommitThatWasNeverDoneIsNotAndItsBlockIsNotLost) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  const auto bytes = payload_of(50, 256);
  ASSERT_TRUE(client->post_put(nullptr, {hash_of(50), bytes}));
  pool_.kill_keeper();  // before it looked
  start();
  const std::uint64_t refused = client->counters()[ClientCounter::kRefused];
  ASSERT_TRUE(client->reattach(0));
  EXPECT_EQ(client->counters()[ClientCounter::kRefused], refused + 1);
  EXPECT_EQ(pool_.read(*client, 50, 1), 0u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(FaultTest, AFarewellIsHeardByTheNextKeeper) {
  ClientOptions options = as_process(7);
  options.timeout_ns = 1'000'000;
  auto client = pool_.attach(0, options);
  pool_.put(*client, 1, 1);
  pool_.kill_keeper();
  client.reset();  // it gets no answer
  start();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  EXPECT_EQ(held(0), 0u);
}

// It stands in the line that the next process of the slot writes over, which waits, but not for ever.
TEST_F(FaultTest, AFarewellIsHeardBeforeTheSlotsNextProcessKnocks) {
  ClientOptions options = as_process(7), next = as_process(8);
  options.timeout_ns = next.timeout_ns = 1'000'000;
  auto client = pool_.attach(0, options);
  pool_.put(*client, 1, 1);
  pool_.kill_keeper();
  client.reset();
  pool_.start_keeper_that_has_seen_nobody();
  EXPECT_NE(held(0), 0u);
  pool_.let_keeper_sleep(true);
  EXPECT_EQ(pool_.try_attach(0, next).error().code, Code::kNoKeeper);
  pool_.let_keeper_sleep(false);
  const auto attached = pool_.try_attach(0, next);
  EXPECT_TRUE(attached) << attached.error().message;
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  EXPECT_EQ(held(0), 0u);
}

// A keeper that looks once, half a timeout late, and then sleeps: it reads the detach and not the attach request.
class OneLateLook final : public rpc::Waiter {
 public:
  OneLateLook(TestPool& pool, std::uint64_t at_ns) : pool_(pool), at_ns_(at_ns) {}
  void wait(std::uint32_t) override {
    if (has_looked_ || pool_.clock().now_ns() < at_ns_) return;
    has_looked_ = true;
    for (int i = 0; i < 10; ++i) pool_.keeper().tend();
  }
  bool has_looked() const { return has_looked_; }

 private:
  TestPool& pool_;
  const std::uint64_t at_ns_;
  bool has_looked_ = false;
};

TEST_F(FaultTest, WaitingForAFarewellAndForTheKeeperTakesOneTimeoutTogether) {
  constexpr std::uint64_t kTimeoutNs = 1'000'000;
  ClientOptions next = as_process(8);
  next.timeout_ns = kTimeoutNs;
  next.use_doorbells = false;
  auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  pool_.kill_keeper();
  client.reset();
  pool_.start_keeper_that_has_seen_nobody();
  const std::uint64_t begun_ns = pool_.clock().now_ns();
  OneLateLook waiter(pool_, begun_ns + kTimeoutNs / 2);
  EXPECT_EQ(Client::attach(pool_.access(), 0, next, waiter, pool_.clock()).error().code,
            Code::kNoKeeper);
  EXPECT_TRUE(waiter.has_looked());
  EXPECT_EQ(held(0), 0u) << "the farewell was read";
  EXPECT_LT(pool_.clock().now_ns() - begun_ns, kTimeoutNs * 6 / 5);
}

TEST_F(FaultTest, ALateVerdictDoesNotReachWhoGaveUpWaiting) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 1);
  pool_.let_keeper_sleep(true);
  KeeperLine successor{};  // which dies before it serves
  successor.epoch = pool_.keeper().epoch() + 1;
  successor.min_epoch = pool_.keeper().epoch();
  pool_.put_line(pool_.access().layout.keeper_line((keeper_slot() + 1) % kKeeperSlots), successor);
  const auto bytes = payload_of(50, 256);
  Verdict verdict{};
  ASSERT_FALSE(client->put(nullptr, {{{hash_of(50), bytes}}}, {&verdict, 1}));
  constexpr auto kUntouched = static_cast<Verdict>(99);
  verdict = kUntouched;
  pool_.let_keeper_sleep(false);
  pool_.kill_keeper();
  start();
  const std::uint64_t refused = client->counters()[ClientCounter::kRefused];
  ASSERT_TRUE(client->reattach(0));
  EXPECT_EQ(client->counters()[ClientCounter::kRefused], refused + 1);  // the answer came
  EXPECT_EQ(verdict, kUntouched);
}

TEST_F(FaultTest, ASuspectIsCalledOneUntilItReturnsLeavesOrDies) {
  const auto flags = [&] {
    return pool_
        .line_at<ViewLine>(pool_.access().layout.view_line(
            DirectoryReader(pool_.access()).read_keepers().keeper, 0))
        .flags;
  };
  auto client = pool_.attach(0, as_process(1));  // holds no blocks: nothing is to be quarantined
  EXPECT_EQ(flags(), kViewOpen);
  let_time_pass();
  EXPECT_EQ(flags(), kViewSuspected);
  EXPECT_TRUE(client->reattach(0));
  EXPECT_EQ(flags(), kViewOpen);
  let_time_pass();
  EXPECT_EQ(flags(), kViewSuspected);
  client->renew();
  (void)client->detach();
  let_time_pass();
  EXPECT_EQ(flags(), 0u);
  client = pool_.attach(0, as_process(2));
  let_time_pass();
  EXPECT_EQ(flags(), kViewSuspected);
  evidence_.gone.push_back(process(2));
  let_time_pass();
  EXPECT_EQ(flags(), 0u);
}

}  // namespace
}  // namespace cachalot::pool
