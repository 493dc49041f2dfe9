// Lines of a mailbox that are damaged on their way: the client attaches anew by itself, and nothing leaks.
// A client or a keeper that is only slow keeps its attachment.
#include "memory/forwarding_domain.h"
#include "testing/pool/test_faults.h"

namespace cachalot::pool {
namespace {

// Flips a bit of the n-th line that is written into one ring, after it was written.
class DamagingDomain final : public memory::ForwardingDomain {
 public:
  explicit DamagingDomain(std::unique_ptr<memory::Domain> inner)
      : ForwardingDomain(*inner), inner_(std::move(inner)) {}

  void watch(std::byte* ring, std::uint64_t line_to_damage, std::uint32_t byte) {
    ring_ = ring;
    line_to_damage_ = line_to_damage;
    byte_ = byte;
    written_ = 0;
  }
  std::uint64_t written() const { return written_; }

  void write_lines(void* to, const memory::Line* lines, std::size_t count) override {
    ForwardingDomain::write_lines(to, lines, count);
    auto* at = static_cast<std::byte*>(to);
    if (ring_ == nullptr || at < ring_ || at >= ring_ + kRingLines * memory::kLineBytes) return;
    for (std::size_t i = 0; i < count; ++i, at += memory::kLineBytes) {
      if (++written_ == line_to_damage_) at[byte_] ^= std::byte{0x40};
    }
  }

 private:
  const std::unique_ptr<memory::Domain> inner_;
  std::byte* ring_ = nullptr;
  std::uint64_t line_to_damage_ = 0, written_ = 0;
  std::uint32_t byte_ = 0;
};

enum class Ring { kRequests, kResponses };

class DamagedMailboxTest : public ::testing::TestWithParam<std::tuple<Ring, memory::DomainKind>> {
 protected:
  static constexpr std::uint32_t kSlot = 1;
  static constexpr std::uint32_t kNone = 0;

  static std::unique_ptr<memory::Domain> make_domain() {
    return std::get<1>(GetParam()) == memory::DomainKind::kCoherent
               ? memory::make_coherent_domain()
               : memory::make_noncoherent_domain();
  }

  // Stores until all is stored. @return the calls that it took
  static int put_all(TestPool& pool, Client& client, std::uint64_t first, std::size_t n,
                     const BlockHash* parent) {
    constexpr int kMostCalls = 4;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<PutItem> items;
    for (std::size_t i = 0; i < n; ++i)
      bytes.push_back(payload_of(first + i, pool.size_of(first + i)));
    for (std::size_t i = 0; i < n; ++i) items.push_back({hash_of(first + i), bytes[i]});
    std::vector<Verdict> verdicts(n);
    for (int calls = 1; calls <= kMostCalls; ++calls) {
      const Status status = client.put(parent, items, verdicts);
      const bool is_stored = std::all_of(verdicts.begin(), verdicts.end(), [](Verdict verdict) {
        return verdict == Verdict::kCommitted || verdict == Verdict::kDuplicate;
      });
      if (status && is_stored) return calls;
    }
    return kMostCalls + 1;
  }

