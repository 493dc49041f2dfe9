// An engine with a GPU on a pool that gets and gives up devices: what is mapped later is registered, too.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "pool/expansion/expansion_device.h"
#include "pool/pool.h"
#include "pool/sizing.h"
#include "testing/client/test_gpu.h"
#include "testing/os/scratch_folder.h"

namespace cachalot::client {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{8} << 20;
constexpr std::size_t kPromptBlocks = 16;

class GpuGrowingPoolTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    pool::Geometry shape;
    shape.domain = std::string(GetParam()) == "coherent" ? memory::DomainKind::kCoherent
                                                         : memory::DomainKind::kNoncoherent;
    shape.block_bytes = small_geometry().block_bytes();
    shape.clients = 6;
    const Result<pool::Geometry> first = pool::with_capacity(shape, 64);
    ASSERT_TRUE(first) << first.error().message;
    pool::CreateOptions create;
    create.paths = {path("pool")};
    create.geometry = *pool::with_room_to_grow(*first, std::uint64_t{64} << 20, false);
    create.huge_pages = false;
    Result<pool::Pool> made = pool::Pool::create(create);
    ASSERT_TRUE(made) << made.error().message;
    pool_.emplace(*std::move(made));
    std::atomic<bool> ready{false};
    keeper_ = std::thread([this, &ready] {
      Result<pool::PoolKeeper> keeper = pool_->serve({});
      EXPECT_TRUE(keeper);
      ready = true;
      if (keeper) (void)keeper->run(stop_);
    });
    while (!ready) std::this_thread::yield();
    pool::ClientOptions options;
    options.is_operator = true;
    Result<pool::PoolClient> attached = pool_->attach(options);
    ASSERT_TRUE(attached) << attached.error().message;
    operators_.emplace(*std::move(attached));
  }
  void TearDown() override {
    operators_.reset();
    stop_ = true;
    keeper_.join();
    EXPECT_EQ(machine_.fake.faults, 0u);
    EXPECT_EQ(machine_.fake.refused, 0u);
    EXPECT_EQ(machine_.fake.registrations(), 0u);
  }

  std::string path(const std::string& name) const { return scratch_.path(name); }
  ClientOptions options() const {
    ClientOptions options;
    options.pool = {path("pool")};
    options.model = "test-model@1";
    options.geometry = small_geometry();
    return options;
  }
  pool::Expansion grow(const std::string& name) {
    const Result<pool::Expansion> made =
        pool::make_expansion(pool_->access(), path(name), kPartBytes);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    const auto answer = (*operators_)->requests().add_expansion(made->path, made->serial);
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
    return *made;
  }
  // An engine that computes nothing returns what it holds in advance when its client is renewed.
  void shrink(const pool::Expansion& device) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::uint32_t in_use = 1;
    while (in_use != 0 && std::chrono::steady_clock::now() < until) {
      const auto answer = (*operators_)->requests().give_up_expansion(device.serial);
      ASSERT_TRUE(answer) << answer.error().message;
      in_use = answer->in_use;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(in_use, 0u);
    EXPECT_TRUE(pool::dispose_of_expansion(pool_->access(), device));
  }
  // Stores prompts until blocks lie on the whole of the pool.
  std::vector<std::vector<BlockHash>> fill(GpuEngine& engine, std::uint64_t first) {
    std::vector<std::vector<BlockHash>> prompts;
    const std::uint64_t blocks = pool_->state().capacity_blocks();
    for (std::uint64_t i = 0; i < blocks / kPromptBlocks + 1; ++i)
      prompts.push_back(engine.store(first + i, kPromptBlocks));
    return prompts;
  }
  // @return blocks that were loaded; the bytes of each are right
  static std::size_t load(GpuEngine& engine, const std::vector<std::vector<BlockHash>>& prompts) {
    std::size_t loaded = 0;
    for (const auto& hashes : prompts) {
      engine.clear();
      const Result<std::size_t> hits =
          engine.client.load(engine.cache, hashes, pages_from(0, kPromptBlocks));
      EXPECT_TRUE(hits) << (hits ? "" : hits.error().message);
      for (std::size_t i = 0; hits && i < *hits; ++i)
        EXPECT_TRUE(engine.holds(hashes[i], static_cast<PageId>(i)));
      loaded += hits ? *hits : 0;
    }
    return loaded;
  }

  const os::ScratchFolder scratch_{"/dev/shm"};
  GpuMachine machine_;
  std::optional<pool::Pool> pool_;
  std::atomic<bool> stop_{false};
  std::thread keeper_;
  std::optional<pool::PoolClient> operators_;
};

TEST_P(GpuGrowingPoolTest, BlocksOnADeviceThatCameLaterAreCopiedByTheGpu) {
  GpuEngine writer(machine_, options()), reader(machine_, options());
  EXPECT_EQ(machine_.fake.registrations(), 2u);  // a pool each
  const auto before = fill(writer, 1);
  EXPECT_GT(load(reader, before), 0u);
  grow("more");
  const auto after = fill(writer, 1'000'000);
  EXPECT_GE(machine_.fake.registrations(), 3u);  // the reader's, too, if its client was renewed
  EXPECT_GT(load(reader, after), kPartBytes / small_geometry().block_bytes());
  EXPECT_EQ(machine_.fake.registrations(), 4u);
  // A GPU that is opened when the device is there.
  GpuEngine late(machine_, options());
  EXPECT_EQ(load(late, after), load(reader, after));
}

TEST_P(GpuGrowingPoolTest, ADeviceThatAGpuHasLockedIsNotReplacedUnderIt) {
  GpuEngine engine(machine_, options());
  const pool::Expansion first = grow("first");
  fill(engine, 1);
  shrink(first);
  grow("second");
  GpuEngine fresh(machine_, options());
  const auto prompts = fill(fresh, 2'000'000);
  const std::size_t all = load(fresh, prompts);
  EXPECT_GT(all, kPartBytes / small_geometry().block_bytes());
  // To the other engine the second device's blocks are misses. What it loads is right.
  EXPECT_LT(load(engine, prompts), all);
}

INSTANTIATE_TEST_SUITE_P(Domains, GpuGrowingPoolTest, ::testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot::client
