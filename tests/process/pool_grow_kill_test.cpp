// Keepers that are killed while a pool gets or gives up a device.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/fail_point.h"
#include "os/child.h"
#include "pool/pool.h"
#include "program.h"
#include "testing/pool/chains.h"

#ifdef CACHALOT_FAIL_POINTS
namespace cachalot::process_test {
namespace {

constexpr std::uint64_t kBlockBytes = 64 << 10;
constexpr std::size_t kChainBlocks = 8;
constexpr std::uint64_t kDeviceBlocks = 256;  // 16 MiB and 2 MiB of header

// A keeper of the library, in a process of its own that ends at the point.
class DyingKeeper {
 public:
  DyingKeeper(const std::string& path, base::FailPoint point) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    Result<os::Child> child = os::Child::start([&path, point, ready] {
      kills_at_ = point;
      base::fail_point_handler = [](base::FailPoint reached) {
        if (reached == kills_at_) raise(SIGKILL);
      };
      Result<pool::Pool> pool = pool::Pool::open({path}, {.huge_pages = false});
      if (!pool) return 2;
      Result<pool::PoolKeeper> keeper = pool->serve({});
      if (!keeper || ::write(ready[1], "r", 1) != 1) return 3;
      const std::atomic<bool> never{false};
      return keeper->run(never) ? 4 : 5;
    });
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    close(ready[0]);
    EXPECT_TRUE(child);
    if (child) child_.emplace(*std::move(child));
  }
  // 0 for one that has not reached the point within 30 s; it is killed then.
  int signal_that_ended_it() {
    if (!child_) return 0;
    const Result<std::optional<os::ChildStatus>> ended = child_->wait_for(30'000);
    return ended && *ended ? (*ended)->signal : 0;
  }

 private:
  static inline base::FailPoint kills_at_ = base::FailPoint::kNone;
  std::optional<os::Child> child_;
};

class KillWhileItGrows : public ProcessTest {
 protected:
  void SetUp() override {
    expect_done(run({"pool", "create", pool_, "--block-bytes", "64KiB", "--size", "16MiB",
                     "--max-size", "256MiB", "--clients", "4"}));
  }
  Outcome grow(const std::string& name) const {
    return run({"pool", "grow", pool_, "--device", path(name), "--size", "18MiB"});
  }
  Outcome shrink(const std::string& name) const {
    return run({"pool", "shrink", pool_, "--device", path(name)});
  }
  nlohmann::json geometry() const {
    return run({"pool", "info", pool_, "--json", "-"}).json()["geometry"];
  }
  std::uint64_t blocks() const { return geometry()["blocks"].get<std::uint64_t>(); }

  // Chains called first, first + kChainBlocks, … that are there, with the right bytes, on the first `on` blocks.
  std::vector<std::uint64_t> chains(std::uint64_t first, std::size_t n, std::uint64_t on) const {
    OwnClient client = attach();
    std::vector<std::uint64_t> there;
    for (std::uint64_t name = first; name < first + n * kChainBlocks; name += kChainBlocks) {
      BlockHash hashes[kChainBlocks];
      pool::Found found[kChainBlocks];
      for (std::size_t i = 0; i < kChainBlocks; ++i) hashes[i] = pool::hash_of(name + i);
      const std::size_t hits = client.client->client().lookup(hashes, found);
      bool is_on = hits == kChainBlocks;
      for (std::size_t i = 0; i < hits; ++i) is_on = is_on && found[i].entry.block < on;
      if (is_on && pool::read_chain(client.client->client(), kBlockBytes, name, kChainBlocks) ==
                       kChainBlocks)
        there.push_back(name);
    }
    return there;
  }
  void put(std::uint64_t first, std::size_t n) const {
    OwnClient client = attach();
    for (std::uint64_t name = first; name < first + n * kChainBlocks; name += kChainBlocks)
      pool::put_chain(client.client->client(), kBlockBytes, name, kChainBlocks);
  }

  const std::string pool_ = path("kv");