  // A client's whole life, in which one line is damaged. @return the lines that were written into the ring
  std::uint64_t live(std::uint64_t line_to_damage, std::uint32_t byte) {
    auto damaging = std::make_unique<DamagingDomain>(make_domain());
    DamagingDomain& domain = *damaging;
    TestPool pool(small_geometry(), std::move(damaging));
    KeeperOptions keeper;
    keeper.max_grants = 48;
    pool.start_keeper(keeper);
    const Layout& layout = pool.access().layout;
    const bool is_request = std::get<0>(GetParam()) == Ring::kRequests;
    domain.watch(pool.access().region.at(is_request ? layout.request_ring(kSlot)
                                                    : layout.response_ring(0, kSlot)),
                 line_to_damage, byte);
    ClientOptions options = as_process(7);
    options.grant_target = 24;
    options.timeout_ns = 1'000'000'000;  // of a clock that counts 1 us for each look at it
    const auto client = pool.attach(kSlot, options);
    if (client == nullptr) return 0;
    // A damaged line costs one call at the most, however many calls come after it.
    int calls = put_all(pool, *client, 1, 12, nullptr);
    EXPECT_EQ(pool.read(*client, 1, 12), 12u);
    std::vector<Found> found(12);
    std::vector<BlockHash> hashes;
    for (std::uint64_t i = 1; i <= 12; ++i) hashes.push_back(hash_of(i));
    for (std::size_t hits = 0; hits < 7; ++hits) {
      client->lookup(hashes, found);
      client->report_hit(found[11]);
    }
    calls += put_all(pool, *client, 13, 5, &hashes[11]);
    calls += put_all(pool, *client, 1, 3, nullptr);  // duplicates
    const std::vector<std::byte> alone = payload_of(40, 100);
    const BlockHash last = hash_of(17);
    for (std::uint64_t name = 40; name < 44; ++name) {
      const Status posted = client->post_put(&last, {hash_of(name), alone});
      EXPECT_TRUE(posted || client->is_lost()) << posted.error().message;
    }
    (void)client->requests().evict(hash_of(17));
    (void)client->requests().ping();
    calls += put_all(pool, *client, 18, 3, &hashes[11]);
    EXPECT_LE(calls, 5);
    EXPECT_EQ(pool.read(*client, 18, 3), 3u);
    const Status left = client->detach();
    EXPECT_TRUE(left) << left.error().message;
    EXPECT_LE(client->counters()[ClientCounter::kReattachments], 1u);
    for (int i = 0; i < 200; ++i) pool.keeper().poll();
    const KeeperCounters& counters = pool.keeper().counters();
    EXPECT_EQ(counters[KeeperCounter::kGranted], 0u);
    EXPECT_EQ(counters[KeeperCounter::kQuarantined], 0u);
    EXPECT_EQ(counters[KeeperCounter::kClients], 0u);
    EXPECT_TRUE(pool.keeper().is_valid());
    return domain.written();
  }
};

TEST_P(DamagedMailboxTest, EveryLineOfALifeMayBeDamagedAndTheNextStoreCommits) {
  const std::uint64_t lines = live(kNone, 0);
  ASSERT_GT(lines, 20u);
  ASSERT_LT(lines, 300u);
  for (std::uint64_t line = 1; line <= lines && !HasFailure(); ++line) {
    constexpr std::uint32_t kBytes[] = {1, 30, 61};  // of the number, the content, the CRC
    SCOPED_TRACE("line " + std::to_string(line));
    live(line, kBytes[line % 3]);
  }
}

INSTANTIATE_TEST_SUITE_P(Rings, DamagedMailboxTest,
                         ::testing::Combine(::testing::Values(Ring::kRequests, Ring::kResponses),
                                            ::testing::Values(memory::DomainKind::kCoherent,
                                                              memory::DomainKind::kNoncoherent)),
                         [](const auto& instance) {
                           const bool is_coherent =
                               std::get<1>(instance.param) == memory::DomainKind::kCoherent;
                           return std::string(std::get<0>(instance.param) == Ring::kRequests
                                                  ? "requests"
                                                  : "responses") +
                                  (is_coherent ? "_coherent" : "_noncoherent");
                         });

// --- Slow is not damaged ---------------------------------------------------------------------------

class SlowMailboxTest : public FaultTest {
 protected:
  std::unique_ptr<Client> attach() {
    pool_.stop_keeper();
    KeeperOptions keeper;
    keeper.suspect_after_ns = 0;
    pool_.start_keeper(keeper);
    ClientOptions options = as_process(7);
    options.timeout_ns = 20'000'000;
    return pool_.attach(0, options);
  }
  std::uint64_t reattachments(const Client& client) {
    return client.counters()[ClientCounter::kReattachments];
  }
};

TEST_F(SlowMailboxTest, AKeeperThatStandsStillIsWaitedForHoweverManyCallsTimeOut) {
  const auto client = attach();
  pool_.put(*client, 1, 2);
  const std::vector<std::byte> bytes = payload_of(30, 100);
  pool_.let_keeper_sleep(true);
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(client->post_put(nullptr, {hash_of(30), bytes}));
    EXPECT_EQ(client->drain().error().code, Code::kTimeout);
    client->renew();
  }
  pool_.let_keeper_sleep(false);
  EXPECT_TRUE(client->drain());
  pool_.put(*client, 10, 2);
  EXPECT_EQ(reattachments(*client), 0u);
}

TEST_F(SlowMailboxTest, AClientThatDoesNotLookAtItsAnswersKeepsItsAttachment) {
  const auto client = attach();
  const std::vector<std::byte> bytes = payload_of(30, 100);
  ASSERT_TRUE(client->post_put(nullptr, {hash_of(30), bytes}));
  // The keeper sees hundreds of its heartbeats meanwhile.
  for (int i = 0; i < 300; ++i) {
    client->renew();
    for (int polls = 0; polls < 64; ++polls) pool_.keeper().poll();
  }
  EXPECT_TRUE(client->drain());
  pool_.put(*client, 10, 2);
  EXPECT_FALSE(client->is_lost());
  EXPECT_EQ(reattachments(*client), 0u);
}

TEST_F(SlowMailboxTest, AKeeperThatAnswersSeldomKeepsItsClients) {
  const auto client = attach();
  for (int i = 0; i < 20; ++i) {
    pool_.let_keeper_sleep(true);
    EXPECT_EQ(client->requests().ping().error().code, Code::kTimeout);
    pool_.let_keeper_sleep(false);
    EXPECT_TRUE(client->requests().ping());
  }
  EXPECT_EQ(reattachments(*client), 0u);
}

}  // namespace
}  // namespace cachalot::pool
