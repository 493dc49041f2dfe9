#include "vtensor/chunk_store.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>
#include <utility>

#include "testing/device_memory/faulty_backend.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = device_memory::FaultyBackend::kGranule;

class ChunkStoreTest : public testing::Test {
 protected:
  device_memory::FaultyBackend backend_;
  LocalBudget budget_{8};
  ChunkStore store_{backend_, budget_, kChunk};
  std::vector<Chunk> chunks_;

  std::uint64_t credits_left() {
    return budget_.take(100);  // there are never so many, so none is taken
  }
};

TEST_F(ChunkStoreTest, TakesAllOrNothing) {
  EXPECT_TRUE(store_.take(6, chunks_));
  const Status refused = store_.take(3, chunks_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(refused.error().detail, 1u);
  EXPECT_EQ(chunks_.size(), 6u);
  EXPECT_EQ(credits_left(), 2u);
  EXPECT_TRUE(store_.take(2, chunks_));
  EXPECT_EQ(store_.counts().created_late, 8u);
}

TEST_F(ChunkStoreTest, KeepsWhatWasDroppedAndGivesItAgainWithoutTheDevice) {
  ASSERT_TRUE(store_.take(4, chunks_));
  EXPECT_EQ(store_.drop(chunks_), 4u);
  const device_memory::CallCounts before = backend_.counts();
  std::vector<Chunk> again;
  ASSERT_TRUE(store_.take(4, again));
  EXPECT_EQ(backend_.counts(), before);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(again[i].handle, chunks_[i].handle);
}

TEST_F(ChunkStoreTest, CountsReferences) {
  ASSERT_TRUE(store_.take(2, chunks_));
  store_.share(chunks_);
  store_.share({chunks_.data(), 1});
  EXPECT_EQ(store_.counts().references, 5u);
  EXPECT_EQ(store_.counts().used, 2u);
  EXPECT_EQ(store_.drop(chunks_), 0u);
  EXPECT_EQ(store_.drop(chunks_), 1u);
  EXPECT_EQ(store_.counts().ready, 1u);
  EXPECT_EQ(store_.drop({chunks_.data(), 1}), 1u);
  EXPECT_EQ(store_.counts().used, 0u);
}

TEST_F(ChunkStoreTest, ACreateThatFailsLosesNeitherHandlesNorCredits) {
  backend_.fail("create", 3);
  ASSERT_FALSE(store_.take(5, chunks_));
  EXPECT_TRUE(chunks_.empty());
  EXPECT_EQ(store_.counts().ready, 2u);
  EXPECT_EQ(credits_left(), 6u);
  backend_.heal();
  EXPECT_TRUE(store_.take(8, chunks_));
  EXPECT_EQ(backend_.counts().create, 8u);
}

TEST_F(ChunkStoreTest, GivesMemoryAndCreditsBack) {
  EXPECT_TRUE(store_.fill_ready(8));
  EXPECT_FALSE(store_.fill_ready(9));
  EXPECT_EQ(store_.give_back(3), 3u);
  EXPECT_EQ(credits_left(), 3u);
  EXPECT_EQ(backend_.physical_bytes(), 5 * kChunk);
  EXPECT_EQ(store_.give_back(100), 5u);
  ASSERT_TRUE(store_.take(8, chunks_));  // vacant places are used again
  EXPECT_EQ(credits_left(), 0u);
}

TEST_F(ChunkStoreTest, MemoryThatTheDeviceDoesNotTakeBackKeepsItsCredit) {
  EXPECT_TRUE(store_.fill_ready(4));
  backend_.fail("release", 2);
  EXPECT_EQ(store_.give_back(4), 3u);
  EXPECT_EQ(credits_left(), 7u);
  EXPECT_EQ(backend_.physical_bytes(), kChunk);
}

TEST_F(ChunkStoreTest, HoldsNoLockWhileTheDeviceWorks) {
  backend_.inside = [&](const std::string& call) {
    if (call == "create") static_cast<void>(store_.counts());  // would wait for itself
  };
  EXPECT_TRUE(store_.take(2, chunks_));
  EXPECT_TRUE(store_.fill_ready(2));
}

// The filling thread has the last credit; when take() finds that out, it is let go on.
TEST_F(ChunkStoreTest, WaitsForTheChunkThatIsBeingFilledIn) {
  class Gate final : public ChunkBudget {
   public:
    std::uint64_t take(std::uint64_t wanted) override {
      const std::uint64_t had = credits_.take(wanted);
      if (had < wanted && wanted > 1) may_go_on.count_down();
      return had;
    }
    void give(std::uint64_t credits) override { credits_.give(credits); }
    std::latch may_go_on{1};

   private:
    LocalBudget credits_{8};
  } gate;
  ChunkStore store(backend_, gate, kChunk);
  std::latch is_filling(1);
  backend_.inside = [&, is_first = true](const std::string& call) mutable {
    if (call != "create" || !std::exchange(is_first, false)) return;
    is_filling.count_down();
    gate.may_go_on.wait();
  };
  std::thread background([&] { EXPECT_TRUE(store.fill_ready(1)); });
  is_filling.wait();
  EXPECT_TRUE(store.take(8, chunks_));
  background.join();
  EXPECT_EQ(chunks_.size(), 8u);
  store.drop(chunks_);
}

TEST_F(ChunkStoreTest, ManyThreadsNeverShareAChunk) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        std::vector<Chunk> mine;
        if (!store_.take(1 + round % 2, mine)) continue;
        EXPECT_EQ(store_.drop(mine), mine.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_.counts().used, 0u);
  EXPECT_EQ(store_.counts().references, 0u);
  EXPECT_EQ(credits_left() + store_.counts().ready, 8u);
}

}  // namespace
}  // namespace cachalot::vtensor
