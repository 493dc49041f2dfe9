// What no backend and no fault may do. The tests of each backend's folder run it (faults.h).
//
//             killed, paused, reset           full                    flipped, truncated, swapped
//   file      no server (make soak-storage)   replaces the coldest    yes
//   shared    paused                          replaces the coldest    yes
//   rocksdb   no server                       yes                     yes
//   redis     yes                             yes                     yes
//   s3        yes                             yes                     yes
//   plug-in   no server: runs in the process  yes                     yes
#include <filesystem>
#include <thread>

#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kShortNs = 300'000'000;

// A call that outlived its deadline would outlive the fault: it ends only after the last of them has returned.
TEST_P(StorageOutage, EveryCallReturnsWithoutWrongBytesAndItRecoversByItself) {
  Chain chain(1, 8, 20480, 3);
  ASSERT_EQ(put(chain), 8u);
  ASSERT_EQ(get(chain), std::vector<bool>(8, true));
  rig_->begin(GetParam().fault);
  for (std::uint64_t round = 0; round < 6; ++round) {
    EXPECT_EQ(put(Chain(100 + round, 4, 20480, 1), kShortNs), 0u);
    EXPECT_EQ(get(chain, kShortNs), std::vector<bool>(8, false));
  }
  EXPECT_FALSE(store_->is_up());
  rig_->end(GetParam().fault);
  EXPECT_TRUE(comes_back(1000));
  EXPECT_TRUE(store_->is_up());
  const bool is_kept = GetParam().fault != Fault::kKilled || rig_->is_durable();
  if (is_kept) {
    EXPECT_EQ(get(chain), std::vector<bool>(8, true));
  }
}

TEST_P(StorageOutage, AStoreThatIsOpenedMeanwhileComesUpLater) {
  rig_->begin(GetParam().fault);
  store_.reset();
  Result<std::unique_ptr<Backend>> backend = rig_->open();
  ASSERT_TRUE(backend) << backend.error().message;
  store_ = Store::make(*std::move(backend), {.list_timeout_ns = kShortNs});
  EXPECT_EQ(put(Chain(1, 2, 20480), kShortNs), 0u);
  rig_->end(GetParam().fault);
  EXPECT_TRUE(comes_back(1000));
}

TEST_P(StorageOutage, APauseOfTenSecondsIsOneOutage) {
  if (GetParam().fault != Fault::kPaused) GTEST_SKIP() << "only for paused servers";
  Chain chain(1, 8, 20480, 3);
  ASSERT_EQ(put(chain), 8u);
  rig_->begin(Fault::kPaused);
  const std::uint64_t until_ns = base::SteadyClock::read() + 10'000'000'000;
  std::uint64_t calls = 0;
  for (std::uint64_t name = 100; base::SteadyClock::read() < until_ns; ++name, ++calls) {
    EXPECT_EQ(put(Chain(name, 2, 20480, 1), kShortNs), 0u);
    EXPECT_EQ(get(chain, kShortNs), std::vector<bool>(8, false));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(store_->counts().outages, 1u);
  EXPECT_GT(calls, 20u);  // were each to wait for its deadline, fewer would fit
  rig_->end(Fault::kPaused);
  EXPECT_TRUE(comes_back(1000));
  EXPECT_EQ(get(chain), std::vector<bool>(8, true));
}

TEST_P(StorageOutage, ACallThatWaitsForItsServerEndsWhenItIsCancelled) {
  if (GetParam().fault != Fault::kPaused) GTEST_SKIP() << "only for paused servers";
  const std::shared_ptr<CancelSignal> cancel = store_->backend().cancel_signal();
  if (cancel == nullptr) GTEST_SKIP() << "it waits for no server of ours";
  rig_->begin(Fault::kPaused);
  const std::uint64_t begin_ns = base::SteadyClock::read();
  Status ended;
  std::thread caller([&] {
    const ObjectKey none{};
    bool is_there = false;
    ended = store_->backend().exists({&none, 1}, {&is_there, 1}, begin_ns + 60'000'000'000);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  cancel->raise();
  caller.join();
  rig_->end(Fault::kPaused);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::kCancelled) << ended.error().message;
  EXPECT_LT(base::SteadyClock::read() - begin_ns, 20'000'000'000u);
}

TEST_P(StorageFull, PutsFailGetsDoNotAndItRecoversByItself) {
  if (rig_->replaces_when_full()) GTEST_SKIP() << "its puts do not fail";
  Chain chain(1, 4, 65536, 2);
  ASSERT_EQ(put(chain), 4u);
  rig_->begin(Fault::kFull);
  std::vector<std::unique_ptr<Chain>> stored;
  bool is_full = false;
  for (std::uint64_t name = 2; name < 400 && !is_full; ++name) {
    auto one = std::make_unique<Chain>(name, 8, 65536, 1);
    is_full = put(*one) < 8;
    if (!is_full) stored.push_back(std::move(one));
  }
  EXPECT_TRUE(is_full);
  EXPECT_EQ(get(chain), std::vector<bool>(4, true));
  for (const std::unique_ptr<Chain>& one : stored) EXPECT_EQ(get(*one), std::vector<bool>(8, true));
  rig_->end(Fault::kFull);
  EXPECT_TRUE(comes_back(1000));
  EXPECT_EQ(get(chain), std::vector<bool>(4, true));
}

TEST_P(StorageFull, OrPutsReplaceTheColdestObjects) {
  if (!rig_->replaces_when_full()) GTEST_SKIP() << "its puts fail";
  Chain chain(1, 4, 65536, 2);
  ASSERT_EQ(put(chain), 4u);
  rig_->begin(Fault::kFull);
  for (std::uint64_t name = 2; name < 60; ++name) {
    Chain one(name, 8, 65536, 1);
    ASSERT_EQ(put(one), 8u) << name;
    EXPECT_EQ(get(one), std::vector<bool>(8, true));
  }
  EXPECT_EQ(get(chain), std::vector<bool>(4, false));
  EXPECT_GT(store_->counts().evicted_objects, 400u);
  EXPECT_TRUE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 0u);
  rig_->end(Fault::kFull);
  EXPECT_TRUE(comes_back(1000));
}

TEST_P(StorageDamage, TheObjectIsNotHandedOutAndTheOthersAre) {
  Chain chain(1, 6, 20480, 3), other(2, 1, 20480, 3);
  ASSERT_EQ(put(chain), 6u);
  ASSERT_EQ(put(other), 1u);
  store_.reset();
  rig_->damage(GetParam().fault, chain, 2, other);
  open();
  std::vector<bool> expected(6, true);
  expected[2] = false;
  const std::vector<bool> got = get(chain);
  EXPECT_FALSE(got[2]);
  // A file of many objects that is cut off is not opened: it loses the others, too.
  if (GetParam().fault != Fault::kTruncated || !rig_->shares_files()) {
    EXPECT_EQ(got, expected);
    EXPECT_EQ(store_->counts().damaged_objects, 1u);
  }
  EXPECT_TRUE(store_->is_up());
  Chain again(1, 6, 20480, 3);
  EXPECT_EQ(put(again), 6u);
  EXPECT_EQ(get(again), std::vector<bool>(6, true));
}

}  // namespace
}  // namespace cachalot::storage
