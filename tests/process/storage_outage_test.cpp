// `cachalot serve` whose storage dies and comes back: it serves meanwhile, and nothing has to be started again.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "program.h"
#include "testing/storage/redis_servers.h"

namespace cachalot::process_test {
namespace {

class StorageOutage : public ProcessTest {
 protected:
  static constexpr std::size_t kBytes = 4000;

  Arguments serve(const std::string& pool, const std::string& storage) const {
    return {"serve",         "--pool",      path(pool),          "--create",
            "--block-bytes", "4096",        "--capacity-blocks", "64",
            "--metrics",     "127.0.0.1:0", "--storage",         storage};
  }
  static bool wait_until(const std::function<bool()>& is_done) {
    for (int i = 0; i < 1200; ++i) {
      if (is_done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  void put(const std::string& pool, const std::string& name, std::uint64_t seed) const {
    expect_done(run({"put", name, "--pool", path(pool)}, {.in = noise(kBytes, seed)}));
  }
  bool has(const std::string& pool, const std::string& name, std::uint64_t seed) const {
    const Outcome got = run({"get", name, "--pool", path(pool)});
    return got.exit_code == 0 && got.out == noise(kBytes, seed);
  }
};

TEST_F(StorageOutage, ServingGoesOnWithoutRedisAndWhatWasPutMeanwhileIsWrittenWhenItIsBack) {
  std::filesystem::create_directory(path("redis"));
  auto redis = storage::start_redis(path("redis"));
  ASSERT_TRUE(redis) << redis.error().message;
  const std::string uri = "redis://127.0.0.1:" + std::to_string(redis->port());
  Serving keeper(serve("kv", uri));
  ASSERT_TRUE(keeper.is_ready());
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 1; }));
  put("kv", "before", 1);
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_objects") == 1; }));

  redis->kill();
  std::uint64_t seed = 10;
  ASSERT_TRUE(wait_until([&] {
    put("kv", "during-" + std::to_string(seed), seed);
    ++seed;
    return keeper.metric("cachalot_storage_up") == 0 && seed >= 20;
  }));
  EXPECT_TRUE(has("kv", "before", 1));
  for (std::uint64_t i = 10; i < seed; ++i)
    EXPECT_TRUE(has("kv", "during-" + std::to_string(i), i)) << i;
  const Outcome looked = run({"lookup", "during-10", "--pool", path("kv")});
  expect_done(looked);
  EXPECT_EQ(run({"get", "never-put", "--pool", path("kv")}).exit_code, 1);
  EXPECT_EQ(keeper.metric("cachalot_storage_outages_total"), 1);
  EXPECT_GE(keeper.metric("cachalot_storage_failed_writes_total"), 10);
  EXPECT_EQ(keeper.metric("cachalot_storage_written_blocks_total"), 1);

  const nlohmann::json down = run({"pool", "info", path("kv"), "--json", "-"}).json()["storage"];
  EXPECT_EQ(down["kind"], "redis");
  EXPECT_EQ(down["in_use"], false);
  EXPECT_EQ(down["objects"], 1);
  EXPECT_EQ(down["outages"], 1);
  EXPECT_NE(down["last_error"], "");
  EXPECT_NE(run({"pool", "info", path("kv")}).out.find("redis, out of use: 1 block of "),
            std::string::npos);

  // Nothing is put any more. The server comes back empty: it had all in memory.
  ASSERT_TRUE(redis->restart());
  const auto blocks = static_cast<std::int64_t>(seed - 10 + 1);
  EXPECT_TRUE(wait_until([&] {
    return keeper.metric("cachalot_storage_up") == 1 &&
           keeper.metric("cachalot_storage_objects") == blocks &&
           keeper.metric("cachalot_storage_written_blocks_total") == blocks + 1;
  })) << keeper.scrape();
  EXPECT_EQ(keeper.metric("cachalot_storage_missing_blocks_total"), 1);
  EXPECT_EQ(keeper.metric("cachalot_storage_outages_total"), 1);
  EXPECT_FALSE(keeper.has_ended());

