#include "storage/shared/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cachalot::storage {
namespace {

using std::chrono::milliseconds;

TEST(WorkersTest, ACallLeavesJobsThatHangAndTheyHurtNoLaterOne) {
  constexpr std::size_t kMost = 3;
  Workers workers(kMost);
  std::atomic<bool> hangs{true};
  std::atomic<int> begun{0};
  const auto hung = std::make_shared<std::atomic<int>>(0);
  const auto call = [&](std::size_t count) {
    int taken = 0;
    const Status ended = workers.gather<int>(
        count,
        [&, hung](std::size_t) {
          return [&, hung] {
            ++begun;
            while (hangs) std::this_thread::sleep_for(milliseconds(1));
            return 1;
          };
        },
        [&](std::size_t, int&& one) { taken += one; }, base::SteadyClock::read() + 50'000'000);
    if (!ended) {
      EXPECT_EQ(ended.error().code, Code::kTimeout);
    }
    return taken;
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(call(10), 0);
  EXPECT_EQ(begun, static_cast<int>(kMost));
  // The jobs of callers that have gone hold nothing.
  EXPECT_LE(hung.use_count(), 1 + static_cast<int>(kMost));
  hangs = false;
  while (call(10) != 10) {
  }
}

TEST(WorkersTest, ResultsAreTakenInTheCallersThreadAndACallThatIsCancelledEnds) {
  Workers workers(4);
  const auto caller = std::this_thread::get_id();
  std::vector<std::size_t> taken;
  EXPECT_TRUE(workers.gather<std::size_t>(
      100, [](std::size_t i) { return [i] { return i * i; }; },
      [&](std::size_t i, std::size_t&& square) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_EQ(square, i * i);
        taken.push_back(i);
      },
      base::SteadyClock::read() + 60'000'000'000));
  EXPECT_EQ(taken.size(), 100u);
  const auto hangs = std::make_shared<std::atomic<bool>>(true);
  std::thread canceller([&] { workers.cancel_signal()->raise(); });
  const Status ended = workers.gather<bool>(
      1,
      [&](std::size_t) {
        return [hangs] {
          while (*hangs) std::this_thread::sleep_for(milliseconds(1));
          return true;
        };
      },
      [](std::size_t, bool&&) {}, base::SteadyClock::read() + 60'000'000'000);
  canceller.join();
  *hangs = false;
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::kCancelled);
}

}  // namespace
}  // namespace cachalot::storage
