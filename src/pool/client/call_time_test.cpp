// Every call ends by its time, whichever step of the keeper is slow, or stands still for ever.
#include <array>

#include "base/fail_point.h"
#include "testing/pool/test_faults.h"

#ifdef CACHALOT_FAIL_POINTS
namespace cachalot::pool {
namespace {

using base::FailPoint;

constexpr std::uint64_t kTimeoutNs = 20'000'000;  // of a clock that counts 1 us for each look at it

constexpr FailPoint kKeeperSteps[] = {
    FailPoint::kSessionOpened,    FailPoint::kGrantPopped,    FailPoint::kGrantInLedger,
    FailPoint::kGrantAnswered,    FailPoint::kCommitChecked,  FailPoint::kEntryWritten,
    FailPoint::kSpillWritten,     FailPoint::kCommitInLedger, FailPoint::kCommitAnswered,
    FailPoint::kTombstoneWritten, FailPoint::kEvictionDone,   FailPoint::kSuspected,
    FailPoint::kReleased,         FailPoint::kDetachFreed,    FailPoint::kTakeoverAnnounced,
    FailPoint::kTakeoverDone};

enum class Fault { kSlow, kEndless };

class CallTimeTest : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override { test_ = this; }
  void TearDown() override {
    base::fail_point_handler = nullptr;
    test_ = nullptr;
  }

  // From here on the keeper is slow in this step, or stands still after it.
  void stall(FailPoint step) {
    step_ = step;
    base::fail_point_handler = [](FailPoint point) { test_->on(point); };
  }
  void on(FailPoint point) {
    if (point != step_) return;
    // Once for each look at the mailbox: the client, which is in the same thread, looks at its time
    // between two of them.
    if (!is_starting_) {
      const std::uint64_t requests = pool_->keeper().counters()[KeeperCounter::kRequests] + 1;
      if (requests == stalled_at_ && step_ != FailPoint::kSessionOpened) return;
      stalled_at_ = requests;
    }
    ++stalls_;
    if (GetParam() == Fault::kEndless) return pool_->let_keeper_sleep(true);
    pool_->clock().pass(kTimeoutNs * 3 / 10);
  }
  void let_go() {
    base::fail_point_handler = nullptr;
    pool_->let_keeper_sleep(false);
  }

  template <class Call>
  void timed(const char* name, Call&& call) {
    const std::uint64_t since_ns = pool_->clock().now_ns();
    call();
    const std::uint64_t took_ns = pool_->clock().now_ns() - since_ns;
    EXPECT_LE(took_ns, kTimeoutNs * 3 / 2 + kTimeoutNs / 100)
        << name << ", " << base::fail_point_name(step_) << " stalls: " << took_ns / 1000 << " us";
  }

  ClientOptions options() const {
    ClientOptions options = as_process(7);
    options.grant_target = 4;
    options.timeout_ns = kTimeoutNs;
    options.recovery_ns = kTimeoutNs / 5;
    return options;
  }
  void start_keeper() {
    KeeperOptions options;
    options.suspect_after_ns = 0;
    options.max_grants = 16;
    is_starting_ = true;
    pool_->start_keeper(options);
    is_starting_ = false;
  }

  // Every call that waits for the keeper, with more steps than its time has room for.
  void make_all_calls(Client& client) {
    constexpr std::size_t kBlocks = 40;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<PutItem> items;
    for (std::size_t i = 0; i < kBlocks; ++i) bytes.push_back(payload_of(i + 1, 100));
    for (std::size_t i = 0; i < kBlocks; ++i) items.push_back({hash_of(i + 1), bytes[i]});
    std::vector<Verdict> verdicts(kBlocks);
    timed("put", [&] { (void)client.put(nullptr, items, verdicts); });
    timed("reserve and commit", [&] {
      Result<Reservation> reserved = client.reserve(3);
      if (!reserved) return;
      Result<OpenReservation> open = (*std::move(reserved)).begin();
      if (!open) return;
      const WrittenBlock block{hash_of(70), 100, {}};
      Verdict verdict{};
      (void)client.commit(nullptr, (*std::move(open)).end(), {&block, 1}, {&verdict, 1});
    });
    timed("post_put", [&] { (void)client.post_put(nullptr, {hash_of(99), bytes[0]}); });
    timed("drain", [&] { (void)client.drain(); });
    timed("evict", [&] { (void)client.requests().evict(hash_of(1)); });
    timed("ping", [&] { (void)client.requests().ping(); });
    timed("put again", [&] { (void)client.put(nullptr, items, verdicts); });
  }

  static CallTimeTest* test_;
  std::unique_ptr<TestPool> pool_;
  FailPoint step_ = FailPoint::kNone;
  std::uint64_t stalls_ = 0, stalled_at_ = 0;
  bool is_starting_ = false;
};
CallTimeTest* CallTimeTest::test_ = nullptr;

TEST_P(CallTimeTest, EveryCallEndsByItsTimeWhicheverStepStalls) {
  std::uint64_t all_stalls = 0;
  for (const FailPoint step : kKeeperSteps) {
    pool_ = std::make_unique<TestPool>();
    start_keeper();
    stalls_ = stalled_at_ = 0;
    stall(step);
    std::unique_ptr<Client> client;
    timed("attach", [&] {
      auto attached = pool_->try_attach(0, options());
      if (attached) client = *std::move(attached);
    });
    if (client != nullptr) {
      make_all_calls(*client);
      // The keeper is another one, and slow, too.
      pool_->let_keeper_sleep(false);
      pool_->kill_keeper();
      const std::vector<std::byte> bytes = payload_of(50, 100);
      timed("post_put without a keeper", [&] {
        (void)client->post_put(nullptr, {hash_of(50), bytes});
      });
      start_keeper();
      make_all_calls(*client);
      timed("detach", [&] { (void)client->detach(); });
    }
    all_stalls += stalls_;
    let_go();
  }
  EXPECT_GT(all_stalls, 20u);
}

INSTANTIATE_TEST_SUITE_P(Faults, CallTimeTest, ::testing::Values(Fault::kSlow, Fault::kEndless),
                         [](const auto& instance) {
                           return std::string(instance.param == Fault::kSlow ? "slow" : "endless");
                         });

}  // namespace
}  // namespace cachalot::pool
#endif