  // Another pool is warm from what was put during the outage.
  keeper.send(SIGKILL);
  (void)keeper.wait();
  Serving next(serve("new", uri));
  ASSERT_TRUE(next.is_ready());
  EXPECT_TRUE(wait_until([&] { return has("new", "during-10", 10); }));
  EXPECT_TRUE(has("new", "before", 1));
}

TEST_F(StorageOutage, ARedisWithoutTlsThatIsCalledWithItIsNamedBeforeTheKeeperServes) {
  std::filesystem::create_directory(path("redis"));
  auto redis = storage::start_redis(path("redis"));
  ASSERT_TRUE(redis) << redis.error().message;
  Serving keeper(serve("kv", "rediss://127.0.0.1:" + std::to_string(redis->port())));
  // A hello of TLS whose random bytes are a command of Redis is answered at once.
  if (keeper.is_ready()) keeper.send(SIGTERM);
  const std::string log = keeper.wait().err;
  EXPECT_NE(log.find("speak TLS there"), std::string::npos) << log;
}

TEST_F(StorageOutage, ARedisThatRestartsBetweenTwoCallsGetsWhatThePoolHas) {
  std::filesystem::create_directory(path("redis"));
  auto redis = storage::start_redis(path("redis"));
  ASSERT_TRUE(redis) << redis.error().message;
  Serving keeper(serve("kv", "redis://127.0.0.1:" + std::to_string(redis->port())));
  ASSERT_TRUE(keeper.is_ready());
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 1; }));
  for (std::uint64_t i = 0; i < 4; ++i) put("kv", "block-" + std::to_string(i), i);
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_objects") == 4; }));
  redis->kill();
  ASSERT_TRUE(redis->restart());
  EXPECT_TRUE(wait_until([&] {
    return keeper.metric("cachalot_storage_written_blocks_total") == 8 &&
           keeper.metric("cachalot_storage_objects") == 4;
  })) << keeper.scrape();
  EXPECT_EQ(keeper.metric("cachalot_storage_missing_blocks_total"), 4);
}

// The keeper that is stopped has the directory until its process ends.
TEST_F(StorageOutage, ATakeOverFromAKeeperThatHangsGetsItsDirectoryLater) {
  const std::string uri = "file:" + path("objects");
  Serving first(serve("kv", uri));
  ASSERT_TRUE(first.is_ready());
  ASSERT_TRUE(wait_until([&] { return first.metric("cachalot_storage_up") == 1; }));
  put("kv", "one", 1);
  ASSERT_TRUE(wait_until([&] { return first.metric("cachalot_storage_objects") == 1; }));
  first.send(SIGSTOP);
  Serving second(
      {"serve", "--pool", path("kv"), "--take-over", "--metrics", "127.0.0.1:0", "--storage", uri});
  ASSERT_TRUE(second.is_ready());
  EXPECT_TRUE(has("kv", "one", 1));
  first.send(SIGKILL);
  (void)first.wait();
  EXPECT_TRUE(wait_until([&] { return second.metric("cachalot_storage_objects") == 1; }));
}

// A supervisor kills what has not ended some seconds after it was told to.
TEST_F(StorageOutage, ARedisThatHangsDoesNotHoldUpTheEnd) {
  constexpr auto kMostWait = std::chrono::seconds(8);  // two, and what a busy machine takes
  std::filesystem::create_directory(path("redis"));
  auto redis = storage::start_redis(path("redis"));
  ASSERT_TRUE(redis) << redis.error().message;
  const std::string uri = "redis://127.0.0.1:" + std::to_string(redis->port());
  const auto time_to_end = [&](Serving& keeper) {
    const auto begin = std::chrono::steady_clock::now();
    keeper.send(SIGTERM);
    const Outcome ended = keeper.wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return std::chrono::steady_clock::now() - begin;
  };
  {
    Serving keeper(serve("kv", uri));
    ASSERT_TRUE(keeper.is_ready());
    ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 1; }));
    redis->stop();
    put("kv", "hangs", 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the put is on its way
    EXPECT_LT(time_to_end(keeper), kMostWait);
  }
  Serving keeper(serve("other", uri));  // Redis hangs from the start
  ASSERT_TRUE(keeper.is_ready());
  put("other", "one", 1);
  EXPECT_TRUE(has("other", "one", 1));
  EXPECT_LT(time_to_end(keeper), kMostWait);
}

