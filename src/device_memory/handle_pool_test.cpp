#include "device_memory/handle_pool.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device_memory/model/model_backend.h"

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;

class PoolOnModel : public testing::Test {
 protected:
  std::unique_ptr<HandlePool> start(std::uint64_t low, std::uint64_t high,
                                    std::uint64_t handle_bytes = kChunk) {
    auto pool = HandlePool::start(
        *model_, {.handle_bytes = handle_bytes, .low_handles = low, .high_handles = high});
    EXPECT_TRUE(pool) << pool.error().message;
    (*pool)->wait_until_filled();
    return *std::move(pool);
  }
  std::unique_ptr<ModelBackend> model_ = *ModelBackend::open();
};

TEST_F(PoolOnModel, FillsUpToTheHighMarkBeforeAnybodyAsks) {
  const auto pool = start(2, 8);
  EXPECT_EQ(pool->ready(), 8u);
  EXPECT_EQ(pool->counts().filled, 8u);
  EXPECT_EQ(model_->physical_bytes(), 8 * kChunk);
}

TEST_F(PoolOnModel, CallsNoDriverBetweenTheMarks) {
  const auto pool = start(2, 8);
  const CallCounts before = model_->counts();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(pool->take());
  pool->wait_until_filled();
  EXPECT_EQ(model_->counts(), before);
  EXPECT_EQ(pool->counts().taken_ready, 6u);
}

TEST_F(PoolOnModel, FillsUpAgainBelowTheLowMark) {
  const auto pool = start(2, 8);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(pool->take());
  pool->wait_until_filled();
  EXPECT_EQ(pool->ready(), 8u);
  EXPECT_EQ(pool->counts().filled, 15u);
}

TEST_F(PoolOnModel, CreatesWhereItKeepsNothing) {
  const auto pool = start(0, 0);
  const Handle handle = *pool->take();
  EXPECT_EQ(pool->counts().taken_created, 1u);
  EXPECT_EQ(model_->info(handle)->bytes, kChunk);
  ASSERT_TRUE(pool->give_back(handle));
  EXPECT_EQ(pool->counts().released, 1u);
  EXPECT_EQ(model_->physical_bytes(), 0u);
}

TEST_F(PoolOnModel, HandlesCreatedInARowAreTakenInARow) {
  const auto pool = start(1, 16);
  std::uint64_t last = 0;
  for (int i = 0; i < 12; ++i) {
    const Handle handle = *pool->take();
    EXPECT_GT(handle.value, last);
    last = handle.value;
  }
}

