// Who falls silent, dies, wakes up or comes back: suspicion, evidence, in-doubt commits, takeover,
// pinned reads.

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

#include "base/fail_point.h"
#include "pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kSuspectAfterNs = 100'000;

ProcessIdentity process(std::uint32_t pid) { return {0, pid, 1, 1000 + pid, 5, 6}; }

ClientOptions as_process(std::uint32_t pid) {
  ClientOptions options;
  options.pid = pid;
  options.pid_namespace = 1;
  options.start_time = 1000 + pid;
  options.boot_id_low = 5;
  options.boot_id_high = 6;
  options.grant_target = 8;
  return options;
}

// An oracle: who has exited is who it was told of.
class ToldEvidence final : public Evidence {
 public:
  bool has_exited(const ProcessIdentity& who) override {
    for (const ProcessIdentity& one : gone) {
      if (one == who) return true;
    }
    return false;
  }
  std::vector<ProcessIdentity> gone;
};

class FaultTest : public ::testing::Test {
 public:
  // The keeper's time passes; nobody else does anything.
  void let_time_pass() {
    for (int i = 0; i < 300; ++i) pool_.keeper().tend();
  }

 protected:
  void SetUp() override {
    pool_.evidence = &evidence_;
    start();
  }
  void start() {
    KeeperOptions options;
    options.suspect_after_ns = kSuspectAfterNs;
    options.max_grants = 16;
    pool_.start_keeper(options);
  }
  void expect_counts(std::uint64_t granted, std::uint64_t quarantined) {
    const KeeperCounters& counters = pool_.keeper().counters();
    EXPECT_EQ(counters[KeeperCounter::kGranted], granted);
    EXPECT_EQ(counters[KeeperCounter::kQuarantined], quarantined);
    std::uint64_t sum = 0;
    for (const KeeperCounter state :
         {KeeperCounter::kFree, KeeperCounter::kGranted, KeeperCounter::kLive,
          KeeperCounter::kLimbo, KeeperCounter::kQuarantined, KeeperCounter::kBad}) {
      sum += counters[state];
    }
    EXPECT_EQ(sum, pool_.access().geometry.blocks);
    EXPECT_TRUE(pool_.keeper().is_valid());
  }
  std::uint64_t count(KeeperCounter counter) { return pool_.keeper().counters()[counter]; }
  std::uint32_t held(std::uint32_t slot) {
    return pool_.line_at<ViewLine>(pool_.access().layout.view_line(keeper_slot(), slot)).flags & kViewHeld;
  }
  std::uint32_t keeper_slot() { return DirectoryReader(pool_.access()).read_keepers().keeper; }

  ToldEvidence evidence_;
  TestPool pool_;
};

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
  EXPECT_EQ(operating->fence(0).error().code, Code::kBusy);
  EXPECT_EQ(operating->fence(1).error().code, Code::kNotFound);
  EXPECT_EQ(operating->fence(3).error().code, Code::kInvalidArgument);
  for (int i = 0; i < 300; ++i) {
    pool_.keeper().tend();
    operating->renew();
  }
  const std::uint64_t quarantined = count(KeeperCounter::kQuarantined);
  const auto released = operating->fence(0);
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
  pool_.keeper().poll();  // executes it; nobody has taken the answer
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
  client.reset();  // nobody answers it
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

TEST_F(FaultTest, AnOldKeeperThatWakesUpIsOverAndWhatItOverwroteIsRepaired) {
  pool_.scrub_lines = 1u << 20;
  start();
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 4);
  // A stalled keeper: another one takes over while this one stays where it is.
  StepClock clock;
  KeeperOptions options;
  options.use_doorbells = false;
  options.tend_interval_ns = 1;
  options.scrub_lines = 1u << 20;
  auto next = Keeper::start(pool_.access(), options, clock, &evidence_);
  ASSERT_TRUE(next);
  EXPECT_EQ((*next)->counters()[KeeperCounter::kLive], 4u);
  // The old one wakes in the middle of an eviction: its tombstone hides an entry, for a while.
  const Entry entry = pool_.entry_of(hash_of(4));
  EXPECT_TRUE(entry.state == kEntryLive);
  Entry tombstone{};
  tombstone.block = tombstone.parent = kNoBlock;
  tombstone.state = kEntryFree;
  tombstone.epoch = 1;
  const std::uint32_t slots = pool_.access().geometry.directory_slots;
  const Home home = home_of(hash_of(4), client->namespace_id(), slots);
  pool_.put_line(pool_.access().layout.entry(home.slot), tombstone);
  EXPECT_EQ(pool_.read(*client, 1, 4), 3u);
  (*next)->tend();
  EXPECT_EQ(pool_.read(*client, 1, 4), 4u);
  EXPECT_GE((*next)->counters()[KeeperCounter::kRepairedLines], 1u);
  pool_.keeper().tend();
  EXPECT_TRUE(pool_.keeper().is_deposed());
  EXPECT_EQ(pool_.keeper().poll(), 0u);
}

