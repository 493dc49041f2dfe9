// The line by which a keeper rules, damaged: by a stray store, a failing device, an operator's dd.

#include "pool/keeper/keeper_line.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "pool/client/client.h"
#include "pool/pool.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class KeeperLineTest : public ::testing::Test {
 protected:
  KeeperLineTest() { pool_.start_keeper(); }
  const Layout& layout() { return pool_.access().layout; }
  std::uint64_t count(KeeperCounter counter) { return pool_.keeper().counters()[counter]; }
  void wipe(std::uint64_t offset) {
    std::memset(pool_.access().region.at(offset), 0, memory::kLineBytes);
  }

  TestPool pool_;
};

TEST_F(KeeperLineTest, IsMendedByItsKeeperWhereverItIsDamaged) {
  const auto client = pool_.attach(0);
  pool_.put(*client, 1, 2);
  for (std::uint32_t byte = 0; byte < memory::kLineBytes; ++byte) {
    pool_.damage(layout().keeper_line(0), byte);
    if (byte % 2 == 0) pool_.damage(layout().keeper_line_copy(0), byte);
    pool_.keeper().tend();
    ASSERT_EQ(DirectoryReader(pool_.access()).read_keepers().epoch, 1u) << byte;
    ASSERT_EQ(pool_.line_at<KeeperLine>(layout().keeper_line_copy(0)).epoch, 1u) << byte;
  }
  EXPECT_EQ(count(KeeperCounter::kRepairedLines), 96u);
  EXPECT_EQ(pool_.read(*client, 1, 2), 2u);
}

TEST_F(KeeperLineTest, OneOfTheTwoIsEnoughForASuccessor) {
  for (const bool is_copy : {false, true}) {
    const auto client = pool_.attach(is_copy);
    pool_.put(*client, is_copy ? 10 : 1, 3);
    const std::uint32_t epoch = pool_.keeper().epoch(), slot = (epoch - 1) % kKeeperSlots;
    pool_.kill_keeper();
    wipe(is_copy ? layout().keeper_line_copy(slot) : layout().keeper_line(slot));
    pool_.start_keeper();
    EXPECT_EQ(pool_.keeper().epoch(), epoch + 1);
    EXPECT_EQ(count(KeeperCounter::kLive), is_copy ? 6u : 3u);
  }
}

TEST_F(KeeperLineTest, WhereBothAreLostNothingIsUsedBeforeSomebodyVouches) {
  const auto client = pool_.attach(0);
  pool_.put(*client, 1, 3);
  const std::uint64_t blocks = pool_.access().geometry.blocks;
  pool_.kill_keeper();
  wipe(layout().keeper_line(0));
  wipe(layout().keeper_line_copy(0));
  pool_.start_keeper();
  EXPECT_GT(pool_.keeper().epoch(), 1u);  // no identity comes twice
  EXPECT_EQ(count(KeeperCounter::kQuarantined), blocks);
  EXPECT_TRUE(pool_.keeper().is_valid());
  const auto other = pool_.attach(1);
  EXPECT_EQ(pool_.read(*other, 1, 3), 0u);
  const auto bytes = payload_of(9, 256);
  Verdict verdict{};
  EXPECT_EQ(other->put(nullptr, {{{hash_of(9), bytes}}}, {&verdict, 1}).error().code,
            Code::kNoSpace);
  EXPECT_EQ(*other->requests().fence_unknown(), blocks);
  pool_.put(*other, 20, 3);
  EXPECT_EQ(pool_.read(*other, 20, 3), 3u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(KeeperLineTest, ASuccessorThatDiedInItsTakeoverDoesNotHideThatBothAreLost) {
  const auto client = pool_.attach(0);
  pool_.put(*client, 1, 3);
  pool_.kill_keeper();
  KeeperLine successor = read_keeper_line(pool_.access(), 0);
  wipe(layout().keeper_line(0));
  wipe(layout().keeper_line_copy(0));
  successor.epoch = 2;
  successor.min_epoch = 1;
  publish_keeper_line(pool_.access(), 1, successor);
  pool_.start_keeper();
  EXPECT_GT(pool_.keeper().epoch(), 2u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), pool_.access().geometry.blocks);
}

TEST_F(KeeperLineTest, EntriesAloneTellThatSomebodyRuled) {
  const auto client = pool_.attach(0);
  pool_.put(*client, 1, 3);
  pool_.kill_keeper();
  std::memset(pool_.access().region.at(layout().keeper_line(0)), 0, layout().ledger_in_area);
  pool_.start_keeper();
  EXPECT_GT(pool_.keeper().epoch(), 1u);
  EXPECT_EQ(count(KeeperCounter::kFree), 0u);
}

TEST(PoolServe, RefusesToRuleBesideALivingKeeperWhoseLineIsDamaged) {
  const std::string path = "/dev/shm/cachalot_keeper_line_test." + std::to_string(getpid());
  Result<Pool> pool = create_small_pool(path);
  ASSERT_TRUE(pool) << pool.error().message;
  {  // its line stays, and can be read
    Result<PoolKeeper> before = pool->serve({});
    ASSERT_TRUE(before) << before.error().message;
  }
  {
    Result<PoolKeeper> keeper = pool->serve({});
    ASSERT_TRUE(keeper) << keeper.error().message;
    Result<Pool> other = Pool::open({path});
    ASSERT_TRUE(other);
    EXPECT_EQ(other->serve({}).error().code, Code::kBusy);
    for (const std::uint64_t at :
         {pool->access().layout.keeper_line(1), pool->access().layout.keeper_line_copy(1)}) {
      std::memset(pool->access().region.at(at), 0xff, memory::kLineBytes);
    }
    EXPECT_EQ(other->serve({}).error().code, Code::kBusy);
    keeper->keeper().tend();
    EXPECT_EQ(pool->state().read_keepers().epoch, 2u);
  }
  ASSERT_TRUE(Pool::destroy({path}));
}

}  // namespace
}  // namespace cachalot::pool