// A plug-in that never returns from a put: nothing can end the thread that waits for it.
TEST_F(StorageOutage, AThreadThatNeverReturnsDoesNotHoldUpTheEnd) {
  constexpr auto kMostWait = std::chrono::seconds(12);  // five, and what a busy machine takes
  setenv("CACHALOT_TEST_WRONG", "hang", 1);
  Serving keeper(serve("kv", std::string("plugin:") + CACHALOT_WRONG_PLUGIN));
  unsetenv("CACHALOT_TEST_WRONG");
  ASSERT_TRUE(keeper.is_ready());
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 1; }));
  put("kv", "hangs", 1);
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_queued_blocks") == 1; }));
  const auto storage = [&] {
    return run({"pool", "info", path("kv"), "--json", "-"}).json()["storage"];
  };
  EXPECT_TRUE(wait_until([&] { return storage()["queued_blocks"] == 1; })) << storage();
  const std::string summary = run({"pool", "info", path("kv")}).out;
  EXPECT_NE(summary.find(", 1 to be written"), std::string::npos) << summary;
  const auto begin = std::chrono::steady_clock::now();
  keeper.send(SIGTERM);
  const Outcome ended = keeper.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kMostWait);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_NE(ended.err.find("a thread has not ended 5 s after the stop"), std::string::npos)
      << ended.err;
  // The pool is as after a kill.
  Serving next({"serve", "--pool", path("kv")});
  ASSERT_TRUE(next.is_ready());
  EXPECT_TRUE(has("kv", "hangs", 1));
}

TEST_F(StorageOutage, ADirectoryThatIsRemovedIsMissesAndOneErrorAndOneThatIsMovedBackIsUsedAgain) {
  Serving keeper(serve("kv", "file:" + path("objects")));
  ASSERT_TRUE(keeper.is_ready());
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 1; }));
  put("kv", "before", 1);
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_objects") == 1; }));

  std::filesystem::rename(path("objects"), path("moved"));
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 0; }));
  put("kv", "during", 2);
  EXPECT_TRUE(has("kv", "during", 2));
  std::filesystem::rename(path("moved"), path("objects"));
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_objects") == 2; }));

  std::filesystem::remove_all(path("objects"));
  ASSERT_TRUE(wait_until([&] { return keeper.metric("cachalot_storage_up") == 0; }));
  put("kv", "after", 3);
  EXPECT_TRUE(has("kv", "before", 1));
  EXPECT_TRUE(has("kv", "after", 3));
  EXPECT_EQ(run({"get", "never-put", "--pool", path("kv")}).exit_code, 1);
  EXPECT_EQ(keeper.metric("cachalot_storage_outages_total"), 2);
  EXPECT_GE(keeper.metric("cachalot_storage_failed_writes_total"), 2);  // a use tries again
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));         // it is not told again
  expect_done(run({"stop", path("kv")}));
  const std::string log = keeper.wait().err;
  const std::string gone = "start this process again";
  const std::size_t first = log.find(gone), second = log.find(gone, first + 1);
  EXPECT_NE(second, std::string::npos) << log;
  EXPECT_EQ(log.find(gone, second + 1), std::string::npos) << log;
  EXPECT_FALSE(std::filesystem::exists(path("objects")));
}

}  // namespace
}  // namespace cachalot::process_test
