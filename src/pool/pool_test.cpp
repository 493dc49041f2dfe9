// The pool end to end inside one process: a keeper in a thread, clients beside it.

#include "pool/pool.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "base/fail_point.h"
#include "base/rng.h"
#include "os/child.h"
#include "pool/flights.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

using memory::DomainKind;

struct Setup {
  DomainKind domain;
  std::uint32_t devices;
};

class PoolTest : public testing::TestWithParam<Setup> {
 protected:
  void make(std::uint32_t capacity, std::uint64_t block_bytes = 4096, std::uint32_t slack = 256) {
    CreateOptions options;
    options.paths.clear();
    for (std::uint32_t i = 0; i < GetParam().devices; ++i)
      options.paths.push_back("memfd:test" + std::to_string(i));
    Geometry& g = options.geometry;
    g.domain = GetParam().domain;
    g.devices = GetParam().devices;
    if (g.domain == DomainKind::kMixed) g.noncoherent_devices = 2;
    g.block_bytes = block_bytes;
    g.capacity_blocks = capacity;
    g.blocks = capacity + slack;
    g.directory_slots = rated_directory_slots(capacity);
    g.clients = 8;
    options.huge_pages = false;
    Result<Pool> made = Pool::create(options);
    ASSERT_TRUE(made) << made.error().message;
    pool_.emplace(*std::move(made));
    start_keeper();
  }
  void start_keeper() {
    stop_ = false;
    std::atomic<bool> ready{false};
    keeper_ = std::thread([this, &ready] {
      Result<PoolKeeper> keeper = pool_->serve({});
      ASSERT_TRUE(keeper) << keeper.error().message;
      ready = true;
      (void)keeper->run(stop_);
      EXPECT_TRUE(keeper->keeper().is_valid());
    });
    while (!ready) std::this_thread::yield();
  }
  void stop_keeper() {
    stop_ = true;
    if (keeper_.joinable()) keeper_.join();
  }
  void TearDown() override { stop_keeper(); }

  PoolClient attach(ClientOptions options = {}) {
    Result<PoolClient> client = pool_->attach(options);
    EXPECT_TRUE(client) << (client ? "" : client.error().message);
    return *std::move(client);
  }
  std::uint64_t block_bytes() const { return pool_->access().geometry.block_bytes; }
  std::vector<Verdict> put_chain(Client& client, std::uint64_t first, std::size_t n,
                                 const BlockHash* parent = nullptr) const {
    return pool::put_chain(client, block_bytes(), first, n, parent);
  }
  std::size_t read_chain(Client& client, std::uint64_t first, std::size_t n) const {
    return pool::read_chain(client, block_bytes(), first, n);
  }

  std::optional<Pool> pool_;
  std::atomic<bool> stop_{false};
  std::thread keeper_;
};

TEST_P(PoolTest, WhatOneClientStoresAnotherReads) {
  make(100);
  PoolClient writer = attach(), reader = attach();
  EXPECT_EQ(read_chain(reader.client(), 1, 40), 0u);
  for (const Verdict v : put_chain(writer.client(), 1, 40)) EXPECT_EQ(v, Verdict::kCommitted);
  EXPECT_EQ(read_chain(reader.client(), 1, 40), 40u);
  EXPECT_EQ(read_chain(reader.client(), 1, 50), 40u);
}

TEST_P(PoolTest, TheFirstOfTwoEqualBlocksWins) {
  make(100);
  PoolClient a = attach(), b = attach();
  put_chain(a.client(), 1, 5);
  for (const Verdict v : put_chain(b.client(), 1, 5)) EXPECT_EQ(v, Verdict::kDuplicate);
  EXPECT_EQ(read_chain(b.client(), 1, 5), 5u);
}

TEST_P(PoolTest, ABlockWhoseParentIsNotThereIsRefused) {
  make(100);
  PoolClient client = attach();
  const BlockHash absent = hash_of(99);
  for (const Verdict v : put_chain(client.client(), 1, 3, &absent))
    EXPECT_EQ(v, Verdict::kNoParent);
  EXPECT_EQ(read_chain(client.client(), 1, 3), 0u);
}

