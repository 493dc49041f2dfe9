#include "storage/redis/redis_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "storage/backends.h"
#include "storage/value.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"
#include "testing/storage/proxy.h"
#include "testing/storage/redis_fixture.h"

namespace cachalot::storage {
namespace {

void form_cluster(Servers& servers) {
  for (std::size_t i = 0; i < 3; ++i) {
    servers.start({"--cluster-enabled", "yes", "--cluster-node-timeout", "3000",
                   "--cluster-require-full-coverage", "no", "--cluster-port", "{peer_port}"});
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string first = std::to_string(i * kRedisSlots / 3);
    const std::string last = std::to_string((i + 1) * kRedisSlots / 3 - 1);
    EXPECT_EQ(ask(servers.at(i), {"CLUSTER", "ADDSLOTSRANGE", first, last}), "OK");
    if (i == 0) continue;
    const TestServer& other = servers.at(i);
    EXPECT_EQ(ask(servers.at(0), {"CLUSTER", "MEET", "127.0.0.1", std::to_string(other.port()),
                                  std::to_string(other.peer_port())}),
              "OK");
  }
  const auto is_formed = [&](std::size_t i) {
    const std::string info = ask(servers.at(i), {"CLUSTER", "INFO"});
    return info.find("cluster_state:ok") != std::string::npos &&
           info.find("cluster_slots_assigned:16384") != std::string::npos;
  };
  const std::uint64_t until = soon() + 20'000'000'000;
  while (!(is_formed(0) && is_formed(1) && is_formed(2))) {
    ASSERT_LT(base::SteadyClock::read(), until);
    usleep(50'000);
  }
}

Servers& plain() {
  static Servers servers;
  if (servers.count() == 0) servers.start();
  return servers;
}
Servers& cluster() {
  static Servers servers;
  if (servers.count() == 0) form_cluster(servers);
  return servers;
}

// Storages of the tests are apart by their folders' names.
BackendUnderTest conformant(const char* name, std::function<std::string(std::string)> text) {
  const auto open = [text](const std::string& folder) {
    return open_backend(text(std::filesystem::path(folder).filename()), {});
  };
  return {name, open, false, 2u << 20};
}

INSTANTIATE_TEST_SUITE_P(Redis, BackendConformance,
                         ::testing::Values(conformant("redis",
                                                      [](const std::string& folder) {
                                                        return address(plain().at(0)) +
                                                               "?prefix=" + folder;
                                                      }),
                                           conformant("redis_one_connection",
                                                      [](const std::string& folder) {
                                                        return address(plain().at(0)) +
                                                               "?prefix=" + folder +
                                                               "&connections=1";
                                                      }),
                                           conformant("redis_by_socket",
                                                      [](const std::string& folder) {
                                                        TestServer& server = plain().at(0);
                                                        EXPECT_EQ(ask(server, {"PING"}), "PONG");
                                                        return "redis+unix:" + plain().socket(0) +
                                                               "?prefix=" + folder;
                                                      }),
                                           conformant("redis_cluster",
                                                      [](const std::string& folder) {
                                                        return address(cluster().at(1)) +
                                                               "?prefix=" + folder + "&cluster=1";
                                                      })),
                         name_of_backend);

// One server behind a proxy.
class RedisRig final : public FaultRig {
 public:
  RedisRig() : server_(servers_.start()), proxy_(server_.port()) {}
  static std::unique_ptr<FaultRig> make(const std::string&) { return std::make_unique<RedisRig>(); }

  Result<std::unique_ptr<Backend>> open() override {
    return open_backend("redis://127.0.0.1:" + std::to_string(proxy_.port()) + "?prefix=kv", {});
  }
  void begin(Fault fault) override {
    if (fault == Fault::kKilled) server_.kill();
    if (fault == Fault::kPaused) server_.stop();
    if (fault == Fault::kReset) proxy_.set(TestProxy::Mode::kReset);
    if (fault == Fault::kFull) limit("1mb");
  }
  void end(Fault fault) override {
    if (fault == Fault::kKilled) restart();
    if (fault == Fault::kPaused) server_.resume();
    if (fault == Fault::kReset) proxy_.set(TestProxy::Mode::kPass);
    if (fault == Fault::kFull) limit("0");
  }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    std::string value = ask(server_, {"GET", name(chain.key(i))});
    ASSERT_EQ(value.size(), value_bytes(chain.head(i)));
    if (fault == Fault::kBitFlipped) value[9000] ^= 1;
    if (fault == Fault::kTruncated) value.resize(9000);
    if (fault == Fault::kSwapped) value = ask(server_, {"GET", name(other.key(0))});
    EXPECT_EQ(ask(server_, {"SET", name(chain.key(i)), value}), "OK");
  }
  bool is_durable() const override { return false; }

 private:
  static std::string name(const ObjectKey& key) { return "kv:" + to_text(key); }
  void restart() { EXPECT_TRUE(server_.restart()); }
  void limit(const std::string& bytes) {
    EXPECT_EQ(ask(server_, {"CONFIG", "SET", "maxmemory", bytes}), "OK");
  }

  Servers servers_;
  TestServer& server_;
  TestProxy proxy_;
};

INSTANTIATE_TEST_SUITE_P(Redis, StorageOutage,
                         ::testing::Values(RigUnderTest{"redis", RedisRig::make, Fault::kKilled},
                                           RigUnderTest{"redis", RedisRig::make, Fault::kPaused},
                                           RigUnderTest{"redis", RedisRig::make, Fault::kReset}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(Redis, StorageFull,
                         ::testing::Values(RigUnderTest{"redis", RedisRig::make, Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(Redis, StorageDamage,
                         ::testing::Values(RigUnderTest{"redis", RedisRig::make,
                                                        Fault::kBitFlipped},
                                           RigUnderTest{"redis", RedisRig::make, Fault::kTruncated},
                                           RigUnderTest{"redis", RedisRig::make, Fault::kSwapped}),
                         name_of_rig);

std::unique_ptr<Backend> opened(const std::string& text, const BackendSecrets& secrets = {}) {
  Result<std::unique_ptr<Backend>> backend = open_backend(text, secrets);
  EXPECT_TRUE(backend) << backend.error().message;
  return backend ? *std::move(backend) : nullptr;
}

Status put_status(Backend& backend, const Chain& chain) {
  const std::vector<Bytes> body = chain.body(0);
  Put put{chain.head(0), body};
  const Status whole = backend.put({&put, 1}, soon());
  return whole ? put.status : whole;
}

TEST(RedisSlotTest, IsTheOneOfTheSpecification) {
  EXPECT_EQ(redis_slot("123456789"), 0x31C3u % kRedisSlots);
  EXPECT_EQ(redis_slot("{user1000}.following"), redis_slot("{user1000}.followers"));
  EXPECT_EQ(redis_slot("foo{}{bar}"),
            std::stoul(ask(cluster().at(0), {"CLUSTER", "KEYSLOT", "foo{}{bar}"})));
  EXPECT_EQ(redis_slot("foo{{bar}}zap"), redis_slot("{bar"));
}

TEST(RedisTest, ItsTextIsChecked) {
  for (const char* const text :
       {"redis:127.0.0.1", "redis://", "redis://:6379", "redis://a:0", "redis://a:70000",
        "redis://a:6379x", "redis://user@a", "redis://a/kv", "redis://a/-1",
        "redis://a/1?cluster=1", "redis://a?cluster=2", "redis://a?connections=0", "redis+unix:"}) {
    const Result<std::unique_ptr<Backend>> backend = open_backend(text, {});
    ASSERT_FALSE(backend) << text;
    EXPECT_EQ(backend.error().code, Code::kInvalidArgument) << text;
  }
  for (const char* const text :
       {"redis://localhost", "redis://[::1]:7000?prefix=a/b", "redis://u:p@h/7", "valkey://h/"})
    EXPECT_TRUE(open_backend(text, {})) << text;
}

TEST(RedisTest, AServerThatIsDownIsAnErrorOfTheCallAndOfNoOpening) {
  const std::unique_ptr<Backend> backend =
      opened("redis://127.0.0.1:" + std::to_string(free_port()));
  const Status put = put_status(*backend, Chain(1, 1, 4096));
  ASSERT_FALSE(put);
  EXPECT_NE(std::string(put.error().message).find("Connection refused"), std::string::npos);
}

TEST(RedisTest, AHostWithoutAddressIsAnError) {
  const Status put = put_status(*opened("redis://no-such-host.invalid"), Chain(1, 1, 4096));
  ASSERT_FALSE(put);
  EXPECT_NE(std::string(put.error().message).find("no-such-host.invalid"), std::string::npos);
}

TEST(RedisTest, APasswordIsSentAndAWrongOneSaysSo) {
  Servers servers;
  TestServer& server = servers.start({"--requirepass", "correct horse"});
  const std::string host = "127.0.0.1:" + std::to_string(server.port());
  Chain chain(1, 4, 4096);
  EXPECT_EQ(put_all(*opened("redis://:correct%20horse@" + host), chain), 4u);
  EXPECT_EQ(put_all(*opened("redis://default:correct%20horse@" + host), chain), 4u);
  EXPECT_EQ(put_all(*opened("redis://" + host, {.redis_password = "correct horse"}), chain), 4u);
  for (const std::string login : {":wrong@", ""}) {
    const Result<std::unique_ptr<Backend>> refused = open_backend("redis://" + login + host, {});
    ASSERT_FALSE(refused) << login;
    EXPECT_EQ(refused.error().code, Code::kPermission) << refused.error().message;
  }
}

TEST(RedisTest, AFullServerSaysSoAndIsReadAllTheSame) {
  Servers servers;
  TestServer& server = servers.start({"--maxmemory-policy", "noeviction"});
  const std::unique_ptr<Backend> backend = opened(address(server));
  Chain chain(1, 4, 65536), more(2, 1, 65536);
  ASSERT_EQ(put_all(*backend, chain), 4u);
  EXPECT_EQ(ask(server, {"CONFIG", "SET", "maxmemory", "1mb"}), "OK");
  const Status put = put_status(*backend, more);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kNoSpace) << put.error().message;
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(4, true));
  EXPECT_EQ(ask(server, {"CONFIG", "SET", "maxmemory", "0"}), "OK");
  EXPECT_TRUE(put_status(*backend, more));
}

TEST(RedisTest, KeysOfOthersAreNeitherListedNorRead) {
  Servers servers;
  TestServer& server = servers.start();
  const std::unique_ptr<Backend> backend = opened(address(server) + "?prefix=a*b");
  Chain chain(1, 2, 4096);
  ASSERT_EQ(put_all(*backend, chain), 2u);
  ASSERT_EQ(put_all(*opened(address(server) + "?prefix=axb"), Chain(2, 2, 4096)), 2u);
  EXPECT_EQ(ask(server, {"SET", "a*b:other", "text"}), "OK");
  EXPECT_EQ(ask(server, {"SET", "a*b:" + to_text(Chain(3, 1, 64).key(0)), "text"}), "OK");
  EXPECT_EQ(ask(server, {"LPUSH", "a*b:" + to_text(Chain(4, 1, 64).key(0)), "text"}), "1");
  std::size_t listed = 0;
  EXPECT_TRUE(backend->list([&](const ObjectHead&) { return ++listed != 0; }, soon()));
  EXPECT_EQ(listed, 2u);
  for (const std::uint64_t name : {3u, 4u}) {
    Chain other(name, 1, 64);
    std::vector<Room> room = other.room(0);
    Get get{other.key(0), room};
    ASSERT_TRUE(backend->get({&get, 1}, soon()));
    ASSERT_FALSE(get.status);
    EXPECT_EQ(get.status.error().code, Code::kCorrupt) << get.status.error().message;
  }
}

TEST(RedisTest, AServerThatWasRestartedIsUsedWithoutAnError) {
  Servers servers;
  TestServer& server = servers.start();
  const std::unique_ptr<Backend> backend = opened(address(server));
  Chain chain(1, 4, 4096);
  ASSERT_EQ(put_all(*backend, chain), 4u);
  ASSERT_TRUE(server.restart());
  EXPECT_EQ(put_all(*backend, chain), 4u);
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(4, true));
}

// A batch of 16 MiB, broken at many places: what was acknowledged is there, and all works afterwards.
TEST(RedisTest, AConnectionThatIsResetAtAnyByteLosesNothingThatWasAcknowledged) {
  Servers servers;
  TestServer& server = servers.start();
  TestProxy proxy(server.port());
  const std::unique_ptr<Backend> backend =
      opened("redis://127.0.0.1:" + std::to_string(proxy.port()));
  base::Rng random(77);
  std::size_t failed = 0;
  for (std::uint64_t round = 1; round <= 20; ++round) {
    Chain chain(round, 16, 65536, 2);
    std::vector<std::vector<Bytes>> bodies;
    std::vector<Put> puts;
    for (std::size_t i = 0; i < 16; ++i) bodies.push_back(chain.body(i));
    for (std::size_t i = 0; i < 16; ++i) puts.push_back({chain.head(i), bodies[i]});
    proxy.reset_after(1 + random.below(1'200'000));
    const Status whole = backend->put(puts, soon());
    proxy.reset_after(random.chance(0.5) ? 1 + random.below(600'000) : 0);
    (void)get_all(*backend, chain);  // may fail, too
    proxy.reset_after(std::uint64_t(-1));
    const std::vector<bool> there = get_all(*backend, chain);
    for (std::size_t i = 0; i < 16; ++i) {
      const bool is_stored = whole.ok() && puts[i].status.ok();
      EXPECT_TRUE(!is_stored || there[i]) << "round " << round << ", object " << i;
      failed += !is_stored;
    }
  }
  EXPECT_GT(proxy.resets(), 5u);
  RecordProperty("failed", static_cast<int>(failed));
}

// Slots move while the client has an old map: first with MOVED, then in the middle of a migration with ASK.
TEST(RedisClusterTest, MovedAndAskAreFollowed) {
  Servers& servers = cluster();
  const std::unique_ptr<Backend> backend =
      opened(address(servers.at(0)) + "?prefix={moving}&cluster=1");
  const std::uint16_t slot = redis_slot("{moving}:");
  Chain chain(1, 6, 4096, 1);
  ASSERT_EQ(put_all(*backend, chain), 6u);  // the client has the map now
  const std::string number = std::to_string(slot);
  const std::size_t from = slot * 3u / kRedisSlots, to = (from + 1) % 3;
  const std::string from_id = ask(servers.at(from), {"CLUSTER", "MYID"});
  const std::string to_id = ask(servers.at(to), {"CLUSTER", "MYID"});
  ASSERT_EQ(ask(servers.at(to), {"CLUSTER", "SETSLOT", number, "IMPORTING", from_id}), "OK");
  ASSERT_EQ(ask(servers.at(from), {"CLUSTER", "SETSLOT", number, "MIGRATING", to_id}), "OK");
  const auto migrate = [&](std::size_t i) {
    return ask(servers.at(from), {"MIGRATE", "127.0.0.1", std::to_string(servers.at(to).port()),
                                  "{moving}:" + to_text(chain.key(i)), "0", "5000"});
  };
  for (const std::size_t i : {1u, 4u}) ASSERT_EQ(migrate(i), "OK");
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(6, true)) << "ASK";
  Chain more(2, 4, 4096, 1);
  EXPECT_EQ(put_all(*backend, more), 4u) << "ASK";
  EXPECT_EQ(get_all(*backend, more), std::vector<bool>(4, true)) << "ASK";
  for (const std::size_t i : {0u, 2u, 3u, 5u}) ASSERT_EQ(migrate(i), "OK");
  for (const std::size_t node : {to, from, (from + 2) % 3})
    ASSERT_EQ(ask(servers.at(node), {"CLUSTER", "SETSLOT", number, "NODE", to_id}), "OK");
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(6, true)) << "MOVED";
  EXPECT_EQ(put_all(*backend, Chain(3, 4, 4096)), 4u);
  const ObjectKey key = chain.key(0);
  EXPECT_TRUE(backend->remove({&key, 1}, soon()));
  EXPECT_FALSE(get_all(*backend, chain)[0]);
}

TEST(RedisClusterTest, ANodeThatIsDownHarmsItsOwnObjectsOnly) {
  Servers servers;
  form_cluster(servers);
  const std::unique_ptr<Backend> backend = opened(address(servers.at(0)) + "?prefix=kv&cluster=1");
  Chain chain(1, 60, 4096);
  ASSERT_EQ(put_all(*backend, chain), 60u);
  for (const bool is_killed : {false, true}) {
    if (is_killed) {
      servers.at(2).kill();
    } else {
      servers.at(2).stop();
    }
    std::vector<std::vector<Room>> rooms;
    std::vector<Get> gets;
    for (std::size_t i = 0; i < 60; ++i) rooms.push_back(chain.room(i));
    for (std::size_t i = 0; i < 60; ++i) gets.push_back({chain.key(i), rooms[i]});
    EXPECT_TRUE(backend->get(gets, base::SteadyClock::read() + 1'000'000'000));
    for (std::size_t i = 0; i < 60; ++i) {
      const bool is_there = redis_slot("kv:" + to_text(chain.key(i))) < 2 * kRedisSlots / 3;
      EXPECT_EQ(gets[i].status.ok(), is_there) << i;
    }
    if (is_killed) continue;
    servers.at(2).resume();
    EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(60, true));
  }
}

TEST(RedisClusterTest, AServerOfAClusterAsksForTheFlag) {
  for (std::size_t i = 0; i < 3; ++i) {
    const Result<std::unique_ptr<Backend>> opened = open_backend(address(cluster().at(i)), {});
    ASSERT_FALSE(opened) << i;
    EXPECT_EQ(opened.error().code, Code::kUnsupported);
    EXPECT_NE(std::string(opened.error().message).find("expected ?cluster=1"), std::string::npos)
        << opened.error().message;
  }
}

}  // namespace
}  // namespace cachalot::storage