#ifdef CACHALOT_FAIL_POINTS
TestPool* pool_to_take_over = nullptr;
Keeper* keeper_in_between = nullptr;
StepClock clock_of_keeper_in_between;

TEST_F(FaultTest, AKeeperThatWakesUpInItsTakeoverWritesNoMore) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 4);
  pool_.kill_keeper();
  // It stalls just before it writes the directory, and another one does everything.
  pool_to_take_over = &pool_;
  base::fail_point_handler = [](base::FailPoint point) {
    if (point != base::FailPoint::kTakeoverLedgerRead || pool_to_take_over == nullptr) return;
    KeeperOptions options;
    options.use_doorbells = false;
    auto keeper = Keeper::start(std::exchange(pool_to_take_over, nullptr)->access(), options, clock_of_keeper_in_between);
    ASSERT_TRUE(keeper) << keeper.error().message;
    keeper_in_between = keeper->release();
  };
  start();
  base::fail_point_handler = nullptr;
  const std::unique_ptr<Keeper> next(std::exchange(keeper_in_between, nullptr));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->epoch(), 3u);
  EXPECT_TRUE(pool_.keeper().is_deposed());
  EXPECT_EQ(pool_.keeper().poll(), 0u);
  for (std::uint64_t name = 1; name <= 4; ++name) EXPECT_EQ(pool_.entry_of(hash_of(name)).epoch, 3u);
  const KeeperView view = DirectoryReader(pool_.access()).read_keepers();
  EXPECT_EQ(view.epoch, 3u);
  EXPECT_EQ(view.min_epoch, 3u);
}
#endif

// The coherent domain; runs `first` just before the first line is written by way of it.
class InterruptedDomain final : public memory::Domain {
 public:
  explicit InterruptedDomain(std::function<void()> first) : first_(std::move(first)) {}
  memory::DomainKind kind() const override { return inner_->kind(); }
  bool writes_whole_lines() const override { return inner_->writes_whole_lines(); }
  void write_lines(void* to, const memory::Line* lines, std::size_t n) override {
    if (const auto first = std::exchange(first_, nullptr)) first();
    inner_->write_lines(to, lines, n);
  }
  void read_lines(const void* from, std::size_t n, memory::Line* lines) override { inner_->read_lines(from, n, lines); }
  void gather_lines(const void* const* from, std::size_t n, memory::Line* lines) override {
    inner_->gather_lines(from, n, lines);
  }
  void write_bulk(void* to, const void* from, std::size_t n, memory::FusedHash* hash) override {
    inner_->write_bulk(to, from, n, hash);
  }
  void read_bulk(void* to, const void* from, std::size_t n, memory::FusedHash* hash) override {
    inner_->read_bulk(to, from, n, hash);
  }
  void order() override { inner_->order(); }
  void complete() override { inner_->complete(); }

 private:
  std::unique_ptr<memory::Domain> inner_ = memory::make_coherent_domain();
  std::function<void()> first_;
};

// What it grants in between stands in its ledger only.
TEST_F(FaultTest, AKeeperThatFinishesWhileTheNextOneAnnouncesItselfIsInheritedFrom) {
  pool_.kill_keeper();
  std::unique_ptr<Client> client;
  InterruptedDomain domain([&] {
    start();
    client = pool_.attach(0, as_process(7));
    pool_.put(*client, 1, 2);
  });
  const auto access = make_access({7, 8}, pool_.access().geometry, pool_.access().view, domain);
  ASSERT_TRUE(access) << access.error().message;
  StepClock clock;
  KeeperOptions options;
  options.use_doorbells = false;
  options.avoid_slots = 0b0010;  // where the one in between is
  const auto next = Keeper::start(*access, options, clock, &evidence_);
  ASSERT_TRUE(next) << next.error().message;
  ASSERT_TRUE(client);
  EXPECT_GT((*next)->epoch(), pool_.keeper().epoch());
  EXPECT_EQ((*next)->counters()[KeeperCounter::kLive], 2u);
  EXPECT_EQ((*next)->counters()[KeeperCounter::kQuarantined], client->grants_held());
  EXPECT_GT(client->grants_held(), 0u);
  EXPECT_EQ(DirectoryReader(pool_.access()).read_keepers().min_epoch, (*next)->epoch());
  EXPECT_TRUE((*next)->is_valid());
}