TEST_F(PoolOnModel, KeepsHandlesOfItsOwnSize) {
  const auto pool = start(1, 2, 64 * kChunk);
  EXPECT_EQ(model_->info(*pool->take())->bytes, 64 * kChunk);
  const auto refused = HandlePool::start(*model_, {.handle_bytes = kChunk + 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(HandlePool::start(*model_, {.handle_bytes = 0}));
  EXPECT_FALSE(HandlePool::start(*model_, {.low_handles = 3, .high_handles = 2}));
}

TEST_F(PoolOnModel, KeepsWhatIsGivenBackUpToTheHighMark) {
  const auto pool = start(0, 4);
  std::vector<Handle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(*pool->take());
  handles.push_back(*model_->create(kChunk));
  for (const Handle handle : handles) ASSERT_TRUE(pool->give_back(handle));
  EXPECT_EQ(pool->ready(), 4u);
  EXPECT_EQ(pool->counts().kept, 4u);
  EXPECT_EQ(pool->counts().released, 1u);
  EXPECT_EQ(model_->physical_bytes(), 4 * kChunk);
  EXPECT_EQ(*pool->take(), handles.front());
}

TEST_F(PoolOnModel, TakesBackOnlyHandlesThatSomebodyElseCanHave) {
  const auto pool = start(1, 4);
  const Address range = *model_->reserve(kChunk);
  const Handle mapped = *pool->take(), released = *pool->take();
  const Handle larger = *model_->create(2 * kChunk);
  ASSERT_TRUE(model_->map(range, mapped));
  ASSERT_TRUE(model_->release(released));
  for (const Handle handle : {mapped, released, larger, Handle{}}) {
    const Status refused = pool->give_back(handle);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::strstr(refused.error().message, "expected"), nullptr);
  }
  ASSERT_TRUE(model_->unmap(range, kChunk));
  EXPECT_TRUE(pool->give_back(mapped));
  const Status twice = pool->give_back(mapped);
  ASSERT_FALSE(twice);
  EXPECT_NE(std::strstr(twice.error().message, "twice"), nullptr);
}

TEST_F(PoolOnModel, AFullDeviceIsAskedOnceATakeAndNotInALoop) {
  model_->set_limit_bytes(4 * kChunk);
  const auto pool = start(2, 8);
  EXPECT_EQ(pool->ready(), 4u);
  EXPECT_EQ(pool->counts().failed_fills, 1u);
  Handle last;
  for (int i = 0; i < 4; ++i) last = *pool->take();
  pool->wait_until_filled();
  const auto refused = pool->take();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_LE(pool->counts().failed_fills, 5u);
  ASSERT_TRUE(model_->release(last));
  EXPECT_TRUE(pool->take());
}

TEST_F(PoolOnModel, LeavesNothingReadyBehindAndLeavesTakenHandlesAlone) {
  Handle taken;
  {
    const auto pool = start(2, 8);
    taken = *pool->take();
  }
  EXPECT_EQ(model_->physical_bytes(), kChunk);
  EXPECT_TRUE(model_->release(taken));
}

TEST_F(PoolOnModel, StopsWhileItFills) {
  for (int i = 0; i < 200; ++i) {
    const auto pool = HandlePool::start(*model_, {.low_handles = 50, .high_handles = 100});
    ASSERT_TRUE((*pool)->take());
  }
  EXPECT_EQ(model_->physical_bytes(), 200 * kChunk);
}

TEST_F(PoolOnModel, NoHandleHasTwoTakers) {
  const auto pool = start(8, 32);
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const Address range = *model_->reserve(3 * kChunk);
      for (int round = 0; round < kRounds; ++round) {
        Handle handles[3];
        for (std::uint64_t k = 0; k < 3; ++k) {
          handles[k] = *pool->take();
          EXPECT_EQ(model_->info(handles[k])->mappings, 0u);
          EXPECT_TRUE(model_->map(range + k * kChunk, handles[k]));
        }
        EXPECT_TRUE(model_->unmap(range, 3 * kChunk));
        for (const Handle handle : handles) EXPECT_TRUE(pool->give_back(handle));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const HandlePoolCounts counts = pool->counts();
  EXPECT_EQ(counts.taken_ready + counts.taken_created, std::uint64_t{3} * kThreads * kRounds);
  pool->wait_until_filled();
  EXPECT_EQ(model_->physical_bytes(), pool->ready() * kChunk);
}

// A device with memory for one handle: one caller gets it, but only after another was refused.
class OneHandleDevice final : public Backend {
 public:
  OneHandleDevice() : Backend(kChunk) {}
  const char* name() const override { return "one_handle"; }
  std::string description() const override { return name(); }
  void wait_until_asked() {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return asked_; });
  }

 private:
  Result<Address> do_reserve(std::uint64_t) override { return Address{kChunk}; }
  Status do_free(Address, std::uint64_t) override { return {}; }
  Result<std::uint64_t> do_create(std::uint64_t) override {
    std::unique_lock lock(mutex_);
    change_.notify_all();
    if (!std::exchange(asked_, true)) {
      change_.wait(lock, [&] { return refused_; });
      return std::uint64_t{1};
    }
    refused_ = true;
    return Error::make(Code::kNoSpace, "full");
  }
  Status do_release(const Memory&) override { return {}; }
  Status do_map(Address, const Memory&) override { return {}; }
  Status do_set_access(const Span&, Access) override { return {}; }
  Status do_unmap(const Span&) override { return {}; }

  std::mutex mutex_;
  std::condition_variable change_;
  bool asked_ = false, refused_ = false;
};

// The thread may have got it while the taker was refused: the taker has it in the end.
TEST(HandlePool, TheLastMemoryIsTheTakers) {
  for (int round = 0; round < 50; ++round) {
    OneHandleDevice device;
    const auto pool = HandlePool::start(device, {.low_handles = 1, .high_handles = 1});
    ASSERT_TRUE(pool);
    device.wait_until_asked();
    EXPECT_TRUE((*pool)->take()) << "round " << round;
  }
}

}  // namespace
}  // namespace cachalot::device_memory