TEST_P(PoolTest, OldChainsMakeRoomForNewOnesAndNeverLoseTheirParentsFirst) {
  make(50);
  PoolClient client = attach();
  for (std::uint64_t chain = 0; chain < 40; ++chain) {
    for (const Verdict v : put_chain(client.client(), chain * 100, 20))
      EXPECT_EQ(v, Verdict::kCommitted);
  }
  EXPECT_EQ(read_chain(client.client(), 3900, 20), 20u);
  EXPECT_EQ(read_chain(client.client(), 3800, 20), 20u);
  EXPECT_EQ(read_chain(client.client(), 3700, 20), 10u);
  EXPECT_EQ(read_chain(client.client(), 3600, 20), 0u);
}

TEST_P(PoolTest, APromptLongerThanThePoolIsStoredAsFarAsItGoes) {
  make(50);
  PoolClient client = attach();
  const std::vector<Verdict> verdicts = put_chain(client.client(), 1, 80);
  for (std::size_t i = 0; i < 80; ++i) EXPECT_EQ(verdicts[i] == Verdict::kCommitted, i < 50) << i;
  EXPECT_EQ(read_chain(client.client(), 1, 80), 50u);
}

TEST_P(PoolTest, BlocksOfOneNamespaceAreNotThoseOfAnother) {
  make(100);
  ClientOptions other;
  other.fingerprint = "another model";
  PoolClient a = attach(), b = attach(other);
  put_chain(a.client(), 1, 3);
  EXPECT_EQ(read_chain(b.client(), 1, 3), 0u);
  put_chain(b.client(), 1, 3);
  EXPECT_EQ(read_chain(b.client(), 1, 3), 3u);
}

TEST_P(PoolTest, EvictDropsABlockWithAllBelowIt) {
  make(100);
  PoolClient client = attach();
  put_chain(client.client(), 1, 10);
  const BlockHash fifth = hash_of(5);
  put_chain(client.client(), 50, 3, &fifth);
  EXPECT_EQ(*client->requests().evict(hash_of(3)), 11u);
  EXPECT_EQ(read_chain(client.client(), 1, 10), 2u);
  EXPECT_FALSE(client->requests().evict(hash_of(3)));
  EXPECT_EQ(*client->requests().evict_everything(), 2u);
}

TEST_P(PoolTest, ManyClientsReadAndWriteUnderHeavyEviction) {
  make(60, 1024, 512);
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> hits{0};
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      PoolClient client = attach();
      base::Rng rng(t);
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t chain = rng.below(8) * 100;
        const std::size_t length = 1 + rng.below(12);
        const std::size_t valid = read_chain(client.client(), chain, length);
        hits += valid;
        if (valid == length) continue;
        const BlockHash parent = hash_of(chain + valid - 1);
        put_chain(client.client(), chain + valid, length - valid, valid == 0 ? nullptr : &parent);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 100u);
}

TEST_P(PoolTest, AKeeperThatIsStartedAgainKeepsWhatIsPublished) {
  make(100);
  {
    PoolClient client = attach();
    put_chain(client.client(), 1, 30);
  }
  stop_keeper();
  EXPECT_FALSE(pool_->attach({}));
  start_keeper();
  PoolClient client = attach();
  EXPECT_EQ(read_chain(client.client(), 1, 30), 30u);
  EXPECT_EQ(put_chain(client.client(), 200, 80).back(), Verdict::kCommitted);
}

TEST_P(PoolTest, ACountOfBlocksIsKeptAndPublished) {
  make(100);
  PoolClient client = attach();
  put_chain(client.client(), 1, 30);
  KeeperCounters counters;
  for (int i = 0; i < 1000 && counters[KeeperCounter::kLive] != 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(pool_->state().read_keeper_counters(counters));
  }
  EXPECT_EQ(counters[KeeperCounter::kLive], 30u);
  EXPECT_EQ(counters[KeeperCounter::kFree] + counters[KeeperCounter::kGranted] +
                counters[KeeperCounter::kLive],
            356u);
}

