#include "vtensor/shared_budget.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "os/child.h"
#include "os/process.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = 64;

class SharedBudgetTest : public testing::Test {
 protected:
  SharedBudgetTest()
      : path_("/dev/shm/cachalot_budget_test." + std::to_string(getpid()) + "." +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~SharedBudgetTest() override { unlink(path_.c_str()); }

  std::unique_ptr<SharedBudget> join(std::uint64_t chunks, std::uint64_t guaranteed) {
    auto budget = SharedBudget::join({path_, chunks, kChunk, guaranteed});
    EXPECT_TRUE(budget) << budget.error().message;
    return budget ? *std::move(budget) : nullptr;
  }
  Error refused(std::uint64_t chunks, std::uint64_t guaranteed,
                std::uint64_t chunk_bytes = kChunk) {
    const auto budget = SharedBudget::join({path_, chunks, chunk_bytes, guaranteed});
    EXPECT_FALSE(budget);
    return budget ? Error{} : budget.error();
  }
  bool file_is_there() const { return access(path_.c_str(), F_OK) == 0; }

  std::string path_;
};

TEST_F(SharedBudgetTest, WhatOneDoesNotUseTheOtherBorrows) {
  const auto a = join(100, 30), b = join(100, 30);
  EXPECT_EQ(a->take(90), 90u);
  EXPECT_EQ(b->take(11), 10u);  // none was taken
  EXPECT_EQ(b->take(10), 10u);
  EXPECT_EQ(a->count_free(), 0u);
  a->give(50);
  EXPECT_EQ(b->take(50), 50u);
  EXPECT_EQ(a->held(), 40u);
  EXPECT_EQ(b->held(), 60u);
}

TEST_F(SharedBudgetTest, AsksWhoeverHasBorrowedForWhatIsMissing) {
  const auto a = join(100, 30), b = join(100, 30);
  ASSERT_EQ(a->take(80), 80u);
  EXPECT_EQ(b->take(40), 20u);
  b->ask(40);
  EXPECT_EQ(a->asked(), 20u);
  b->ask(40);  // the same again
  EXPECT_EQ(a->asked(), 20u);
  b->ask(90);
  EXPECT_EQ(a->asked(), 50u);  // 30 are its own
  a->give(50);
  EXPECT_EQ(a->asked(), 0u);
  EXPECT_EQ(b->take(70), 70u);
  // Now the one that lent is the one that lacks.
  EXPECT_EQ(a->owed(), 0u);
  a->give(10);
  EXPECT_EQ(a->owed(), 10u);
}

TEST_F(SharedBudgetTest, NobodyIsAskedForItsGuarantee) {
  const auto a = join(100, 60), b = join(100, 40);
  ASSERT_EQ(a->take(60), 60u);
  b->ask(100);
  EXPECT_EQ(a->asked(), 0u);
}

TEST_F(SharedBudgetTest, TwoWhoAskTogetherGetNoMoreThanWasBorrowed) {
  const auto a = join(100, 40), b = join(100, 30), c = join(100, 30);
  ASSERT_EQ(a->take(100), 100u);
  b->ask(50);
  c->ask(50);
  EXPECT_EQ(a->asked(), 60u);
}

TEST_F(SharedBudgetTest, WhatWasGivenBackForAGuaranteeIsNotBorrowedAgain) {
  const auto a = join(100, 30), b = join(100, 30), c = join(100, 0);
  ASSERT_EQ(a->take(100), 100u);
  b->ask(30);
  a->give(30);
  EXPECT_EQ(a->take(1), 0u);
  EXPECT_EQ(c->take(1), 0u);
  EXPECT_EQ(b->take(30), 30u);
  a->give(5);
  EXPECT_EQ(c->take(5), 5u);  // no process waits any more
}

TEST_F(SharedBudgetTest, GuaranteesAreNoMoreThanThereIs) {
  const auto a = join(100, 70);
  EXPECT_EQ(refused(100, 31).code, Code::kInvalidArgument);
  const auto b = join(100, 30);
}

TEST_F(SharedBudgetTest, WhoWasRefusedLeavesNoFileThatNobodyUses) {
  EXPECT_EQ(refused(100, 101).code, Code::kInvalidArgument);
  EXPECT_FALSE(file_is_there());
  const auto first = join(100, 30);
  EXPECT_EQ(refused(100, 71).code, Code::kInvalidArgument);
  EXPECT_TRUE(file_is_there());
}

TEST_F(SharedBudgetTest, TheLastOneRemovesTheFile) {
  auto a = join(100, 70);
  auto b = join(0, 0);
  EXPECT_EQ(b->chunks(), 100u);
  a.reset();
  EXPECT_TRUE(file_is_there());
  b.reset();
  EXPECT_FALSE(file_is_there());
  join(50, 10);  // another one by the same name
}

TEST_F(SharedBudgetTest, RefusesWhatIsNotTheSameBudget) {
  EXPECT_EQ(refused(0, 0).code, Code::kNotFound);
  EXPECT_EQ(refused(std::uint64_t{1} << 31, 0).code, Code::kInvalidArgument);
  const auto a = join(100, 0);
  EXPECT_EQ(refused(99, 0).code, Code::kInvalidArgument);
  EXPECT_EQ(refused(100, 0, 2 * kChunk).code, Code::kInvalidArgument);
}

TEST_F(SharedBudgetTest, RefusesWhatIsNoBudget) {
  std::ofstream(path_) << "hello";
  EXPECT_EQ(refused(100, 0).code, Code::kCorrupt);
  std::ofstream(path_) << std::string(5000, 'x');
  EXPECT_EQ(refused(100, 0).code, Code::kCorrupt);
}

TEST_F(SharedBudgetTest, HasSixteenSlots) {
  std::vector<std::unique_ptr<SharedBudget>> all;
  for (std::uint32_t i = 0; i < kBudgetSlots; ++i) all.push_back(join(100, 6));
  EXPECT_EQ(refused(100, 0).code, Code::kBusy);
  all.pop_back();
  join(100, 0);
}

TEST_F(SharedBudgetTest, SleepsUntilOthersAskOrGive) {
  const auto a = join(100, 0), b = join(100, 50);
  ASSERT_EQ(a->take(100), 100u);
  std::thread owner([&] {
    std::uint32_t seen = 0;
    while ((seen = a->wait_asked(seen)) != 0) a->give(a->asked());
  });
  const std::uint32_t before = b->given();
  b->ask(20);
  EXPECT_TRUE(b->wait_given(before, ~std::uint64_t{0}));
  EXPECT_EQ(b->take(20), 20u);
  a->stop_waiting();
  owner.join();
}

// --- With processes ---

struct Shared {
  std::atomic<std::uint64_t> word{0};
};

// A process that takes so many, says so, and waits to be killed.
Result<os::Child> start_holder(const std::string& path, std::uint64_t take, os::Mapping& shared) {
  return os::Child::start([=, &shared] {
    auto budget = SharedBudget::join({path, 100, kChunk, 30});
    if (!budget || (*budget)->take(take) != take) return 1;
    reinterpret_cast<Shared*>(shared.data())->word.store(1, std::memory_order_release);
    for (;;) pause();
  });
}

os::Mapping shared_page() {
  const auto file = os::SharedFile::create("memfd:budget_test", 4096);
  return *file->map({.dont_fork = false, .huge_pages = false});
}

void wait_for(os::Mapping& shared, std::uint64_t word = 1) {
  while (reinterpret_cast<Shared*>(shared.data())->word.load(std::memory_order_acquire) < word) {
    std::this_thread::yield();
  }
}

TEST_F(SharedBudgetTest, AKilledProcessLeavesWhatItHad) {
  os::Mapping shared = shared_page();
  auto child = start_holder(path_, 80, shared);
  ASSERT_TRUE(child);
  wait_for(shared);
  const auto budget = join(100, 30);
  EXPECT_EQ(budget->take(21), 20u);
  child->send(SIGSTOP);
  EXPECT_EQ(budget->take(21), 20u);  // silent, and alive
  child->send(SIGKILL);
  ASSERT_TRUE(child->wait());
  EXPECT_EQ(budget->take(100), 100u);
}

TEST_F(SharedBudgetTest, AFileThatNobodyUsesAnyMoreTakesOtherSizes) {
  os::Mapping shared = shared_page();
  auto child = start_holder(path_, 80, shared);
  ASSERT_TRUE(child);
  wait_for(shared);
  EXPECT_EQ(refused(50, 0).code, Code::kInvalidArgument);  // it is used
  child->send(SIGKILL);
  ASSERT_TRUE(child->wait());
  ASSERT_TRUE(file_is_there());
  const auto budget = join(50, 50);
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->take(50), 50u);
}