 private:
  struct OwnClient {
    std::optional<pool::Pool> pool;
    std::optional<pool::PoolClient> client;
  };
  OwnClient attach() const {
    OwnClient attached;
    Result<pool::Pool> pool = pool::Pool::open({pool_}, {.huge_pages = false});
    EXPECT_TRUE(pool) << (pool ? "" : pool.error().message);
    attached.pool.emplace(*std::move(pool));
    Result<pool::PoolClient> client = attached.pool->attach({});
    EXPECT_TRUE(client) << (client ? "" : client.error().message);
    attached.client.emplace(*std::move(client));
    return attached;
  }
};

TEST_F(KillWhileItGrows, BetweenTheTableAndTheFirstBlockOfTheDevice) {
  std::vector<std::uint64_t> stored;
  std::uint64_t before = 0;
  {
    Serving keeper({"serve", pool_});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(grow("one"));
    before = blocks();
    put(1, 30);
    stored = chains(1, 30, before);
    EXPECT_EQ(stored.size(), 30u);
    expect_done(run({"stop", pool_}));
  }
  DyingKeeper dying(pool_, base::FailPoint::kExpansionNamed);
  EXPECT_EQ(grow("two").exit_code, 3);
  EXPECT_EQ(dying.signal_that_ended_it(), SIGKILL);
  expect_done(run({"pool", "fsck", pool_}));
  Serving keeper({"serve", pool_});
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_EQ(chains(1, 30, before), stored);
  // The table named the device, so it is there.
  EXPECT_EQ(blocks(), before + kDeviceBlocks);
  expect_error(grow("two"), 3, {path("two"), "a device of this pool already"});
  expect_done(shrink("two"));
  EXPECT_EQ(blocks(), before);
  EXPECT_EQ(chains(1, 30, before), stored);
  expect_done(grow("two"));
  put(10'000, 20);
  EXPECT_EQ(chains(10'000, 20, before + kDeviceBlocks).size(), 20u);
  expect_done(run({"pool", "fsck", pool_}));
}

TEST_F(KillWhileItGrows, BetweenTheLastBlockOfTheDeviceAndTheTable) {
  std::vector<std::uint64_t> elsewhere;
  std::uint64_t before = 0;
  {
    Serving keeper({"serve", pool_});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(grow("one"));
    before = blocks();
    expect_done(grow("two"));
    put(1, 70);
    elsewhere = chains(1, 70, before);
    EXPECT_GT(elsewhere.size(), 10u);
    EXPECT_LT(elsewhere.size(), 70u);
    expect_done(run({"stop", pool_}));
  }
  DyingKeeper dying(pool_, base::FailPoint::kExpansionEmpty);
  EXPECT_EQ(shrink("two").exit_code, 3);
  EXPECT_EQ(dying.signal_that_ended_it(), SIGKILL);
  EXPECT_TRUE(std::filesystem::exists(path("two")));
  expect_done(run({"pool", "fsck", pool_}));
  Serving keeper({"serve", pool_});
  ASSERT_TRUE(keeper.is_ready());
  // Those that the smaller capacity has room for.
  const std::vector<std::uint64_t> left = chains(1, 70, before);
  EXPECT_EQ(left.size(),
            std::min<std::size_t>(elsewhere.size(),
                                  geometry()["capacity_blocks"].get<std::size_t>() / kChainBlocks));
  EXPECT_TRUE(std::ranges::includes(elsewhere, left));
  // It is being given up still, and the same command ends that.
  EXPECT_EQ(blocks(), before);
  EXPECT_EQ(geometry()["added_devices"][1]["leaving"], true);
  expect_done(shrink("two"));
  EXPECT_FALSE(std::filesystem::exists(path("two")));
  EXPECT_EQ(chains(1, 70, before), left);
  expect_done(grow("two"));
  EXPECT_EQ(blocks(), before + kDeviceBlocks);
  put(10'000, 20);
  EXPECT_EQ(chains(10'000, 20, before + kDeviceBlocks).size(), 20u);
  expect_done(run({"pool", "fsck", pool_}));
}

}  // namespace
}  // namespace cachalot::process_test
#endif