TEST_F(FaultTest, AKeeperThatIsTakenOverFromBeforeItHasFinishedNeverFinishes) {
  pool_.kill_keeper();
  StepClock clock;
  KeeperOptions options;
  options.use_doorbells = false;
  auto slow = Keeper::prepare(pool_.access(), options, clock, &evidence_);
  ASSERT_TRUE(slow);
  ASSERT_TRUE((*slow)->announce(0));
  (*slow)->take_over();
  const std::uint32_t epoch = (*slow)->epoch();
  start();
  (*slow)->begin_to_serve();
  EXPECT_TRUE((*slow)->is_deposed());
  const KeeperLine line = pool_.line_at<KeeperLine>(pool_.access().layout.keeper_line(1));
  EXPECT_EQ(line.epoch, epoch);
  EXPECT_NE(line.min_epoch, epoch);
}

TEST_F(FaultTest, AKeeperTakesNoAreaOfAProcessThatStillRuns) {
  KeeperOptions options;
  options.avoid_slots = 0b1110;
  // Area 0 is the predecessor's: its ledger is needed.
  EXPECT_EQ(Keeper::next_area(pool_.access(), options.avoid_slots).error().code, Code::kBusy);
  options.avoid_slots = 0b0110;
  EXPECT_EQ(*Keeper::next_area(pool_.access(), options.avoid_slots), 3u);
}

TEST_F(FaultTest, AKeeperLineThatTearsInItsLastStoresIsNotForgotten) {
  const auto client = pool_.attach(0, as_process(7));
  pool_.put(*client, 1, 3);
  const std::uint64_t granted = count(KeeperCounter::kGranted);
  pool_.kill_keeper();
  pool_.damage(pool_.access().layout.keeper_line(0), 40);
  start();
  EXPECT_EQ(pool_.keeper().epoch(), 2u);
  EXPECT_EQ(count(KeeperCounter::kLive), 3u);
  expect_counts(0, granted);
}

TEST_F(FaultTest, BlocksOfADamagedLedgerLineAreFreeWhenNobodyIsLeftWhoCouldHoldThem) {
  const auto a = pool_.attach(0, as_process(7)), b = pool_.attach(1, as_process(8));
  pool_.put(*a, 1, 1);
  pool_.put(*b, 50, 1);
  pool_.kill_keeper();
  pool_.damage(pool_.access().layout.ledger_line(0, 0));
  start();
  const std::uint64_t quarantined = count(KeeperCounter::kQuarantined);
  ASSERT_GT(quarantined, 0u);
  evidence_.gone.push_back(process(7));
  for (int i = 0; i < 10; ++i) pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kQuarantined), 0u);  // b's, and what may be b's
  ASSERT_TRUE(b->reattach(0));
  for (int i = 0; i < 10; ++i) pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

class PinTest : public FaultTest {
 protected:
  std::unique_ptr<Client> reader() {
    ClientOptions options = as_process(20);
    options.pins = true;
    return pool_.attach(1, options);
  }
  // Stores so much that nothing of before is published any more. All that goes meanwhile rests while
  // anybody pins, so that there is an end to what can be stored.
  void churn(Client& writer) {
    for (std::uint64_t round = 0; round < 5; ++round) pool_.put(writer, next_ += 100, 16);
  }
  std::uint64_t next_ = 1000;
};

