// Keepers that wake up in another's time, and what a keeper finds of those before it.
#include <functional>
#include <utility>

#include "base/fail_point.h"
#include "memory/forwarding_domain.h"
#include "testing/pool/test_faults.h"

namespace cachalot::pool {
namespace {

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
    auto keeper = Keeper::start(std::exchange(pool_to_take_over, nullptr)->access(), options,
                                clock_of_keeper_in_between);
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
  for (std::uint64_t name = 1; name <= 4; ++name)
    EXPECT_EQ(pool_.entry_of(hash_of(name)).epoch, 3u);
  const KeeperView view = DirectoryReader(pool_.access()).read_keepers();
  EXPECT_EQ(view.epoch, 3u);
  EXPECT_EQ(view.min_epoch, 3u);
}
#endif

// The coherent domain; runs `first` just before the first line is written by way of it.
class InterruptedDomain final : public memory::ForwardingDomain {
 public:
  explicit InterruptedDomain(std::function<void()> first) : first_(std::move(first)) {}
  void write_lines(void* to, const memory::Line* lines, std::size_t n) override {
    if (const auto first = std::exchange(first_, nullptr)) first();
    ForwardingDomain::write_lines(to, lines, n);
  }

 private:
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
  EXPECT_EQ((*next)->counters()[KeeperCounter::kQuarantined], client->grants().held());
  EXPECT_GT(client->grants().held(), 0u);
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
  EXPECT_EQ(next_keeper_area(pool_.access(), options.avoid_slots).error().code, Code::kBusy);
  options.avoid_slots = 0b0110;
  EXPECT_EQ(*next_keeper_area(pool_.access(), options.avoid_slots), 3u);
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

}  // namespace
}  // namespace cachalot::pool
