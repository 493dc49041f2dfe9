// The keeper's observer hears of every block that clients can find, and of its end.

#include "pool/keeper/block_observer.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "pool/reader/directory.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

// Holds what it was told, and nothing else.
class Listener final : public BlockObserver {
 public:
  explicit Listener(const Access& access) : reader_(access) {}

  void on_published(const PublishedBlock& block) override {
    EXPECT_EQ(blocks_.count(block.use.block), 0u);
    KeeperView view;
    Found found;
    EXPECT_EQ(reader_.lookup({&block.hash, 1}, block.namespace_id, view, {&found, 1}), 1u)
        << "readers find it";
    EXPECT_TRUE(block.parent == kNoBlock || blocks_.count(block.parent) == 1) << "parents first";
    blocks_[block.use.block] = block;
  }
  void on_removed(std::uint32_t block, const BlockHash& hash) override {
    ASSERT_EQ(blocks_.count(block), 1u);
    EXPECT_EQ(blocks_[block].hash, hash);
    blocks_.erase(block);
    for (const auto& [child, known] : blocks_) EXPECT_NE(known.parent, block) << "leaves first";
  }
  void on_repaired() override { ++repairs_; }

  bool holds(const BlockHash& hash) const {
    for (const auto& [number, known] : blocks_) {
      if (known.hash == hash) return true;
    }
    return false;
  }
  const std::map<std::uint32_t, PublishedBlock>& blocks() const { return blocks_; }
  int repairs() const { return repairs_; }

 private:
  const DirectoryReader reader_;
  std::map<std::uint32_t, PublishedBlock> blocks_;
  int repairs_ = 0;
};

class BlockObserverTest : public testing::Test {
 protected:
  void start(KeeperOptions options = {}) {
    pool_.start_keeper(std::move(options)).observe(heard_);
    client_ = pool_.attach(0);
  }
  void expect_equal(std::uint64_t names) {
    for (std::uint64_t name = 0; name < names; ++name) {
      const bool is_there = pool_.keeper().is_published(hash_of(name), client_->namespace_id());
      ASSERT_EQ(heard_.holds(hash_of(name)), is_there) << name;
    }
    EXPECT_EQ(heard_.blocks().size(), pool_.keeper().counters()[KeeperCounter::kLive]);
  }
  void TearDown() override { pool_.keeper().end_observing(heard_); }

  TestPool pool_{small_geometry(32)};
  Listener heard_{pool_.access()};
  std::unique_ptr<Client> client_;
};

TEST_F(BlockObserverTest, RandomStoresAndEvictionsLeaveItWithThePoolsBlocks) {
  start();
  base::Rng rng(1);
  constexpr std::uint64_t kNames = 120;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t first = rng.below(kNames - 8);
    const BlockHash parent = hash_of(rng.below(kNames));
    if (rng.below(5) == 0) {
      static_cast<void>(client_->requests().evict(hash_of(first)));
    } else {
      pool_.put(*client_, first, 1 + rng.below(8), rng.below(3) == 0 ? &parent : nullptr);
    }
    if (i % 50 == 0) expect_equal(kNames);
  }
  EXPECT_GT(pool_.keeper().counters()[KeeperCounter::kEvictions], 100u);
  expect_equal(kNames);
  static_cast<void>(client_->requests().evict_everything());
  EXPECT_TRUE(heard_.blocks().empty());
}

TEST_F(BlockObserverTest, ExpiredBlocksAreRemoved) {
  KeeperOptions options;
  options.ttl_ns = 1'000'000'000;
  start(options);
  pool_.put(*client_, 1, 4);
  ASSERT_EQ(heard_.blocks().size(), 4u);
  pool_.clock().pass(10'000'000'000);
  for (int i = 0; i < 5; ++i) pool_.keeper().tend();
  EXPECT_TRUE(heard_.blocks().empty());
}

TEST_F(BlockObserverTest, AUseHasItsGenerationAndNamespace) {
  start();
  pool_.put(*client_, 1, 1);
  const Entry entry = pool_.entry_of(hash_of(1));
  const PublishedBlock& block = heard_.blocks().at(entry.block);
  EXPECT_EQ(block.use.generation, entry.generation);
  EXPECT_EQ(block.namespace_id, entry.namespace_id);
  EXPECT_EQ(block.parent, kNoBlock);
}

TEST_F(BlockObserverTest, LinesThatWereMendedAreTold) {
  pool_.scrub_lines = 1u << 20;
  start();
  pool_.put(*client_, 1, 2);
  pool_.keeper().tend();
  EXPECT_EQ(heard_.repairs(), 0);
  pool_.damage(pool_.access().layout.entry(pool_.slot_of(hash_of(1))));
  pool_.keeper().tend();
  EXPECT_EQ(heard_.repairs(), 1);
}

}  // namespace
}  // namespace cachalot::pool
