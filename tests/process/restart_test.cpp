// A pool whose keeper and clients all end, under load, again and again: what was committed is served afterwards.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "pool/check/fsck.h"
#include "pool/pool.h"
#include "program.h"
#include "testing/pool/chains.h"

namespace cachalot::process_test {
namespace {

constexpr std::uint32_t kWriters = 3;
constexpr std::uint64_t kNamesEach = 8192, kChain = 4;

// Shared with the children: how many names of its range a writer has committed. It counts after the answer.
struct Committed {
  std::atomic<std::uint64_t> names[kWriters];
};

class Restart : public ProcessTest {
 protected:
  Restart()
      : committed_(static_cast<Committed*>(mmap(nullptr, sizeof(Committed), PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    pool_ = path("kv");
    expect_done(run({"pool", "create", pool_, "--block-bytes", "1024", "--capacity-blocks",
                     std::to_string(kWriters * kNamesEach), "--domain", "noncoherent"}));
  }
  ~Restart() override { munmap(committed_, sizeof(Committed)); }

  // Stores chains of its range, from the first name on that was not committed, until it is killed or told to stop.
  int write(std::uint32_t writer, const std::atomic<bool>* stop) {
    Result<pool::Pool> pool = pool::Pool::open({pool_});
    if (!pool) return 2;
    pool::ClientOptions options;
    options.fingerprint = "restart";
    Result<pool::PoolClient> client = pool->attach(options);
    if (!client) return 3;
    std::atomic<std::uint64_t>& done = committed_->names[writer];
    while (done + kChain <= kNamesEach && (stop == nullptr || !*stop)) {
      const std::uint64_t first = writer * kNamesEach + done;
      for (const pool::Verdict verdict : pool::put_chain(client->client(), 1024, first, kChain)) {
        if (verdict != pool::Verdict::kCommitted && verdict != pool::Verdict::kDuplicate) return 4;
      }
      done += kChain;
      // Slow enough that there is something left to store in the last round.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    while (stop == nullptr || !*stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return client->detach() ? 0 : 5;
  }

  std::uint64_t in_all() const {
    std::uint64_t all = 0;
    for (const auto& names : committed_->names) all += names;
    return all;
  }

  // Writers that ended before they were told to fail the test.
  void await(std::uint64_t names, std::vector<os::Child>& writers) const {
    while (in_all() < std::min(names, kWriters * kNamesEach)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (os::Child& writer : writers) {
        const auto ended = writer.wait_for(0);
        ASSERT_FALSE(ended && ended->has_value()) << (*ended)->text();
      }
    }
  }

  // Every committed block, byte for byte.
  void verify() {
    Result<pool::Pool> pool = pool::Pool::open({pool_});
    ASSERT_TRUE(pool) << pool.error().message;
    pool::ClientOptions options;
    options.fingerprint = "restart";
    Result<pool::PoolClient> client = pool->attach(options);
    ASSERT_TRUE(client) << client.error().message;
    for (std::uint32_t writer = 0; writer < kWriters; ++writer) {
      for (std::uint64_t name = 0; name < committed_->names[writer]; name += kChain) {
        const std::uint64_t first = writer * kNamesEach + name;
        ASSERT_EQ(pool::read_chain(client->client(), 1024, first, kChain), kChain)
            << "block " << first;
      }
    }
  }

  void expect_clean() {
    const Result<pool::FsckReport> report = pool::check_pool_at({pool_}, {});
    ASSERT_TRUE(report) << report.error().message;
    for (const pool::Fault& fault : report->faults) {
      const pool::FaultText& text = pool::text_of(fault.kind);
      EXPECT_TRUE(text.is_remnant) << text.name << ": " << fault.what;
    }
    EXPECT_GE(report->check.figures.blocks.live, in_all());
  }

  std::string pool_;
  Committed* committed_;
};

TEST_F(Restart, AfterEverythingWasKilledTenTimes) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t before = in_all();
    Serving keeper({"serve", pool_});
    ASSERT_TRUE(keeper.is_ready());
    verify();
    std::vector<os::Child> writers;
    for (std::uint32_t writer = 0; writer < kWriters; ++writer) {
      Result<os::Child> child = os::Child::start([&] { return write(writer, nullptr); });
      ASSERT_TRUE(child);
      writers.push_back(*std::move(child));
    }
    ASSERT_NO_FATAL_FAILURE(await(before + 64, writers));
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + round * 7));
    // Keeper or clients first.
    if (round % 2 == 0) keeper.send(SIGKILL);
    for (os::Child& writer : writers) writer.send(SIGKILL);
    keeper.send(SIGKILL);
    keeper.wait();
    for (os::Child& writer : writers) (void)writer.wait();
    expect_clean();
  }
  Serving keeper({"serve", pool_});
  ASSERT_TRUE(keeper.is_ready());
  verify();
}

TEST_F(Restart, AfterEverythingWasStoppedInOrderTenTimes) {
  auto* const stop = static_cast<std::atomic<bool>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t before = in_all();
    *stop = false;
    Serving keeper({"serve", pool_, "--log-level", "info"});
    ASSERT_TRUE(keeper.is_ready());
    verify();
    std::vector<os::Child> writers;
    for (std::uint32_t writer = 0; writer < kWriters; ++writer) {
      Result<os::Child> child = os::Child::start([&] { return write(writer, stop); });
      ASSERT_TRUE(child);
      writers.push_back(*std::move(child));
    }
    ASSERT_NO_FATAL_FAILURE(await(before + 64, writers));
    *stop = true;
    for (os::Child& writer : writers) {
      const Result<os::ChildStatus> status = writer.wait();
      ASSERT_TRUE(status);
      EXPECT_TRUE(status->ok()) << status->text();
    }
    keeper.send(SIGTERM);
    const Outcome ended = keeper.wait();
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_NE(ended.err.find("the pool was written back to its files"), std::string::npos)
        << ended.err;
    expect_clean();
    const Result<pool::FsckReport> report = pool::check_pool_at({pool_}, {});
    ASSERT_TRUE(report);
    EXPECT_EQ(report->count_remnants(), 0u);
    EXPECT_EQ(report->check.figures.blocks.granted, 0u);
  }
  munmap(stop, 4096);
}

}  // namespace
}  // namespace cachalot::process_test
