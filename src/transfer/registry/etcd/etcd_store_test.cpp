#include "transfer/registry/etcd/etcd_store.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <csignal>

#include "os/file_descriptor.h"
#include "testing/storage/certificates.h"
#include "testing/transfer/etcd_server.h"
#include "testing/transfer/registries.h"
#include "transfer/registry/etcd/base64.h"

namespace cachalot::transfer {
namespace {

constexpr const char* kNoEtcd = "etcd 3.4 or later is not installed (tools/setup)";

std::unique_ptr<EtcdServer> start_etcd() {
  Result<std::unique_ptr<EtcdServer>> server = EtcdServer::start();
  if (!server) {
    ADD_FAILURE() << server.error().message;
    std::abort();
  }
  return *std::move(server);
}

class EtcdPlace final : public RegistryPlace {
 public:
  std::string uri() const override { return "etcd://" + server_->endpoint() + "/test?ttl_s=4"; }
  void remove_record(const std::string& name) override {
    EtcdClient client({server_->endpoint()});
    const std::string key = to_base64("/test/peers/" + name);
    const auto removed = client.post("/v3/kv/deleterange", "{\"key\":\"" + key + "\"}", soon());
    EXPECT_TRUE(removed && removed->find("deleted") != std::string::npos) << text_of(removed);
  }

 private:
  std::unique_ptr<EtcdServer> server_ = start_etcd();
};

std::unique_ptr<RegistryPlace> make_place() {
  return EtcdServer::is_installed() ? std::make_unique<EtcdPlace>() : nullptr;
}
INSTANTIATE_TEST_SUITE_P(Etcd, RegistryConformance,
                         ::testing::Values(PlaceUnderTest{"etcd", make_place}), name_of_place);

class EtcdRegistry : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdServer::is_installed()) GTEST_SKIP() << kNoEtcd;
    etcd_ = start_etcd();
  }
  std::string uri() const { return "etcd://" + etcd_->endpoint() + "?ttl_s=4"; }
  std::unique_ptr<Registry> open() const { return transfer::open(uri()); }
  // As any program may.
  void put(const std::string& name, const std::string& value) const {
    EtcdClient client({etcd_->endpoint()});
    const auto put = client.post("/v3/kv/put",
                                 "{\"key\":\"" + to_base64("/cachalot/peers/" + name) +
                                     "\",\"value\":\"" + to_base64(value) + "\"}",
                                 soon());
    ASSERT_TRUE(put) << text_of(put);
  }
  // Returns by its deadline with an error. The slack is for a busy machine.
  static void expect_error_in_time(const Registry& registry) {
    const std::uint64_t latest_ns = in_s(11);
    const auto found = registry.find("a", in_s(1));
    EXPECT_TRUE(failed_with(found, Code::kTimeout) || failed_with(found, Code::kIo))
        << text_of(found);
    EXPECT_LT(base::SteadyClock::read(), latest_ns);
  }

  std::unique_ptr<EtcdServer> etcd_;
};

TEST_F(EtcdRegistry, ARecordComesBackAfterEtcdWasKilled) {
  const auto peer = open(), reader = open();
  const PeerRecord record = record_of("a");
  ASSERT_TRUE(peer->publish(record, soon()));
  etcd_->kill();
  expect_error_in_time(*reader);
  EXPECT_TRUE(comes_true([&] { return !peer->is_published(); }));
  EXPECT_NE(std::string(peer->published().error().message).find("etcd://127.0.0.1"),
            std::string::npos);
  ASSERT_TRUE(etcd_->restart());
  EXPECT_TRUE(comes_true([&] { return peer->is_published(); }));
  const auto found = reader->find("a", soon());
  ASSERT_TRUE(found) << text_of(found);
  EXPECT_EQ(*found, record);
}

TEST_F(EtcdRegistry, ARecordComesBackAfterEtcdLostItsData) {
  const auto peer = open(), reader = open();
  const PeerRecord record = record_of("a");
  ASSERT_TRUE(peer->publish(record, soon()));
  ASSERT_TRUE(etcd_->restart_without_data());
  EXPECT_TRUE(comes_true([&] { return reader->find("a", soon()).ok(); }));
  EXPECT_EQ(*reader->find("a", soon()), record);
  EXPECT_TRUE(comes_true([&] { return peer->is_published(); }));
}

