// A load or store that ends early reports how many blocks it has finished.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/fail_point.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

std::vector<PageId> first_pages(std::size_t count) {
  std::vector<PageId> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

constexpr std::size_t kBlocks = 40;
constexpr std::size_t kPortion = 16;  // blocks copied between two checks of the deadline

class DeadlineTest : public ::testing::Test {
 protected:
  DeadlineTest()
      : cluster_(small_geometry().block_bytes(), 64), engine_(options(), "vllm_bknhc", 64) {
    hashes_ = store(engine_, 1, kBlocks);
  }

  ClientOptions options() const { return cluster_.client_options(); }
  static std::vector<BlockHash> store(Engine& engine, std::uint64_t prompt, std::size_t blocks) {
    const std::vector<BlockHash> hashes = engine.client.hash_tokens(tokens_of(prompt, blocks * 4));
    for (std::size_t i = 0; i < blocks; ++i) engine.compute(hashes[i], static_cast<PageId>(i));
    const Result<Stored> stored =
        engine.client.store(engine.cache, nullptr, hashes, first_pages(blocks));
    EXPECT_TRUE(stored) << (stored ? "" : stored.error().message);
    EXPECT_EQ(stored ? stored->blocks : 0, blocks);
    engine.clear();
    return hashes;
  }

  // Waits for an asynchronous call, which cancel_when_begun() may cancel meanwhile.
  Result<Completion> wait_for(const Result<Token>& begun) {
    if (!begun) return begun.error();
    token_ = static_cast<std::uint64_t>(*begun);
    return engine_.client.wait(*begun);
  }
  // For the thread that copies: it may reach its fail point before the call has returned its token.
  void cancel_when_begun() {
    while (token_ == 0) std::this_thread::yield();
    EXPECT_TRUE(engine_.client.cancel(Token{token_.load()}));
  }

  Cluster cluster_;
  Engine engine_;
  std::vector<BlockHash> hashes_;
  std::atomic<std::uint64_t> token_ = 0;
};

TEST_F(DeadlineTest, ATimeThatHasPassedLoadsNothingAndSaysSo) {
  const auto loaded =
      engine_.client.load(engine_.cache, hashes_, first_pages(kBlocks), {.timeout_ns = 0});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::kTimeout);
  EXPECT_EQ(loaded.error().detail, 0u);
}

#ifdef CACHALOT_FAIL_POINTS

// Runs an action after the first portion of a load is copied, or of a store is committed.
class AfterFirstPortion {
 public:
  explicit AfterFirstPortion(std::function<void()> action,
                             base::FailPoint point = base::FailPoint::kReadCopied) {
    action_ = std::move(action);
    point_ = point;
    portions_ = 0;
    base::fail_point_handler = [](base::FailPoint reached) {
      if (reached == point_ && portions_++ == 0) action_();
    };
  }
  ~AfterFirstPortion() { base::fail_point_handler = nullptr; }
  static int portions() { return portions_; }

 private:
  static inline std::function<void()> action_;
  static inline base::FailPoint point_ = base::FailPoint::kNone;
  static inline std::atomic<int> portions_ = 0;
};

// The deadline passes while the first portion is copied. On a very slow machine it passes before that: then no
// portion is copied and the count is 0.
TEST_F(DeadlineTest, ALoadThatTimesOutSaysHowManyBlocksAreRight) {
  constexpr std::uint64_t kTimeNs = 1'000'000'000;
  const std::uint64_t end_ns = base::SteadyClock::read() + 3 * kTimeNs;
  const AfterFirstPortion wait([&] {
    while (base::SteadyClock::read() < end_ns)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  const Statistics before = engine_.client.statistics();
  const auto loaded =
      engine_.client.load(engine_.cache, hashes_, first_pages(kBlocks), {.timeout_ns = kTimeNs});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::kTimeout);
  const std::size_t right = loaded.error().detail;
  ASSERT_EQ(right, AfterFirstPortion::portions() * kPortion);
  if (right == 0) GTEST_SKIP() << "the machine is so slow that the time passed before the copy";
  EXPECT_STREQ(loaded.error().message,
               "load: the time given has passed; the first 16 of 40 blocks are loaded");
  for (std::size_t i = 0; i < right; ++i)
    EXPECT_TRUE(engine_.holds(hashes_[i], static_cast<PageId>(i))) << i;
  EXPECT_EQ(engine_.client.statistics().loaded_blocks - before.loaded_blocks, right);
}

TEST_F(DeadlineTest, ALoadThatIsCancelledSaysHowManyBlocksAreRight) {
  const AfterFirstPortion cancel([&] { cancel_when_begun(); });
  const Result<Completion> done =
      wait_for(engine_.client.load_async(engine_.cache, hashes_, first_pages(kBlocks)));
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_FALSE(done->status);
  EXPECT_EQ(done->status.error().code, Code::kCancelled);
  EXPECT_EQ(done->status.error().detail, kPortion);
  EXPECT_EQ(done->blocks, kPortion);
  for (std::size_t i = 0; i < kPortion; ++i)
    EXPECT_TRUE(engine_.holds(hashes_[i], static_cast<PageId>(i))) << i;
}

TEST_F(DeadlineTest, BlocksThatWereEvictedBeforeTheDeadlineAreNotCounted) {
  Engine other(options(), "vllm_bknhc", 64);
  const AfterFirstPortion evict([&] {
    (void)store(other, 2, 64);  // fills the pool
    cancel_when_begun();
  });
  const Result<Completion> done =
      wait_for(engine_.client.load_async(engine_.cache, hashes_, first_pages(kBlocks)));
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_FALSE(done->status);
  EXPECT_EQ(done->status.error().detail, 0u);
  EXPECT_EQ(done->blocks, 0u);
}

TEST_F(DeadlineTest, AStoreThatIsCancelledSaysHowManyBlocksAreInThePool) {
  const std::vector<BlockHash> hashes = engine_.client.hash_tokens(tokens_of(3, kBlocks * 4));
  const AfterFirstPortion cancel([&] { cancel_when_begun(); }, base::FailPoint::kPutAnswered);
  const Result<Completion> done =
      wait_for(engine_.client.store_async(engine_.cache, nullptr, hashes, first_pages(kBlocks)));
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_FALSE(done->status);
  EXPECT_EQ(done->status.error().code, Code::kCancelled);
  EXPECT_EQ(done->blocks, kPortion);
  EXPECT_EQ(*engine_.client.lookup(hashes), kPortion);
}

#endif  // CACHALOT_FAIL_POINTS

}  // namespace
}  // namespace cachalot::client