TEST_P(PoolTest, TheLastSlotIsForOperators) {
  make(100);
  ClientOptions operates;
  operates.is_operator = true;
  std::vector<PoolClient> engines;
  for (int i = 0; i < 7; ++i) engines.push_back(attach());
  EXPECT_EQ(pool_->attach({}).error().code, Code::kBusy);
  {
    PoolClient first = attach(operates);
    EXPECT_EQ(first->requests().fence(7).error().code, Code::kNotFound);  // it has that slot
    EXPECT_EQ(pool_->attach(operates).error().code, Code::kBusy);
    engines.pop_back();
    PoolClient second = attach(operates);
    EXPECT_EQ(second->requests().fence(7).error().code, Code::kBusy);
  }
  // By number any client gets it.
  const Result<PoolClient> by_number = pool_->attach({}, 7);
  EXPECT_TRUE(by_number) << by_number.error().message;
}

TEST_P(PoolTest, ASlotIsFreeOnceItsClientHasDetachedHoweverLongThatOneLives) {
  make(100);
  ClientOptions pins;
  pins.pins = true;
  pins.renew_interval_ns = 1'000'000;
  Result<PoolClient> first = pool_->attach(pins, 3);
  ASSERT_TRUE(first) << first.error().message;
  const Result<std::uint64_t> pin = (*first)->pin();
  ASSERT_TRUE(pin) << pin.error().message;
  EXPECT_EQ(pool_->attach({}, 3).error().code, Code::kBusy);
  ASSERT_TRUE(first->detach());
  ASSERT_TRUE(first->detach());

  Result<PoolClient> second = pool_->attach(pins, 3);
  ASSERT_TRUE(second) << second.error().message;
  ASSERT_TRUE((*second)->pin());
  // R1: what the first one still does reaches none of the slot's lines.
  const auto lines = [&] {
    ClientLine line{};
    PinLine pinned{};
    EXPECT_TRUE(pool_->access().region.read_as(pool_->access().layout.client_line(3), line));
    EXPECT_TRUE(pool_->access().region.read_as(pool_->access().layout.client_pins(3), pinned));
    EXPECT_EQ(pinned.incarnation, line.incarnation);
    return std::tuple(line.incarnation, line.flags, pinned.oldest, pinned.newest);
  };
  const auto before = lines();
  (*first)->unpin(*pin);
  EXPECT_EQ((*first)->pin().error().code, Code::kNoKeeper);
  EXPECT_EQ((*first)->reattach(0).error().code, Code::kNoKeeper);
  EXPECT_EQ((*first)->drain().error().code, Code::kNoKeeper);
  EXPECT_EQ((*first)->requests().poll(), 0u);
  (*first)->renew();
  first = Error::make(Code::kNotFound, "it goes");
  EXPECT_EQ(lines(), before);
  EXPECT_TRUE((*second)->requests().ping());
  EXPECT_FALSE((*second)->is_lost());
  EXPECT_EQ(pool_->attach({}, 3).error().code, Code::kBusy) << "the lock is the second one's";
}

TEST_P(PoolTest, ASlotStaysTakenWhereCopiesWereUnderWay) {
  make(100);
  ClientOptions impatient;
  impatient.timeout_ns = 10'000'000;
  const auto insist = [](const auto& call) {  // a keeper thread may be slower than that
    auto result = call();
    while (!result &&
           (result.error().code == Code::kNoKeeper || result.error().code == Code::kTimeout))
      result = call();
    return result;
  };
  Result<PoolClient> client = insist([&] { return pool_->attach(impatient, 3); });
  ASSERT_TRUE(client) << client.error().message;
  Result<Reservation> reserved = insist([&] { return (*client)->reserve(1); });
  ASSERT_TRUE(reserved) << reserved.error().message;
  const Result<OpenReservation> open = (*std::move(reserved)).begin();
  ASSERT_TRUE(open) << open.error().message;
  EXPECT_EQ(client->detach().error().code, Code::kBusy);
  const Result<PoolClient> other = pool_->attach({}, 3);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kBusy);
  EXPECT_NE(std::string(other.error().message).find("attached already"), std::string::npos)
      << other.error().message;
}

