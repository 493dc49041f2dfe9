// Hosts on one machine: two pools, each with a keeper of its own, that share a Redis or a directory, or read each other's
// blocks. The commands are those of docs/guide/cluster.md.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "program.h"
#include "testing/storage/redis_servers.h"
#include "testing/transfer/raw_peer.h"

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

class HostsOfADirectory : public Hosts {
 protected:
  HostsOfADirectory() { std::filesystem::create_directory(path("nfs")); }
  Arguments serve_shared(const std::string& pool) const {
    return serve(pool, {"--storage", "file:" + path("nfs") + "?shared=1"});
  }
  static bool is_up(Serving& one) {
    return one.is_ready() && wait_until([&] { return one.metric("cachalot_storage_up") == 1; });
  }
  std::size_t count(const std::string& end) const {
    std::size_t files = 0;
    for (const auto& one : std::filesystem::recursive_directory_iterator(path("nfs")))
      files += one.is_regular_file() && one.path().string().ends_with(end);
    return files;
  }
};

TEST_F(HostsOfADirectory, WhatOneHostPutsAnotherOneFindsAlsoInANamespaceThatItNeverHad) {
  Serving a(serve_shared("a")), b(serve_shared("b"));
  ASSERT_TRUE(is_up(a) && is_up(b));
  EXPECT_FALSE(is_stored("b", "first"));
  put("a", {"first"}, 1);
  put("a", {"second", "--parent", "first"}, 2);
  put("a", {"theirs", "--namespace", "other"}, 4);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "second"); }));
  EXPECT_TRUE(has("b", "second", 2));
  EXPECT_TRUE(has("b", "first", 1));
  ASSERT_TRUE(wait_until([&] { return a.metric("cachalot_storage_written_blocks_total") == 3; }));
  const Outcome theirs = run({"get", "theirs", "--namespace", "other", "--pool", path("b")});
  EXPECT_EQ(theirs.out, noise(kBytes, 4)) << theirs.err;
  // What the first host has written the second one does not write again.
  put("b", {"third", "--parent", "second"}, 3);
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_storage_written_blocks_total") == 1; }));
  ASSERT_TRUE(wait_until([&] { return is_stored("a", "third"); }));
  // An operator empties the directory: misses, until something is put again.
  for (const auto& one : std::filesystem::directory_iterator(path("nfs")))
    std::filesystem::remove_all(one.path());
  Serving c(serve_shared("c"));
  ASSERT_TRUE(is_up(c));
  EXPECT_FALSE(has("c", "first", 1));
  put("c", {"first"}, 1);
  ASSERT_TRUE(wait_until([&] { return c.metric("cachalot_storage_written_blocks_total") == 1; }));
  EXPECT_EQ(c.metric("cachalot_storage_outages_total"), 0);
}

TEST_F(HostsOfADirectory, AHostThatIsKilledWhileItWritesLeavesNoWrongBlock) {
  Serving b(serve_shared("b"));
  ASSERT_TRUE(is_up(b));
  std::set<std::string> seen;
  for (std::uint64_t round = 0; round < 5; ++round) {
    const std::string pool = "a" + std::to_string(round);
    Serving a(serve_shared(pool));
    ASSERT_TRUE(is_up(a));
    const auto name = [&](std::uint64_t i) {
      return std::to_string(round) + "-" + std::to_string(i);
    };
    const std::size_t before = count("");
    std::thread writer([&] {
      bool is_alive = true;
      for (std::uint64_t i = 0; i < 30 && is_alive; ++i) {
        const Arguments put = {"put", name(i), "--pool", path(pool), "--wait", "0"};
        is_alive = run(put, {.in = noise(kBytes, i)}).exit_code == 0;
      }
    });
    EXPECT_TRUE(wait_until([&] { return count("") >= before + 2 + round; }));
    a.send(SIGKILL);
    writer.join();
    (void)a.wait();
    for (std::uint64_t i = 0; i < 30; ++i) {
      // Whole, or not there at all.
      const Outcome got = run({"get", name(i), "--pool", path("b"), "--storage-wait", "1"});
      EXPECT_TRUE(got.exit_code == 1 || got.out == noise(kBytes, i)) << got.err;
      if (got.exit_code == 0) seen.insert(name(i));
    }
  }
  EXPECT_GE(seen.size(), 10u);
  EXPECT_EQ(b.metric("cachalot_storage_damaged_blocks_total"), 0);
}

TEST_F(HostsOfADirectory, TwoHostsThatPutTheSameBlocksAtTheSameTimeStoreEachOnce) {
  Serving a(serve_shared("a")), b(serve_shared("b")), c(serve_shared("c"));
  ASSERT_TRUE(is_up(a) && is_up(b) && is_up(c));
  const auto write = [&](const std::string& pool) {
    for (std::uint64_t i = 0; i < 20; ++i) put(pool, {"same-" + std::to_string(i)}, i);
  };
  std::thread other([&] { write("b"); });
  write("a");
  other.join();
  ASSERT_TRUE(wait_until([&] { return is_stored("c", "same-19"); }));
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(has("c", "same-" + std::to_string(i), i)) << i;
  EXPECT_EQ(count(".new"), 0u);
  EXPECT_EQ(count(""), 21u);  // and the mark
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
  EXPECT_NE(info.out.find(", 1 peer connected"), std::string::npos) << info.out;

  put("a", {"third"}, 3);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "third"); }));
  a.send(SIGKILL);
  (void)a.wait();
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_peers_known_blocks") == 0; }));
  EXPECT_FALSE(is_stored("b", "third")) << "it was found before";
  EXPECT_FALSE(has("b", "third", 3));
  EXPECT_TRUE(has("b", "second", 2));
  Serving again({"serve", "--pool", path("a"), "--peers", "file:" + path("registry"),
                 "--peer-listen", "tcp:127.0.0.1:0"});
  ASSERT_TRUE(again.is_ready());
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "third"); }));
  EXPECT_TRUE(wait_until([&] { return has("b", "third", 3); }));
}