TEST_F(PinTest, WhatWasLookedUpAfterAPinStaysUntilItEnds) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 8);
  const auto pin = client->pin();
  ASSERT_TRUE(pin);
  BlockHash hashes[8];
  Found found[8];
  for (int i = 0; i < 8; ++i) hashes[i] = hash_of(1 + i);
  ASSERT_EQ(client->lookup(hashes, found), 8u);
  churn(*writer);
  Found now[8];
  EXPECT_EQ(client->lookup(hashes, now), 0u);  // evicted long ago
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  for (int i = 0; i < 8; ++i) {
    const auto expected = payload_of(1 + i, found[i].entry.length);
    std::vector<std::byte> bytes(found[i].entry.length);
    std::uint64_t at = 0;
    pool_.access().for_each_extent(found[i].entry.block, bytes.size(), [&](std::byte* from, std::uint64_t n) {
      std::memcpy(bytes.data() + at, from, n);
      at += n;
    });
    EXPECT_EQ(bytes, expected) << i;
  }
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(PinTest, TheOldestOfSeveralPinsCounts) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 2);
  const auto first = client->pin(), second = client->pin();
  churn(*writer);
  pool_.keeper().tend();  // looks at the pins after the last tombstone
  const auto third = client->pin();
  client->unpin(*second);
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*first);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);  // the third came after the tombstones
  client->unpin(*third);
}

TEST_F(PinTest, APinOutlivesItsKeeper) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  const auto pin = client->pin();
  pool_.kill_keeper();
  start();
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  expect_counts(0, count(KeeperCounter::kQuarantined));
  ASSERT_TRUE(client->reattach(0));
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
}

// Whoever gives up an attempt to enter says in its line that it stores no more; it may read all the same.
TEST_F(PinTest, APinOutlivesAnAttachmentThatNobodyAnswered) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  const auto pin = client->pin();
  ASSERT_TRUE(pin);
  Found found[1];
  const BlockHash hash = hash_of(1);
  ASSERT_EQ(client->lookup({&hash, 1}, found), 1u);
  pool_.kill_keeper();
  start();
  pool_.let_keeper_sleep(true);
  EXPECT_EQ(client->reattach(0).error().code, Code::kNoKeeper);
  pool_.let_keeper_sleep(false);
  pool_.keeper().tend();
  ASSERT_TRUE(writer->reattach(0));
  ASSERT_TRUE(writer->evict(hash));
  const auto filling = payload_of(99, 256);
  Verdict verdict{};
  for (std::uint64_t name = 5000; name < 5300; ++name) {
    (void)writer->put(nullptr, {{{hash_of(name), filling}}}, {&verdict, 1});
  }
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  const auto expected = payload_of(1, found[0].entry.length);
  std::vector<std::byte> bytes;
  pool_.access().for_each_extent(
      found[0].entry.block, expected.size(),
      [&](std::byte* from, std::uint64_t n) { bytes.insert(bytes.end(), from, from + n); });
  EXPECT_TRUE(bytes == expected) << "somebody else's";
  ASSERT_TRUE(client->reattach(0));
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(PinTest, ADeadReadersPinEndsWithEvidence) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  (void)client->pin();
  churn(*writer);
  for (int i = 0; i < 300; ++i) {
    pool_.keeper().tend();
    writer->renew();
  }
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);  // silent is not dead
  evidence_.gone.push_back(process(20));
  pool_.keeper().tend();
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
}

TEST_F(PinTest, WhoKeepsAskingForBlocksUnderAPinDoesNotEmptyThePool) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  for (std::uint64_t round = 0; round < 5; ++round) pool_.put(*writer, next_ += 100, 16);
  const auto pin = client->pin();
  const auto bytes = payload_of(1, 256);
  Verdict verdict{};
  for (int i = 0; i < 500; ++i) (void)writer->put(nullptr, {{{hash_of(5000 + i), bytes}}}, {&verdict, 1});
  EXPECT_GE(count(KeeperCounter::kLive) + 16, pool_.access().geometry.capacity_blocks);  // max_grants
  client->unpin(*pin);
  pool_.keeper().tend();
  ASSERT_TRUE(writer->put(nullptr, {{{hash_of(9999), bytes}}}, {&verdict, 1}));
  EXPECT_EQ(verdict, Verdict::kCommitted);
}

TEST_F(PinTest, WhoDidNotSayThatItPinsMayNot) {
  const auto client = pool_.attach(0, as_process(7));
  EXPECT_EQ(client->pin().error().code, Code::kUnsupported);
}

TEST_F(FaultTest, ASuspectIsCalledOneUntilItReturnsLeavesOrDies) {
  const auto flags = [&] {
    return pool_.line_at<ViewLine>(pool_.access().layout.view_line(
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