TEST_P(PoolTest, AClientThatIsAssignedToLeavesInOrderFirst) {
  make(100);
  Result<PoolClient> first = pool_->attach({}, 2), second = pool_->attach({}, 3);
  Result<PoolClient> third = pool_->attach({}, 4);
  ASSERT_TRUE(first && second && third);
  *first = *std::move(second);
  EXPECT_TRUE(pool_->attach({}, 2)) << "its slot is free";
  EXPECT_EQ(pool_->attach({}, 3).error().code, Code::kBusy);
  EXPECT_TRUE((*first)->requests().ping());
  // One that may not vouch keeps its slot then, too.
  Result<Reservation> lost = (*first)->reserve(1);
  ASSERT_TRUE(lost) << lost.error().message;
  Result<OpenReservation> opened = (*std::move(lost)).begin();
  ASSERT_TRUE(opened) << opened.error().message;
  (*std::move(opened)).withhold();
  *first = *std::move(third);
  const Result<PoolClient> other = pool_->attach({}, 3);
  ASSERT_FALSE(other);
  EXPECT_NE(std::string(other.error().message).find("attached already"), std::string::npos)
      << other.error().message;
  EXPECT_TRUE((*first)->requests().ping());
}

TEST_P(PoolTest, AKeeperEndsWhenItsCheckSaysSo) {
  make(100);
  stop_keeper();
  Result<PoolKeeper> keeper = pool_->serve({});
  ASSERT_TRUE(keeper) << keeper.error().message;
  stop_ = false;
  const Status ended =
      keeper->run(stop_, [] { return Status(Error::make(Code::kStale, "enough")); });
  ASSERT_FALSE(ended);
  EXPECT_STREQ(ended.error().message, "enough");
  EXPECT_EQ(pool_->state().read_keepers().flags & kKeeperServing, 0u);
}

TEST_P(PoolTest, AStandbyRulesOnceTheKeeperIsGone) {
  make(100);
  Result<PoolKeeper> standby = pool_->stand_by({});
  ASSERT_TRUE(standby) << standby.error().message;
  EXPECT_EQ(standby->keeper().epoch(), 0u);
  EXPECT_EQ(standby->keeper().poll(), 0u);
  const std::uint32_t epoch = pool_->state().read_keepers().epoch;
  EXPECT_EQ(pool_->serve(*standby).error().code, Code::kBusy);
  EXPECT_EQ(pool_->state().read_keepers().epoch, epoch);
  stop_keeper();
  const Status served = pool_->serve(*standby);
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_EQ(standby->keeper().epoch(), epoch + 1);
  EXPECT_EQ(pool_->state().read_keepers().epoch, epoch + 1);
  EXPECT_EQ(pool_->state().find_keeper(), KeeperLife::kHere);
  EXPECT_TRUE(standby->keeper().is_valid());
  EXPECT_EQ(pool_->serve({}).error().code, Code::kBusy);
}

// Its child has nothing of the pool, and nothing of its keeper's and clients' locks.
TEST_P(PoolTest, WhatEndedIsFollowedAlthoughAForkedChildLives) {
  make(100);
  std::optional<PoolClient> client(attach());
  auto child = os::Child::start([] {
    for (;;) pause();
    return 0;
  });
  ASSERT_TRUE(child);
  client.reset();
  stop_keeper();
  {
    const Result<PoolKeeper> next = pool_->serve({});
    ASSERT_TRUE(next) << next.error().message;
  }
  const Status removed = pool_->remove();
  EXPECT_TRUE(removed) << removed.error().message;
}