std::size_t descriptors_of(pid_t process) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(process) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}
std::uint64_t resident_kib_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6));
  }
  return 0;
}

// Four kinds of strangers: noise, a hello and noise, a hello and frames with right checksums that hold noise, silence.
void send_nonsense(transfer::RawPeer& stranger, std::uint64_t i, const std::string& noise) {
  const auto raw = std::as_bytes(std::span(noise));
  const transfer::Bytes bytes(raw.begin(), raw.end());
  if (i % 4 == 3) return;
  if (i % 4 != 0) {
    stranger.send(transfer::hello_of("stranger", i, {}));
    stranger.send(transfer::reads_of());
  }
  if (i % 4 == 2) {
    stranger.send({transfer::FrameType::kMessage, transfer::BodyWriter().bytes(bytes).take()});
    stranger.send({static_cast<transfer::FrameType>(3 + i / 4 % 9), bytes});
  } else {
    stranger.send(bytes);
  }
}

TEST_F(Hosts, ABlockThatIsTooLargeForAPoolIsAMissThere) {
  Arguments small = serve("b", peers());
  small[5] = "2048";
  Serving a(serve("a", peers())), b(small);
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_peers") == 1; }));
  put("a", {"large"}, 1);
  expect_done(run({"put", "small", "--pool", path("a")}, {.in = noise(2000, 2)}));
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "small"); }));
  EXPECT_FALSE(is_stored("b", "large"));
  EXPECT_TRUE(wait_until([&] {
    return run({"get", "small", "--pool", path("b")}).out == noise(2000, 2);
  }));
}

TEST_F(Hosts, TenThousandStrangersAtThePeerPortKeepNoPeerOut) {
  const std::string address = "tcp:127.0.0.1:" + std::to_string(storage::free_port());
  Serving a(serve("a", peers(address)));
  Serving b(serve("b", peers()));
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  const pid_t keeper = std::stoi(a.ready_line().substr(a.ready_line().find("pid=") + 4));
  ASSERT_TRUE(wait_until([&] { return b.metric("cachalot_peers") == 1; }));
  put("a", {"first"}, 1);
  ASSERT_TRUE(wait_until([&] { return has("b", "first", 1); }));
  const std::uint64_t before_kib = resident_kib_of(keeper);
  const std::string text = noise(1 << 20, 7);
  std::deque<transfer::RawPeer> open;
  std::size_t most_descriptors = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    open.push_back(transfer::RawPeer::connect(address));
    send_nonsense(open.back(), i, text.substr(i * 100 % (text.size() - 200), 200));
    if (open.size() > 600) open.pop_front();
    if (i % 500 == 0) most_descriptors = std::max(most_descriptors, descriptors_of(keeper));
  }
  EXPECT_LE(most_descriptors, 130u) << "64 strangers of one machine stay, and its own files";
  EXPECT_EQ(b.metric("cachalot_peers"), 1);
  put("a", {"second"}, 2);
  EXPECT_TRUE(wait_until([&] { return has("b", "second", 2); }));
  // Another peer gets in, too.
  Serving c(serve("c", peers()));
  ASSERT_TRUE(c.is_ready());
  EXPECT_TRUE(wait_until([&] { return has("c", "second", 2); }));
  open.clear();
  EXPECT_LE(resident_kib_of(keeper), before_kib + (64u << 10));
  EXPECT_TRUE(wait_until([&] { return descriptors_of(keeper) <= 100; }));
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
  expect_error(run(serve("a", peers("tcp:10.0.0.1:0"))), 2,
               {"tcp:10.0.0.1:0", "--cluster-key-file"});
  expect_error(run(serve("a", {"--peers", "file:" + path("registry")})), 2, {"--peer-listen"});
  expect_error(run(serve("a", peers("tcp:127.0.0.1:nowhere"))), 2, {"127.0.0.1:nowhere"});
  expect_error(run(serve("a", {"--peers", "zookeeper:x", "--peer-listen", "tcp:127.0.0.1:0"})), 2,
               {"zookeeper:x"});

  std::ofstream(path("key")) << std::string(64, 'a');
  std::filesystem::permissions(path("key"), std::filesystem::perms::owner_read);
  Arguments with_key = peers();
  with_key.insert(with_key.end(), {"--cluster-key-file", path("key")});
  Serving a(serve("a", with_key)), b(serve("b", with_key)), c(serve("c", peers()));
  ASSERT_TRUE(a.is_ready() && b.is_ready() && c.is_ready());
  put("a", {"first"}, 1);
  ASSERT_TRUE(wait_until([&] { return is_stored("b", "first"); }));
  EXPECT_FALSE(is_stored("c", "first"));
  EXPECT_TRUE(wait_until([&] { return c.metric("cachalot_peers") == 0; }));
}

TEST_F(Hosts, AnAddressThatPeersCannotUseIsRefusedBeforeAPoolIsMade) {
  for (const char* const listen : {"tcp:0.0.0.0:7400", "tcp:[::]:7400"})
    expect_error(run(serve("a", peers(listen))), 2, {"--peer-listen", listen, "tcp:10.0.0.1:0"});
  Serving first(serve("b", {}));
  ASSERT_TRUE(first.is_ready());
  const std::string taken = first.ready_line().substr(first.ready_line().find("127.0.0.1:"));
  const std::string listen = "tcp:" + taken.substr(0, taken.find(' '));
  expect_error(run(serve("a", peers(listen))), 3, {"--peer-listen", listen});
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

}  // namespace
}  // namespace cachalot::process_test
