// Hosts on one machine: two pools, each with a keeper of its own, that share a Redis or read each other's blocks. The commands
// are those of docs/guide/cluster.md.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "program.h"
#include "testing/storage/redis_servers.h"

namespace cachalot::process_test {
namespace {

class Hosts : public ProcessTest {
 protected:
  static constexpr std::size_t kBytes = 4000;

  Arguments serve(const std::string& pool, const Arguments& behind) const {
    Arguments all = {"serve",         "--pool",     path(pool),          "--create",
                     "--block-bytes", "4096",       "--capacity-blocks", "64",
                     "--metrics",     "127.0.0.1:0"};
    all.insert(all.end(), behind.begin(), behind.end());
    return all;
  }
  Arguments peers(const std::string& listen = "tcp:127.0.0.1:0") const {
    return {"--peers", "file:" + path("registry"), "--peer-listen", listen};
  }
  static bool wait_until(const std::function<bool()>& is_done) {
    for (int i = 0; i < 1200; ++i) {
      if (is_done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  void put(const std::string& pool, const Arguments& key, std::uint64_t seed) const {
    Arguments all = {"put", "--pool", path(pool)};
    all.insert(all.end(), key.begin(), key.end());
    expect_done(run(all, {.in = noise(kBytes, seed)}));
  }
  bool has(const std::string& pool, const std::string& name, std::uint64_t seed) const {
    const Outcome got = run({"get", name, "--pool", path(pool)});
    return got.exit_code == 0 && got.out == noise(kBytes, seed);
  }
  bool is_stored(const std::string& pool, const std::string& name) const {
    const Outcome looked = run({"lookup", name, "--storage", "--pool", path(pool)});
    return looked.exit_code == 0 && looked.out.starts_with("stored");
  }
};

TEST_F(Hosts, WhatOneHostPutsIntoRedisAnotherOneFindsWithoutARestart) {
  std::filesystem::create_directory(path("redis"));
  auto redis = storage::start_redis(path("redis"));
  ASSERT_TRUE(redis) << redis.error().message;
  const std::string uri = "redis://127.0.0.1:" + std::to_string(redis->port());
  Serving a(serve("a", {"--storage", uri})), b(serve("b", {"--storage", uri}));
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  for (const Serving* const one : {&a, &b})
    ASSERT_TRUE(wait_until([&] { return one->metric("cachalot_storage_up") == 1; }));
  EXPECT_FALSE(is_stored("b", "first"));
  put("a", {"first"}, 1);
  put("a", {"second", "--parent", "first"}, 2);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "second"); }));
  EXPECT_TRUE(has("b", "second", 2));
  EXPECT_TRUE(has("b", "first", 1));
  EXPECT_GE(b.metric("cachalot_storage_learned_blocks_total"), 2);
  // What the first host has written the second one does not write again.
  put("b", {"third", "--parent", "second"}, 3);
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_storage_written_blocks_total") == 1; }));
}

TEST_F(Hosts, HostsReadEachOthersPools) {
  Serving a(serve("a", peers()));
  Serving b(serve("b", peers()));
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_peers") == 1; }));
  put("a", {"first"}, 1);
  put("a", {"second", "--parent", "first"}, 2);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "second"); }));
  // Where the machine stands still for a quarter of a second, a request is given up.
  EXPECT_TRUE(wait_until([&] { return has("b", "second", 2); }));
  EXPECT_TRUE(has("b", "first", 1));
  EXPECT_EQ(b.metric("cachalot_peers_got_blocks_total"), 2);
  EXPECT_GE(a.metric("cachalot_peers_served_blocks_total"), 2);
  const Outcome info = run({"pool", "info", path("b")});
  EXPECT_NE(info.out.find("peers, in use"), std::string::npos) << info.out;

  put("a", {"third"}, 3);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "third"); }));
  a.send(SIGKILL);
  (void)a.wait();
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_peers_known_blocks") == 0; }));
  EXPECT_FALSE(has("b", "third", 3));
  EXPECT_TRUE(has("b", "second", 2));
  Serving again({"serve", "--pool", path("a"), "--peers", "file:" + path("registry"),
                 "--peer-listen", "tcp:127.0.0.1:0"});
  ASSERT_TRUE(again.is_ready());
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "third"); }));
  EXPECT_TRUE(wait_until([&] { return has("b", "third", 3); }));
}

TEST_F(Hosts, AKeeperThatCannotSayThatItIsReadyEndsWithOneError) {
  Arguments all = serve("a", peers());
  all.insert(all.end(), {"--json", "/dev/full"});
  const Outcome ended = run(all);
  EXPECT_EQ(ended.signal, 0);
  EXPECT_EQ(ended.exit_code, 3) << ended.err;
  EXPECT_NE(ended.err.find("/dev/full"), std::string::npos) << ended.err;
}

TEST_F(Hosts, WithoutAKeyOnlyThisMachineIsListenedTo) {
  expect_error(run(serve("a", peers("tcp:0.0.0.0:0"))), 2, {"tcp:0.0.0.0:0", "--cluster-key-file"});
  expect_error(run(serve("a", {"--peers", "file:" + path("registry")})), 2, {"--peer-listen"});
  expect_error(run(serve("a", peers("tcp:127.0.0.1:nowhere"))), 2, {"127.0.0.1:nowhere"});
  expect_error(run(serve("a", {"--peers", "zookeeper:x", "--peer-listen", "tcp:127.0.0.1:0"})), 2,
               {"zookeeper:x"});

  std::ofstream(path("key")) << std::string(64, 'a');
  std::filesystem::permissions(path("key"), std::filesystem::perms::owner_read);
  Arguments with_key = peers("tcp:0.0.0.0:0");
  with_key.insert(with_key.end(), {"--cluster-key-file", path("key")});
  Serving a(serve("a", with_key)), b(serve("b", with_key)), c(serve("c", peers()));
  ASSERT_TRUE(a.is_ready() && b.is_ready() && c.is_ready());
  put("a", {"first"}, 1);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "first"); }));
  EXPECT_FALSE(is_stored("c", "first"));
  EXPECT_EQ(c.metric("cachalot_peers"), 0);
}

}  // namespace
}  // namespace cachalot::process_test