TEST(PoolServe, AKeeperThatWasKilledIsFollowedAlthoughAForkedChildLives) {
  const std::string path = "/dev/shm/cachalot_pool_test." + std::to_string(getpid()) + ".killed";
  Result<Pool> pool = create_small_pool(path);
  ASSERT_TRUE(pool) << pool.error().message;
  int ready[2], end[2];
  ASSERT_TRUE(pipe(ready) == 0 && pipe(end) == 0);
  Result<os::Child> killed = os::Child::start([&] {
    Result<Pool> own = Pool::open({path});
    if (!own) return 1;
    const Result<PoolKeeper> keeper = own->serve({});
    if (!keeper) return 2;
    if (fork() == 0) {
      char byte = 'y';
      close(end[1]);
      (void)!write(ready[1], &byte, 1);
      (void)!read(end[0], &byte, 1);  // until the other end is closed
      _exit(0);
    }
    for (;;) pause();
  });
  ASSERT_TRUE(killed);
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(pool->serve({}).error().code, Code::kBusy);
  killed->send(SIGKILL);
  ASSERT_EQ(killed->wait()->signal, SIGKILL);
  EXPECT_FALSE(pool->state().may_have_keeper());
  {
    const Result<PoolKeeper> next = pool->serve({});
    EXPECT_TRUE(next) << next.error().message;
  }
  const Status removed = pool->remove();
  EXPECT_TRUE(removed) << removed.error().message;
  for (const int fd : {ready[0], end[0], end[1]}) close(fd);
}

#ifdef CACHALOT_FAIL_POINTS
TEST(PoolServe, AKeeperThatStallsInItsTakeoverIsTakenOverFromAtOnce) {
  const std::string path = "/dev/shm/cachalot_pool_test." + std::to_string(getpid());
  Result<Pool> pool = create_small_pool(path);
  ASSERT_TRUE(pool) << pool.error().message;
  Result<os::Child> stalled = os::Child::start([&path] {
    base::fail_point_handler = [](base::FailPoint point) {
      if (point == base::FailPoint::kTakeoverAnnounced) raise(SIGSTOP);
    };
    Result<Pool> own = Pool::open({path});
    if (!own) return 2;
    Result<PoolKeeper> keeper = own->serve({});
    return !keeper && keeper.error().code == Code::kStale ? 0 : 1;
  });
  ASSERT_TRUE(stalled) << stalled.error().message;
  int status = 0;
  ASSERT_EQ(waitpid(stalled->pid(), &status, WUNTRACED), stalled->pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(pool->serve({}).error().code, Code::kBusy);
    Result<PoolKeeper> next = pool->serve({}, Succession::kOverTheLiving);
    ASSERT_TRUE(next) << next.error().message;
    // no call timed out
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
    stalled->send(SIGCONT);
    const Result<os::ChildStatus> ended = stalled->wait();
    ASSERT_TRUE(ended);
    EXPECT_TRUE(ended->ok()) << ended->text();
    next->keeper().tend();
    EXPECT_FALSE(next->keeper().is_deposed());
    EXPECT_TRUE(next->keeper().is_valid());
  }
  ASSERT_TRUE(Pool::destroy({path}));
}
#endif

// docs/formats/pool.md, "Locks and doorbells": programs of other versions rely on these numbers.
TEST_P(PoolTest, TheLocksAreOnTheBytesThatTheFormatPageNames) {
  make(8);
  constexpr std::uint64_t kKeeperAreas = std::uint64_t{1} << 62;
  constexpr std::uint64_t kClients = kKeeperAreas + 16;
  constexpr std::uint64_t kFlights = std::uint64_t{1} << 61;
  const int fd = pool_->devices().file(0).fd();
  const auto is_locked = [&](std::uint64_t offset) {
    const auto holder = os::who_holds(fd, offset);
    EXPECT_TRUE(holder) << (holder ? "" : holder.error().message);
    return holder && holder->has_value();
  };
  const std::uint32_t area = pool_->state().read_keepers().keeper;
  for (std::uint32_t k = 0; k < 4; ++k) EXPECT_EQ(is_locked(kKeeperAreas + k), k == area) << k;
  EXPECT_FALSE(is_locked(kKeeperAreas + 4));  // only while a keeper announces itself or begins
  EXPECT_FALSE(is_locked(kClients + 2));
  Result<PoolClient> client = pool_->attach({}, 2);
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_TRUE(is_locked(kClients + 2));
  {
    Result<Flights> flights = Flights::open(*pool_);
    ASSERT_TRUE(flights) << flights.error().message;
    const BlockHash hash{0x123456789abcdef0u, 0x00ff000000000001u};
    EXPECT_EQ(flights->claim({&hash, 1}), 1u);
    EXPECT_TRUE(is_locked(kFlights + (hash.low ^ hash.high) % (std::uint64_t{1} << 48)));
  }
  stop_keeper();
  EXPECT_FALSE(is_locked(kKeeperAreas + area));
}

