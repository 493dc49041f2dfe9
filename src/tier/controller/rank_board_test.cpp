#include "tier/controller/rank_board.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace cachalot::tier {
namespace {

constexpr std::uint64_t kLongNs = 20'000'000'000;

TEST(RankBoard, AllRanksGetTheMinimumOfEachRound) {
  const auto ranks = make_ranks(4);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (std::uint64_t round = 1; round <= 300; ++round) {
        const std::uint64_t least = round * 10;  // of the rank whose turn it is
        const std::uint64_t mine = round % 4 == rank ? least : least + rank + 1;
        const Result<std::uint64_t> agreed = ranks[rank]->minimum(round, mine, kLongNs);
        if (!agreed || *agreed != least) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A rank that gives up and one that comes at that moment have the same answer.
TEST(RankBoard, ATimeoutIsDecidedForAll) {
  for (std::uint64_t i = 1; i <= 200; ++i) {
    const auto ranks = make_ranks(2);
    std::uint64_t answers[2] = {};
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(i % 20 * 10));
      answers[1] = *ranks[1]->minimum(i, 7, kLongNs);
    });
    answers[0] = *ranks[0]->minimum(i, 9, 100'000);
    late.join();
    EXPECT_EQ(answers[0], answers[1]);
    EXPECT_TRUE(answers[0] == 0 || answers[0] == 7);
  }
}

TEST(RankBoard, ARankAloneGetsZeroAfterItsTimeout) {
  const auto ranks = make_ranks(2);
  EXPECT_EQ(*ranks[0]->minimum(1, 5, 1'000'000), 0u);
  EXPECT_EQ(*ranks[1]->minimum(1, 5, 0), 0u);  // the same round: it is decided
  EXPECT_EQ(*ranks[0]->minimum(65, 5, 0), 0u);
  // Round 65 has taken the entry of round 1.
  const Result<std::uint64_t> behind = ranks[1]->minimum(1, 5, 0);
  ASSERT_FALSE(behind);
  EXPECT_EQ(behind.error().code, Code::kStale);
}

TEST(RankBoard, ProcessesMeetInAFile) {
  const std::string path = "/dev/shm/cachalot_ranks_test." + std::to_string(getpid());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto rank = join_ranks(path, 1, 2);
    bool is_right = rank.ok();
    for (std::uint64_t round = 1; is_right && round <= 500; ++round) {
      const Result<std::uint64_t> agreed = (*rank)->minimum(round, 1000 - round, kLongNs);
      is_right = agreed.ok() && *agreed == std::min(1000 - round, round);
    }
    _exit(is_right ? 0 : 1);
  }
  const auto rank = join_ranks(path, 0, 2);
  ASSERT_TRUE(rank) << rank.error().message;
  for (std::uint64_t round = 1; round <= 500; ++round) {
    const Result<std::uint64_t> agreed = (*rank)->minimum(round, round, kLongNs);
    ASSERT_TRUE(agreed);
    EXPECT_EQ(*agreed, std::min(1000 - round, round));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(join_ranks(path, 0, 3));  // a file of two ranks
  EXPECT_FALSE(join_ranks(path, 2, 2));
  // The old rounds of a dead rank are no answers to a new one.
  const auto again = join_ranks(path, 0, 2);
  ASSERT_FALSE(again);
  EXPECT_NE(std::string(again.error().message).find("joined by rank 0 before"), std::string::npos);
  unlink(path.c_str());
}

}  // namespace
}  // namespace cachalot::tier
