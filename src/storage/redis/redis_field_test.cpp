// Redis servers as they are in the field: busy, replicas, with users of few rights, behind TLS.
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "storage/backends.h"
#include "storage/store.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/certificates.h"
#include "testing/storage/conformance.h"
#include "testing/storage/hostile_server.h"
#include "testing/storage/log_lines.h"
#include "testing/storage/one_object.h"
#include "testing/storage/proxy.h"
#include "testing/storage/redis_fixture.h"

namespace cachalot::storage {
namespace {

std::unique_ptr<Backend> opened(const std::string& text, const BackendSecrets& secrets = {}) {
  Result<std::unique_ptr<Backend>> backend = open_backend(text, secrets);
  EXPECT_TRUE(backend) << text << ": " << backend.error().message;
  return backend ? *std::move(backend) : nullptr;
}
std::string refusal(const std::string& text, Code code, const BackendSecrets& secrets = {}) {
  const Result<std::unique_ptr<Backend>> backend = open_backend(text, secrets);
  EXPECT_FALSE(backend) << text;
  if (backend) return "";
  EXPECT_EQ(backend.error().code, code) << backend.error().message;
  return backend.error().message;
}
void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}
std::string host_of(const TestServer& server) {
  return "127.0.0.1:" + std::to_string(server.port());
}

// --- Names -----------------------------------------------------------------------------------------

TEST(RedisField, ThePathIsADatabaseAndThePrefixAParameter) {
  Servers servers;
  TestServer& server = servers.start();
  EXPECT_TRUE(put_one(*opened(address(server) + "/3?prefix=kv"), soon()));
  EXPECT_TRUE(get_one(*opened("valkey://" + host_of(server) + "/3?prefix=kv"), soon()));
  EXPECT_TRUE(get_one(*opened("redis+unix:" + servers.socket(0) + "?prefix=kv&db=3"), soon()));
  for (const char* const other : {"", "/", "/0?prefix=kv", "/3", "/2?prefix=kv"}) {
    const Status got = get_one(*opened(address(server) + other), soon());
    ASSERT_FALSE(got) << other;
    EXPECT_EQ(got.error().code, Code::kNotFound) << got.error().message;
  }
  expect_part(ask(server, {"INFO", "keyspace"}), "db3:keys=1");
  expect_part(refusal(address(server) + "/kv", Code::kInvalidArgument), "?prefix=kv");
  expect_part(refusal(address(server) + "/99", Code::kUnsupported), "DB index");
  expect_part(refusal(address(server) + "/1?cluster=1", Code::kInvalidArgument), "number 0 only");
}

// --- In passing ------------------------------------------------------------------------------------

TEST(RedisField, AServerThatRunsAScriptIsAskedAgain) {
  Servers servers;
  TestServer& server = servers.start({"--lua-time-limit", "1"});
  const std::unique_ptr<Backend> backend = opened(address(server));
  ASSERT_TRUE(put_one(*backend, soon()));
  const std::string script =
      "local function us() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end "
      "local start = us() while us() - start < 200000 do end return 'over'";
  std::string ended;
  std::thread busy([&] { ended = ask(server, {"EVAL", script, "0"}); });
  while (ask(server, {"GET", "x"}).find("BUSY") == std::string::npos && ended.empty()) {
  }
  EXPECT_TRUE(put_one(*backend, soon()));
  EXPECT_TRUE(get_one(*backend, soon()));
  busy.join();
  EXPECT_EQ(ended, "over");
}

TEST(RedisField, ANewConnectionThatIsResetIsMadeAgain) {
  Servers servers;
  TestServer& server = servers.start();
  TestProxy proxy(server.port());
  const std::unique_ptr<Backend> backend =
      opened("redis://127.0.0.1:" + std::to_string(proxy.port()));
  ASSERT_TRUE(put_one(*backend, soon()));
  proxy.set(TestProxy::Mode::kReset);
  std::thread mender([&] {
    const std::uint64_t before = proxy.resets();
    while (proxy.resets() < before + 3) std::this_thread::yield();
    proxy.set(TestProxy::Mode::kPass);
  });
  EXPECT_TRUE(get_one(*backend, soon()));
  mender.join();
}

// --- Rights ----------------------------------------------------------------------------------------

TEST(RedisField, AUserWithoutARightThatReadingTakesIsRefusedAtTheStart) {
  Servers servers;
  TestServer& server = servers.start();
  EXPECT_EQ(ask(server, {"ACL", "SETUSER", "blind", "on", ">x", "~*", "+@all", "-scan"}), "OK");
  EXPECT_EQ(ask(server, {"ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", "-getrange"}), "OK");
  EXPECT_EQ(ask(server, {"ACL", "SETUSER", "far", "on", ">x", "~other:*", "+@all"}), "OK");
  EXPECT_EQ(ask(server, {"ACL", "SETUSER", "reader", "on", ">x", "~cachalot:*", "+exists",
                         "+getrange", "+scan"}),
            "OK");
  expect_part(refusal("redis://blind:x@" + host_of(server), Code::kPermission), "'scan'");
  expect_part(refusal("redis://deaf:x@" + host_of(server), Code::kPermission), "'getrange'");
  expect_part(refusal("redis://far:x@" + host_of(server), Code::kPermission), "NOPERM");
  EXPECT_TRUE(put_one(*opened(address(server)), soon()));
  EXPECT_TRUE(get_one(*opened("redis://reader:x@" + host_of(server)), soon()));
}

TEST(RedisField, AReplicaIsToldAtTheStartAndItsRefusalsOnce) {
  Servers servers;
  TestServer& master = servers.start();
  TestServer& replica =
      servers.start({"--replicaof", "127.0.0.1 " + std::to_string(master.port())});
  const std::uint64_t until_ns = soon();
  while (ask(replica, {"INFO", "replication"}).find("master_link_status:up") == std::string::npos &&
         base::SteadyClock::read() < until_ns) {
    usleep(20'000);
  }
  ASSERT_TRUE(put_one(*opened(address(master)), soon()));
  while (ask(replica, {"DBSIZE"}) != ask(master, {"DBSIZE"}) &&
         base::SteadyClock::read() < until_ns)
    usleep(20'000);  // what a master has goes to its replicas later
  LogLines lines;
  Store* store = nullptr;
  const std::unique_ptr<Store> made = Store::make(opened(address(replica)), {});
  store = made.get();
  const std::uint64_t end_ns = base::SteadyClock::read() + 5'000'000'000;
  Chain known(1, 1, 4096);
  for (std::uint64_t name = 2; base::SteadyClock::read() < end_ns; ++name) {
    const Chain chain(name, 1, 4096);
    const std::vector<Bytes> payload = chain.payload(0);
    BlockPut block{chain.hashes()[0], payload};
    EXPECT_EQ(store->put(kSpace, nullptr, {&block, 1}, soon()), 0u);
    const std::vector<Room> room = known.room(0);
    Get get{known.key(0), room};
    store->get({&get, 1}, soon());
    EXPECT_TRUE(get.status) << get.status.error().message;
    usleep(20'000);
  }
  EXPECT_TRUE(store->is_up());
  EXPECT_EQ(store->counts().outages, 0u);
  ASSERT_EQ(lines.all().size(), 2u);
  expect_part(lines.all()[0], "is a replica");
  expect_part(lines.all()[1], "READONLY");
}

TEST(RedisField, AUsersPasswordComesFromTheEnvironmentOrAFileThatMayChange) {
  Servers servers;
  TestServer& server = servers.start();
  EXPECT_EQ(ask(server, {"ACL", "SETUSER", "kv", "on", ">one", "~*", "+@all"}), "OK");
  const std::string text = "redis://kv@" + host_of(server);
  EXPECT_TRUE(put_one(*opened(text, {.redis_password = "one"}), soon()));
  expect_part(refusal(text, Code::kInvalidArgument), "password_file");
  const std::string file = servers.folder() + "/password";
  std::ofstream(file) << "one\n";
  const std::unique_ptr<Backend> backend = opened(text + "?password_file=" + file);
  EXPECT_TRUE(get_one(*backend, soon()));
  EXPECT_EQ(ask(server, {"ACL", "SETUSER", "kv", "resetpass", ">two"}), "OK");
  std::ofstream(file) << "two\n";
  (void)ask(server, {"CLIENT", "KILL", "USER", "kv"});
  EXPECT_TRUE(get_one(*backend, soon()));
  std::ofstream(file) << "three\n";
  expect_part(refusal(text + "?password_file=" + file, Code::kPermission), "WRONGPASS");
  expect_part(refusal(text + "?password_file=/none/there", Code::kNotFound), "/none/there");
}

// --- Eviction --------------------------------------------------------------------------------------

// 8 MB hold some 1,500 objects of 4 KiB. Without the store's care the server drops blocks of any place of a chain.
TEST(RedisField, AServerThatEvictsByItselfDropsNoBlockThatOthersStandOn) {
  Servers servers;
  TestServer& server = servers.start({"--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"});
  const std::unique_ptr<Store> store = Store::make(opened(address(server)), {});
  std::vector<std::unique_ptr<Chain>> chains;
  for (std::uint64_t name = 1; name <= 100; ++name) {
    chains.push_back(std::make_unique<Chain>(name, 32, 4096));
    const Chain& chain = *chains.back();
    std::vector<std::vector<Bytes>> payloads;
    std::vector<BlockPut> blocks;
    for (std::size_t i = 0; i < chain.size(); ++i) payloads.push_back(chain.payload(i));
    for (std::size_t i = 0; i < chain.size(); ++i)
      blocks.push_back({chain.hashes()[i], payloads[i]});
    EXPECT_EQ(store->put(kSpace, nullptr, blocks, soon()), 32u);
  }
  std::size_t hits = 0;
  for (const auto& chain : chains) {
    const std::size_t known = store->catalogue().count_prefix(kSpace, chain->hashes());
    std::vector<std::vector<Room>> rooms;
    std::vector<Get> gets;
    for (std::size_t i = 0; i < known; ++i) rooms.push_back(chain->room(i));
    for (std::size_t i = 0; i < known; ++i) gets.push_back({chain->key(i), rooms[i]});
    store->get(gets, soon());
    for (const Get& get : gets) EXPECT_TRUE(get.status) << get.status.error().message;
    hits += known;
  }
  EXPECT_GE(hits, 900u);
  EXPECT_GE(store->counts().evicted_objects, 1000u);
  EXPECT_EQ(store->counts().missing_objects, 0u);
  EXPECT_NE(ask(server, {"INFO", "stats"}).find("evicted_keys:0\r"), std::string::npos);
}

// Where others have filled it, the server goes on evicting, and the store gets its place.
TEST(RedisField, AServerThatOthersHaveFilledTakesNewObjects) {
  Servers servers;
  TestServer& server = servers.start({"--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"});
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(ask(server, {"SET", "other:" + std::to_string(i), std::string(4096, 'x')}), "OK");
  const std::unique_ptr<Store> store = Store::make(opened(address(server)), {});
  Chain chain(1, 32, 4096);
  const std::vector<std::vector<Bytes>> payloads = [&] {
    std::vector<std::vector<Bytes>> all;
    for (std::size_t i = 0; i < chain.size(); ++i) all.push_back(chain.payload(i));
    return all;
  }();
  std::vector<BlockPut> blocks;
  for (std::size_t i = 0; i < chain.size(); ++i) blocks.push_back({chain.hashes()[i], payloads[i]});
  EXPECT_EQ(store->put(kSpace, nullptr, blocks, soon()), 32u);
  EXPECT_EQ(store->counts().evicted_objects, 0u);
}

// --- TLS -------------------------------------------------------------------------------------------

// A server that speaks TLS only.
class TlsServer {
 public:
  explicit TlsServer(const std::string& clients = "no") {
    certificates_ = std::make_unique<Certificates>(folder_);
    certificates_->sign("server", "IP:127.0.0.1,DNS:kv.example");
    certificates_->sign("client", "DNS:client");
    Result<TestServer> server = TestServer::start(
        {"redis-server", "--port", "0", "--tls-port", "{port}", "--bind", "127.0.0.1", "--save", "",
         "--dir", folder_, "--tls-cert-file", certificates_->cert("server"), "--tls-key-file",
         certificates_->key("server"), "--tls-ca-cert-file", certificates_->ca(),
         "--tls-auth-clients", clients},
        folder_);
    if (!server) throw std::runtime_error(server.error().message);
    server_ = std::make_unique<TestServer>(*std::move(server));
  }
  std::string text(const std::string& host = "127.0.0.1", std::uint16_t port = 0) const {
    return "rediss://" + host + ":" + std::to_string(port == 0 ? server_->port() : port) +
           "?ca=" + certificates_->ca();
  }
  std::uint16_t port() const { return server_->port(); }
  const std::string& folder() const { return folder_; }
  const Certificates& certificates() const { return *certificates_; }

 private:
  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<Certificates> certificates_;
  std::unique_ptr<TestServer> server_;
};

Result<std::unique_ptr<Backend>> open_tls(const std::string& folder) {
  static const TlsServer server;
  return open_backend(
      server.text() + "&prefix=" + std::filesystem::path(folder).filename().string(), {});
}
INSTANTIATE_TEST_SUITE_P(RedisTls, BackendConformance,
                         ::testing::Values(BackendUnderTest{"redis_tls", open_tls, false,
                                                            2u << 20}),
                         name_of_backend);

TEST(RedisTls, TheServersCertificateAndItsNameAreVerified) {
  const TlsServer server;
  EXPECT_TRUE(put_one(*opened(server.text()), soon()));
  const Certificates other(server.folder(), "other");
  const std::string port = std::to_string(server.port());
  expect_part(refusal("rediss://127.0.0.1:" + port + "?ca=" + other.ca(), Code::kPermission),
              "its certificate");
  expect_part(refusal("valkeys://127.0.0.1:" + port, Code::kPermission), "its certificate");
  expect_part(refusal(server.text("localhost"), Code::kPermission), "ostname mismatch");
  expect_part(refusal("rediss://127.0.0.1?ca=/none/there", Code::kInvalidArgument), "/none/there");
  expect_part(refusal("redis://127.0.0.1?ca=x", Code::kInvalidArgument), "unknown parameter");
}

TEST(RedisTls, AServerMayAskForACertificateOfTheClient) {
  const TlsServer server("yes");
  const std::string with = "&cert=" + server.certificates().cert("client") +
                           "&key=" + server.certificates().key("client");
  EXPECT_TRUE(put_one(*opened(server.text() + with), soon()));
  (void)refusal(server.text(), Code::kPermission);
  const Certificates other(server.folder(), "other");
  other.sign("stranger", "DNS:client");
  (void)refusal(server.text() + "&cert=" + other.cert("stranger") + "&key=" + other.key("stranger"),
                Code::kPermission);
}

TEST(RedisTls, AServerWithoutTlsIsNamed) {
  const HostileServer talker({"-ERR no such command\r\n"});
  expect_part(refusal("rediss://127.0.0.1:" + std::to_string(talker.port()), Code::kUnsupported),
              "does not speak TLS");
  // Redis waits for more of what it takes for a command.
  Servers servers;
  const std::unique_ptr<Backend> backend = opened("rediss://" + host_of(servers.start()));
  const Status asked = exists_one(*backend, base::SteadyClock::read() + 300'000'000);
  ASSERT_FALSE(asked);
  expect_part(asked.error().message, "no end of the TLS handshake");
}

TEST(RedisTls, AConnectionThatIsResetAtAnyByteLosesNothingThatWasAcknowledged) {
  const TlsServer server;
  TestProxy proxy(server.port());
  const std::unique_ptr<Backend> backend = opened(server.text("127.0.0.1", proxy.port()));
  base::Rng random(77);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    Chain chain(round, 16, 65536, 2);
    proxy.reset_after(1 + random.below(1'200'000));
    std::vector<std::vector<Bytes>> bodies;
    std::vector<Put> puts;
    for (std::size_t i = 0; i < 16; ++i) bodies.push_back(chain.body(i));
    for (std::size_t i = 0; i < 16; ++i) puts.push_back({chain.head(i), bodies[i]});
    const Status whole = backend->put(puts, soon());
    proxy.reset_after(std::uint64_t(-1));
    const std::vector<bool> there = get_all(*backend, chain);
    for (std::size_t i = 0; i < 16; ++i)
      EXPECT_TRUE(!(whole.ok() && puts[i].status.ok()) || there[i]) << round << ", " << i;
  }
  EXPECT_GT(proxy.resets(), 5u);
}

}  // namespace
}  // namespace cachalot::storage