TEST_P(PoolTest, FilesThatAKeeperServesAreNotRemoved) {
  make(100);
  EXPECT_EQ(pool_->remove().error().code, Code::kBusy);
  stop_keeper();
  EXPECT_TRUE(pool_->remove());
}

TEST_P(PoolTest, KeepersThatWereReplacedAndStillRunAreNamed) {
  make(100);
  std::vector<PoolKeeper> replaced;
  for (;;) {
    Result<PoolKeeper> next = pool_->serve({}, Succession::kOverTheLiving);
    if (!next) {
      EXPECT_EQ(next.error().code, Code::kBusy);
      EXPECT_NE(std::string(next.error().message).find("pid " + std::to_string(getpid())),
                std::string::npos);
      EXPECT_NE(std::string(next.error().message).find(pool_->paths()[0]), std::string::npos);
      break;
    }
    replaced.push_back(*std::move(next));
    ASSERT_LT(replaced.size(), 9u);
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, PoolTest,
                         testing::Values(Setup{DomainKind::kCoherent, 1},
                                         Setup{DomainKind::kNoncoherent, 1},
                                         Setup{DomainKind::kNoncoherent, 3},
                                         Setup{DomainKind::kMixed, 3}),
                         [](const auto& setup) {
                           return std::string(memory::domain_name(setup.param.domain)) +
                                  std::to_string(setup.param.devices);
                         });

// --- Parts of a file ---

TEST(PoolParts, TwoPoolsInOneFileHaveKeepersClientsAndLocksOfTheirOwn) {
  const std::string path = "/dev/shm/cachalot_pool_parts." + std::to_string(getpid());
  ASSERT_TRUE(os::SharedFile::create(path, 64 << 20, {}));
  std::vector<Pool> pools;
  std::vector<PoolKeeper> keepers;
  for (const char* const part : {"@2MiB+16MiB", "@32MiB+32MiB"}) {
    CreateOptions create;
    create.paths = {path + part};
    create.geometry = small_geometry();
    create.huge_pages = create.populate = false;
    Result<Pool> pool = Pool::create(create);
    ASSERT_TRUE(pool) << pool.error().message;
    pools.push_back(*std::move(pool));
  }
  for (Pool& pool : pools) {
    Result<PoolKeeper> keeper = pool.serve(KeeperOptions{});
    ASSERT_TRUE(keeper) << keeper.error().message;
    keepers.push_back(*std::move(keeper));
  }
  // A second keeper of each is refused, and a served one is not made anew.
  for (const char* const part : {"@2MiB+16MiB", "@32MiB+32MiB"}) {
    Result<Pool> again = Pool::open({path + part});
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->serve(KeeperOptions{}).error().code, Code::kBusy);
    CreateOptions create;
    create.paths = {path + part};
    create.geometry = small_geometry();
    const Result<Pool> anew = Pool::create(create);
    ASSERT_FALSE(anew);
    EXPECT_NE(std::string(anew.error().message).find("holds a pool that a keeper serves"),
              std::string::npos);
  }
  EXPECT_FALSE(pools[0].access().id == pools[1].access().id);
  keepers.clear();
  EXPECT_TRUE(pools[0].remove());
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  unlink(path.c_str());
}

}  // namespace
}  // namespace cachalot::pool
