// A byte that goes wrong in the pool is noticed by the engine that reads it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "pool/pool.h"
#include "replay/pool/engine.h"
#include "replay/pool/spread.h"
#include "replays.h"

namespace cachalot::replay {
namespace {

using memory::DomainKind;
using pool::Pool;

// A pool with its keeper in a thread; engines are run one after the other in this process.
class CorruptedPool : public testing::Test {
 protected:
  void make(DomainKind domain) {
    options_ = conversation(domain, 2, 2000, 1024);
    options_.limit_requests = 20;
    Result<Workload> load = Workload::load(options_);
    ASSERT_TRUE(load);
    load_.emplace(*std::move(load));
    pool::CreateOptions create;
    create.paths = {"memfd:corrupted"};
    create.geometry = *pool_geometry(options_);
    Result<Pool> pool = Pool::create(create);
    ASSERT_TRUE(pool) << pool.error().message;
    pool_.emplace(*std::move(pool));
    keeper_ = std::thread([this] {
      Result<pool::PoolKeeper> keeper = pool_->serve({});
      serves_ = true;
      ASSERT_TRUE(keeper) << keeper.error().message;
      EXPECT_TRUE(keeper->run(stop_));
    });
    while (!serves_) std::this_thread::yield();
  }
  void TearDown() override {
    stop_ = true;
    if (keeper_.joinable()) keeper_.join();
  }

  // Engine `number` replays all of it; what it counted is in harness_.
  void run_engine(std::uint32_t number, bool with_checksums) {
    OpaqueOptions client_options;
    client_options.pool = pool_->paths();
    client_options.fingerprint = fingerprint(options_);
    client_options.block_bytes = options_.block_bytes;
    client_options.checksums = with_checksums;
    client_options.counts_prompts = true;
    Result<OpaqueClient> client = OpaqueClient::attach(client_options);
    ASSERT_TRUE(client) << client.error().message;
    harness_->hosts[0].next_request = 0;
    const std::vector<std::vector<std::size_t>> requests = spread_requests(options_, *load_);
    Result<Engine> engine =
        Engine::make({options_, *load_, number, requests[0], nullptr}, *harness_, *client);
    ASSERT_TRUE(engine);
    ASSERT_TRUE(engine->run());
  }

  // Flips a bit of the last payload byte of a published block.
  void damage(std::size_t request, std::size_t block) {
    pool::DirectoryReader directory(pool_->access());
    pool::KeeperView view;
    std::vector<pool::Found> found(load_->hashes(request).size());
    ASSERT_GT(directory.lookup(load_->hashes(request), 1, view, found), block);
    std::byte* last = nullptr;
    pool_->access().for_each_extent(found[block].entry.block, options_.block_bytes,
                                    [&](std::byte* at, std::uint64_t n) { last = at + n - 1; });
    ASSERT_NE(last, nullptr);
    *last ^= std::byte{1};
  }

  std::uint64_t counted(std::uint32_t engine, ReplayCounter counter) const {
    return harness_->engines[engine].sum(counter);
  }

  ReplayOptions options_;
  std::optional<Workload> load_;
  std::optional<Pool> pool_;
  std::unique_ptr<HarnessState> harness_ = std::make_unique<HarnessState>();
  std::thread keeper_;
  std::atomic<bool> serves_{false}, stop_{false};
};

TEST_F(CorruptedPool, WithoutChecksumsIsFoundByTheEnginesOwnCheck) {
  make(DomainKind::kCoherent);
  run_engine(0, false);
  damage(3, 2);
  run_engine(1, false);
  EXPECT_GE(counted(1, ReplayCounter::kVerifyErrors), 1u);
  EXPECT_EQ(counted(1, ReplayCounter::kDamagedReads), 0u);
  EXPECT_EQ(counted(1, ReplayCounter::kHitBlocks), load_->blocks());
  EXPECT_EQ(counted(1, ReplayCounter::kRemoteHitBlocks), load_->blocks());
  const Fault& fault = harness_->engines[1].fault;
  ASSERT_TRUE(fault.is_set);
  EXPECT_EQ(fault.byte, options_.block_bytes - 1);
  EXPECT_EQ(fault.writer, 0u);

  const ReplayReport report = make_report(options_, *load_, *harness_);
  EXPECT_FALSE(report.is_sound());
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_NE(report.faults[0].find("byte 1023 is wrong"), std::string::npos) << report.faults[0];
}

TEST_F(CorruptedPool, WithChecksumsIsAMissThatIsCountedAsDamage) {
  make(DomainKind::kNoncoherent);
  run_engine(0, true);
  damage(3, 2);
  run_engine(1, true);
  EXPECT_GE(counted(1, ReplayCounter::kDamagedReads), 1u);
  EXPECT_EQ(counted(1, ReplayCounter::kVerifyErrors), 0u);
  EXPECT_LT(counted(1, ReplayCounter::kHitBlocks), load_->blocks());
  EXPECT_FALSE(make_report(options_, *load_, *harness_).is_sound());
}

TEST_F(CorruptedPool, IsNotWhatAnUndamagedOneLooksLike) {
  make(DomainKind::kNoncoherent);
  run_engine(0, true);
  run_engine(1, true);
  EXPECT_EQ(counted(1, ReplayCounter::kHitBlocks), load_->blocks());
  EXPECT_EQ(counted(1, ReplayCounter::kCheckedBytes), load_->blocks() * options_.block_bytes);
  EXPECT_TRUE(make_report(options_, *load_, *harness_).is_sound());
}

}  // namespace
}  // namespace cachalot::replay