// Of a file that only the dead have used, nothing but the sizes is believed.
TEST_F(SharedBudgetTest, WhatIsLeftInAFileThatNobodyUsesDoesNotCount) {
  os::Mapping shared = shared_page();
  auto child = start_holder(path_, 80, shared);
  ASSERT_TRUE(child);
  wait_for(shared);
  child->send(SIGKILL);
  ASSERT_TRUE(child->wait());
  const std::string rubbish(sizeof(BudgetHeader) - 64 + 100, '\xee');
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(64)
      .write(rubbish.data(), static_cast<std::streamsize>(rubbish.size()));
  const auto budget = join(100, 100);
  EXPECT_EQ(budget->take(100), 100u);
  EXPECT_EQ(budget->asked(), 0u);
}

TEST_F(SharedBudgetTest, ACountThatIsOverwrittenLeadsNobodyBehindTheFile) {
  const auto budget = join(100, 0);
  const std::uint64_t many = std::uint64_t{1} << 40;
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(offsetof(BudgetHeader, credits))
      .write(reinterpret_cast<const char*>(&many), sizeof many);
  EXPECT_EQ(budget->take(101), 100u);
  EXPECT_EQ(budget->take(100), 100u);
  EXPECT_EQ(budget->count_free(), 0u);
  EXPECT_EQ(refused(100, 0).code, Code::kCorrupt);
}