TEST_F(EtcdRegistry, WhileEtcdIsPausedCallsEndInTimeAndAfterwardsTheRecordIsThere) {
  const auto peer = open(), reader = open(), late = open();
  ASSERT_TRUE(peer->publish(record_of("a"), soon()));
  ASSERT_TRUE(reader->find("a", soon()));
  etcd_->stop();
  expect_error_in_time(*reader);
  const auto listed = reader->list("", in_s(1));
  EXPECT_TRUE(failed_with(listed, Code::kTimeout)) << text_of(listed);
  const Status published = late->publish(record_of("b"), in_s(1));
  EXPECT_TRUE(failed_with(published, Code::kTimeout)) << text_of(published);
  // Longer than the record lapses.
  EXPECT_TRUE(comes_true([&] { return !peer->is_published(); }));
  etcd_->resume();
  EXPECT_TRUE(comes_true([&] { return peer->is_published() && reader->find("a", soon()).ok(); }));
  EXPECT_TRUE(late->publish(record_of("b"), soon()));
}

TEST_F(EtcdRegistry, APeerThatLostItsNameWhileItWasStoppedGetsItBackAfterTheOtherEnds) {
  const PeerRecord first = record_of("a"), second = record_of("a");
  int says[2];
  ASSERT_EQ(pipe(says), 0);
  // Says 1 while it is published, else 0.
  Result<os::Child> stopped = os::Child::start([&] {
    const auto peer = open();
    if (!peer->publish(first, soon())) return 1;
    while (true) {
      const char said = peer->is_published() ? '1' : '0';
      if (write(says[1], &said, 1) != 1) return 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  ASSERT_TRUE(stopped);
  close(says[1]);
  const auto wait_for = [&](char wanted) {
    char said = 0;
    while (read(says[0], &said, 1) == 1 && said != wanted) {
    }
    return said == wanted;
  };
  ASSERT_TRUE(wait_for('1'));
  stopped->send(SIGSTOP);
  auto other = open();
  const Status taken = other->publish(second, in_s(60));
  ASSERT_TRUE(taken) << text_of(taken);
  stopped->send(SIGCONT);
  ASSERT_TRUE(wait_for('0'));
  EXPECT_EQ(*other->find("a", soon()), second);
  other.reset();
  ASSERT_TRUE(wait_for('1'));
  EXPECT_EQ(*open()->find("a", soon()), first);
  close(says[0]);
}

// --- Endpoints -------------------------------------------------------------------------------------

// A port that accepts connections and never answers.
class SilentPort {
 public:
  SilentPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
        ::listen(socket_.get(), 100) != 0 ||
        ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
      std::abort();
    }
    endpoint_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  const std::string& endpoint() const { return endpoint_; }
  int get() const { return socket_.get(); }

 private:
  os::FileDescriptor socket_;
  std::string endpoint_;
};

TEST_F(EtcdRegistry, AnEndpointThatFailsOrHangsIsPassedOver) {
  const SilentPort silent;
  const std::string dead = "127.0.0.1:" + std::to_string(storage::free_port());
  for (const std::string& first :
       {dead, silent.endpoint(), std::string("no-such-host.invalid:1")}) {
    const auto peer = transfer::open("etcd://" + first + "," + etcd_->endpoint() + "?ttl_s=10");
    const Status published = peer->publish(record_of("a"), soon());
    ASSERT_TRUE(published) << first << ": " << text_of(published);
    EXPECT_TRUE(peer->find("a", soon()));
  }
}

TEST(EtcdEndpointTest, WithoutOneThatAnswersCallsEndInTime) {
  const SilentPort silent;
  const std::string dead = "127.0.0.1:" + std::to_string(storage::free_port());
  for (const std::string& hosts : {dead, silent.endpoint(), std::string("no-such-host.invalid:1"),
                                   silent.endpoint() + "," + dead}) {
    const auto registry = transfer::open("etcd://" + hosts);
    const std::uint64_t latest_ns = in_s(15);
    const auto found = registry->find("a", in_s(1));
    EXPECT_TRUE(failed_with(found, Code::kTimeout) || failed_with(found, Code::kIo))
        << text_of(found);
    EXPECT_FALSE(registry->publish(record_of("a"), in_s(1)));
    EXPECT_FALSE(registry->is_published());
    EXPECT_LT(base::SteadyClock::read(), latest_ns);
    EXPECT_TRUE(failed_with(registry->find("a", 0), Code::kTimeout));
  }
}

TEST(EtcdUriTest, IsChecked) {
  for (const char* uri :
       {"etcd:127.0.0.1:1", "etcd://", "etcd://host", "etcd://host:", "etcd://:1", "etcd://h:1,",
        "etcd://h:1,,g:1", "etcd://h:1x", "etcd://user@h:1", "etcd://h:1?ttl_s=2",
        "etcd://h:1?ttl_s=3601", "etcd://h:1?tls=1", "etcd://h:1/%zz"}) {
    const auto opened = open_registry(uri);
    EXPECT_TRUE(failed_with(opened, Code::kInvalidArgument)) << uri << ": " << text_of(opened);
  }
  for (const char* uri : {"etcd://h:1", "etcd://h:1,g:2/", "etcd://[::1]:2379/a/b?ttl_s=3"})
    EXPECT_TRUE(open_registry(uri)) << uri;
}

// --- Hostile records and answers -------------------------------------------------------------------

TEST_F(EtcdRegistry, RecordsThatAreNoneAreOneErrorEachAndHideNoOther) {
  const auto peer = open();
  ASSERT_TRUE(peer->publish(record_of("good"), soon()));
  const std::vector<std::pair<std::string, std::string>> texts{
      {"garbage", std::string("\xff\x00{{{", 5)}, {"empty", ""},
      {"long", std::string(1u << 20, '[')},       {"number", "{\"version\": 1, \"name\": 7}"},
      {"other", encode(record_of("another"))},
  };
  for (const auto& [name, text] : texts) {
    put(name, text);
    const auto found = peer->find(name, soon());
    EXPECT_TRUE(failed_with(found, Code::kCorrupt)) << name << ": " << text_of(found);
  }
  const Status taken = open()->publish(record_of("garbage"), in_s(4));
  EXPECT_TRUE(failed_with(taken, Code::kBusy)) << text_of(taken);
  put(std::string("\xff\n\0", 3), "x");
  EXPECT_EQ(peer->list("", soon())->size(), 1u);
}

// Answers every request with the same bytes.
class FakeEtcd {
 public:
  explicit FakeEtcd(std::string answer)
      : answer_(std::move(answer)), thread_([this] { serve(); }) {}
  ~FakeEtcd() {
    ::shutdown(port_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& endpoint() const { return port_.endpoint(); }

 private:
  void serve() {
    while (true) {
      const os::FileDescriptor client(::accept4(port_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      // All requests of these tests come in one piece or two, and are answered after their end.
      std::string request;
      char some[4096];
      while (request.find("\r\n\r\n") == std::string::npos || !request.ends_with('}')) {
        const ssize_t got = ::recv(client.get(), some, sizeof some, 0);
        if (got <= 0) break;
        request.append(some, static_cast<std::size_t>(got));
      }
      (void)::send(client.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
    }
  }

  const std::string answer_;
  SilentPort port_;
  std::thread thread_;
};

std::string http(const std::string& body, const char* status = "200 OK") {
  return std::string("HTTP/1.1 ") + status +
         "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

TEST(HostileEtcdTest, AnswersThatAreNotEtcdsAreErrors) {
  const std::vector<std::string> answers{
      "",
      "garbage\r\n\r\n",
      http(""),
      http("[]"),
      http("{{{"),
      http("\xff"),
      http("{\"kvs\": 7}"),
      http("{\"kvs\": [7]}"),
      http("{\"kvs\": [{\"key\": \"?\", \"value\": \"=\"}]}"),
      http("{\"kvs\": [{\"key\": \"YQ==\", \"value\": \"YQ==\"}], \"ID\": \"1\", \"responses\": "
           "[[]]}"),
      http("{\"ID\": 7}"),
      http("{\"ID\": \"7\", \"result\": [], \"responses\": {}, \"succeeded\": 1}"),
      http("{\"ID\": \"7\", \"responses\": [{\"response_range\": {\"kvs\": []}}]}"),
      http("{\"error\": [], \"code\": \"x\"}", "500 Wrong"),
      http("{\"error\": \"no\", \"code\": 7}", "403 Forbidden"),
      http("", "301 Moved\r\nLocation: http://127.0.0.1:1/"),
  };
  for (const std::string& answer : answers) {
    const FakeEtcd fake(answer);
    const auto registry = transfer::open("etcd://" + fake.endpoint());
    const Status published = registry->publish(record_of("a"), in_s(5));
    EXPECT_FALSE(published) << answer.substr(0, 200);
    EXPECT_FALSE(registry->is_published());
    const auto found = registry->find("b", in_s(5));
    EXPECT_FALSE(found) << answer.substr(0, 200);
    const auto listed = registry->list("", in_s(5));
    EXPECT_TRUE(!listed || listed->empty());
  }
}

TEST(EtcdTlsTest, RecordsGoOverTlsToAServerOfTheAuthorityWithTheClientsCertificate) {
  if (!EtcdServer::is_installed()) GTEST_SKIP() << kNoEtcd;
  char folder[] = "/tmp/cachalot_etcd_tls.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  {
    const storage::Certificates certificates(folder), other(folder, "other");
    certificates.sign("server", "IP:127.0.0.1");
    certificates.sign("client", "DNS:client");
    const auto etcd = EtcdServer::start({"--cert-file", certificates.cert("server"), "--key-file",
                                         certificates.key("server"), "--trusted-ca-file",
                                         certificates.ca(), "--client-cert-auth"});
    ASSERT_TRUE(etcd) << etcd.error().message;
    const std::string place = "etcds://" + (*etcd)->endpoint() + "/tls?ttl_s=4&ca=";
    const std::string own =
        "&cert=" + certificates.cert("client") + "&key=" + certificates.key("client");
    const auto registry = transfer::open(place + certificates.ca() + own);
    const PeerRecord record = record_of("a");
    const Status published = registry->publish(record, soon());
    ASSERT_TRUE(published) << text_of(published);
    EXPECT_EQ(*registry->find("a", soon()), record);
    // A server of another authority, a client without a certificate, a client without TLS.
    for (const std::string& wrong : {place + other.ca() + own, place + certificates.ca(),
                                     "etcd://" + (*etcd)->endpoint() + "/tls"})
      EXPECT_TRUE(failed_with(transfer::open(wrong)->find("a", in_s(5)), Code::kIo)) << wrong;
    for (const auto& [wrong, part] :
         {std::pair{place + "/none", "/none"},
          {place + certificates.ca() + "&cert=" + certificates.ca(), "one of cert and key"}}) {
      const auto refused = open_registry(wrong);
      ASSERT_FALSE(refused);
      EXPECT_NE(std::string(refused.error().message).find(part), std::string::npos)
          << refused.error().message;
    }
    EXPECT_FALSE(open_registry("etcd://127.0.0.1:1?ca=" + certificates.ca())) << "without TLS";
  }
  std::filesystem::remove_all(folder);
}

TEST(HostileEtcdTest, AnAnswerWithoutEndIsNotKept) {
  const FakeEtcd fake(http("{\"kvs\": []" + std::string(33u << 20, ' ') + "}"));
  const auto listed = transfer::open("etcd://" + fake.endpoint())->list("", soon());
  ASSERT_TRUE(failed_with(listed, Code::kIo)) << text_of(listed);
  EXPECT_NE(text_of(listed).find("more than 33554432 bytes"), std::string::npos);
}

TEST(Base64Test, BytesAreReadAsTheyWereWritten) {
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_base64("f"), "Zg==");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(i * 7);
  }
  for (const char* text : {"Z", "Zg", "Zg=", "Zg=a", "====", "Z===", "Zm9?"})
    EXPECT_FALSE(from_base64(text)) << text;
}

}  // namespace
}  // namespace cachalot::transfer