TEST_F(SharedBudgetTest, TheFileMayBeNamedLikeOtherSharedMemory) {
  const std::string name = path_.substr(path_.rfind('/') + 1);
  auto budget = SharedBudget::join({"shm:" + name, 100, kChunk, 0});
  ASSERT_TRUE(budget) << budget.error().message;
  EXPECT_TRUE(file_is_there());
  EXPECT_EQ(join(100, 0)->take(100), 100u);
  budget->reset();
  EXPECT_FALSE(file_is_there());
  EXPECT_EQ(SharedBudget::join({"shm:a/b", 100, kChunk, 0}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(SharedBudget::join({"", 100, kChunk, 0}).error().code, Code::kInvalidArgument);
}

TEST_F(SharedBudgetTest, AKilledProcessLeavesItsSlotAndItsAsks) {
  os::Mapping shared = shared_page();
  const auto a = join(100, 0);
  ASSERT_EQ(a->take(100), 100u);
  auto child = os::Child::start([&] {
    auto budget = SharedBudget::join({path_, 100, kChunk, 30});
    if (!budget) return 1;
    (*budget)->ask(30);
    reinterpret_cast<Shared*>(shared.data())->word.store(1, std::memory_order_release);
    for (;;) pause();
  });
  ASSERT_TRUE(child);
  wait_for(shared);
  EXPECT_EQ(a->asked(), 30u);
  child->send(SIGKILL);
  ASSERT_TRUE(child->wait());
  const auto b = join(100, 100);  // its guarantee is free again
  EXPECT_EQ(a->asked(), 0u);
  EXPECT_TRUE(file_is_there());
}

// Whatever a process is doing when it is killed, every credit has one owner or none afterwards.
TEST_F(SharedBudgetTest, KilledAtAnyMomentNothingIsLostOrDoubled) {
  const auto a = join(100, 10);
  ASSERT_EQ(a->take(10), 10u);
  for (int round = 0; round < 30; ++round) {
    os::Mapping shared = shared_page();
    auto child = os::Child::start([&] {
      auto budget = SharedBudget::join({path_, 100, kChunk, 30});
      if (!budget) return 1;
      for (std::uint64_t i = 0;; ++i) {
        if ((*budget)->take(1 + i % 40) != 0 && i % 3 == 0) (*budget)->give((*budget)->held());
        (*budget)->ask(i % 50);
        reinterpret_cast<Shared*>(shared.data())->word.store(i);
      }
    });
    ASSERT_TRUE(child);
    wait_for(shared, 20 + round * 7);
    child->send(SIGKILL);
    ASSERT_TRUE(child->wait());
    ASSERT_EQ(a->take(90), 90u) << "round " << round;
    EXPECT_EQ(a->count_free(), 0u);
    a->give(90);
    EXPECT_EQ(a->count_free(), 90u);
    EXPECT_EQ(a->held(), 10u);
  }
}

// Four processes take and give at random; at the end the sum is right, and never was it too large.
TEST_F(SharedBudgetTest, ProcessesNeverHaveMoreThanThereIs) {
  const auto watcher = join(64, 0);
  std::vector<os::Child> children;
  for (int number = 0; number < 4; ++number) {
    auto child = os::Child::start([&, number] {
      auto budget = SharedBudget::join({path_, 64, kChunk, 16});
      if (!budget) return 1;
      std::uint64_t has = 0;
      for (int i = 0; i < 3000; ++i) {
        const std::uint64_t wanted = 1 + (i * 7 + number * 3) % 30;
        if ((*budget)->take(wanted) == wanted) has += wanted;
        if (has > 64) return 2;
        if (i % 2 == 0) {
          (*budget)->give(has);
          has = 0;
        }
        if (has != (*budget)->held()) return 3;
      }
      return 0;
    });
    ASSERT_TRUE(child);
    children.push_back(*std::move(child));
  }
  for (os::Child& child : children) EXPECT_EQ(child.wait()->text(), "exit code 0");
  EXPECT_EQ(watcher->take(64), 64u);
}

}  // namespace
}  // namespace cachalot::vtensor
