// S3 services as they are in the field: busy, with keys that end, in another region. The service is testing/storage's.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "storage/backends.h"
#include "storage/s3/s3_backend.h"
#include "storage/store.h"
#include "testing/storage/chains.h"
#include "testing/storage/log_lines.h"
#include "testing/storage/one_object.h"
#include "testing/storage/server.h"

namespace cachalot::storage {
namespace {

const BackendSecrets kSecrets{.s3_access_key = "OLDKEY", .s3_secret_key = "secret"};

class S3Field : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/var/tmp/cachalot_s3.XXXXXX";
    folder_ = mkdtemp(name);
    start({});
  }
  void TearDown() override {
    store_.reset();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void start(std::vector<std::string> more) {
    const std::uint16_t port = free_port();
    std::vector<std::string> arguments{"python3", CACHALOT_S3_SERVER, std::to_string(port)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Result<TestServer> server = TestServer::start(arguments, port, folder_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::make_unique<TestServer>(*std::move(server));
  }
  void rules(const std::string& json) {
    std::ofstream(folder_ + "/rules.new") << json;
    std::filesystem::rename(folder_ + "/rules.new", folder_ + "/rules.json");
  }
  std::string text(const std::string& more = "") const {
    return "s3://kv-bucket?endpoint=http://127.0.0.1:" + std::to_string(server_->port()) + more;
  }
  std::size_t requests(const std::string& verb, int status) const {
    std::ifstream log(folder_ + "/requests.log");
    std::size_t found = 0;
    for (std::string line; std::getline(log, line);)
      found += line.starts_with(verb + " ") && line.ends_with(" " + std::to_string(status));
    return found;
  }
  std::string refusal(const std::string& more = "", const BackendSecrets& secrets = kSecrets) {
    const Result<std::unique_ptr<Backend>> opened = open_backend(text(more), secrets);
    EXPECT_FALSE(opened);
    return opened ? "" : opened.error().message;
  }
  void open_store(const std::string& more = "", const BackendSecrets& secrets = kSecrets) {
    Result<std::unique_ptr<Backend>> backend = open_backend(text(more), secrets);
    ASSERT_TRUE(backend) << backend.error().message;
    store_ = Store::make(*std::move(backend), {});
  }
  std::size_t put(const Chain& chain) {
    std::vector<std::vector<Bytes>> payloads;
    std::vector<BlockPut> blocks;
    for (std::size_t i = 0; i < chain.size(); ++i) payloads.push_back(chain.payload(i));
    for (std::size_t i = 0; i < chain.size(); ++i)
      blocks.push_back({chain.hashes()[i], payloads[i], chain.tokens(i)});
    return store_->put(kSpace, nullptr, blocks, soon());
  }
  std::size_t get(Chain& chain) {
    std::vector<std::vector<Room>> rooms;
    std::vector<Get> gets;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      chain.clear(i);
      rooms.push_back(chain.room(i));
    }
    for (std::size_t i = 0; i < chain.size(); ++i) gets.push_back({chain.key(i), rooms[i]});
    store_->get(gets, soon());
    std::size_t right = 0;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      EXPECT_TRUE(!gets[i].status || chain.is_right(i)) << i;
      right += gets[i].status.ok();
    }
    return right;
  }

  std::string folder_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Store> store_;
};

TEST_F(S3Field, EachEleventhPutThatIsToSlowDownIsTriedAgainAndStored) {
  rules(R"([{"verb": "PUT", "every": 11, "status": 503, "code": "SlowDown"}])");
  open_store();
  for (std::uint64_t name = 1; name <= 10; ++name) EXPECT_EQ(put(Chain(name, 32, 4096)), 32u);
  EXPECT_GE(requests("PUT", 503), 29u);
  EXPECT_EQ(store_->counts().outages, 0u);
  EXPECT_EQ(store_->counts().failed_puts, 0u);
  for (std::uint64_t name = 1; name <= 10; ++name) {
    Chain chain(name, 32, 4096);
    EXPECT_EQ(get(chain), 32u);
  }
}

TEST_F(S3Field, GetsThatFailInPassingAreTriedAgain) {
  open_store();
  Chain chain(1, 64, 65536, 2);
  ASSERT_EQ(put(chain), 64u);
  for (const char* const failure :
       {R"("status": 503, "code": "SlowDown")", R"("status": 500, "code": "InternalError")",
        R"("status": 429)", R"("status": 502)", R"("status": 504)", R"("reset": true)",
        R"("reset": "half")"}) {
    SCOPED_TRACE(failure);
    rules(R"([{"verb": "GET", "path": "objects", "every": 11, )" + std::string(failure) + "}]");
    EXPECT_EQ(get(chain), 64u);
  }
  EXPECT_EQ(store_->counts().failed_gets, 0u);
  EXPECT_EQ(store_->counts().damaged_objects, 0u);
}

TEST_F(S3Field, AnObjectThatIsRefusedForGoodIsNoOutage) {
  open_store();
  Chain chain(1, 8, 4096);
  ASSERT_EQ(put(chain), 8u);
  rules(R"([{"verb": "GET", "path": ")" + to_text(chain.key(3)) +
        R"(", "status": 500, "code": "InternalError"}])");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get(chain), 7u);
  EXPECT_TRUE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 0u);
  EXPECT_EQ(store_->counts().failed_gets, 5u);
  EXPECT_NE(store_->last_error().find("InternalError"), std::string::npos);
}

TEST_F(S3Field, ABusyServiceEndsACallBeforeItsDeadline) {
  open_store();
  rules(R"([{"verb": "PUT", "status": 503, "code": "SlowDown"}])");
  const std::uint64_t begin_ns = base::SteadyClock::read();
  const Status put = put_one(store_->backend(), begin_ns + 500'000'000);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kBusy) << put.error().message;
  EXPECT_GE(requests("PUT", 503), 2u);
}

TEST_F(S3Field, ARefusalIsNamedAtTheStart) {
  const std::pair<const char*, const char*> answers[] = {
      {R"("status": 400, "code": "ExpiredToken")", "the session token has ended"},
      {R"("status": 403, "code": "RequestTimeTooSkewed")", "clocks"},
      {R"("status": 403, "code": "SignatureDoesNotMatch")", "secret key"},
      {R"("status": 403, "code": "InvalidAccessKeyId")", "access key"},
      {R"("status": 403, "code": "AccessDenied")", "AccessDenied"}};
  for (const auto& [answer, expected] : answers) {
    rules("[{" + std::string(answer) + "}]");
    const std::string message = refusal();
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

TEST_F(S3Field, ATokenThatEndsIsNamedInFewLinesAndItsRenewalIsNoticed) {
  open_store();
  Chain chain(1, 4, 4096);
  ASSERT_EQ(put(chain), 4u);
  LogLines lines;
  rules(R"([{"status": 400, "code": "ExpiredToken"}])");
  const std::uint64_t until_ns = base::SteadyClock::read() + 8'000'000'000;
  for (std::uint64_t name = 2; base::SteadyClock::read() < until_ns; ++name) {
    EXPECT_EQ(put(Chain(name, 2, 4096)), 0u);
    EXPECT_EQ(get(chain), 0u);
    usleep(50'000);
  }
  EXPECT_FALSE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 1u);
  EXPECT_LE(lines.all().size(), 5u) << lines.all().back();
  EXPECT_NE(store_->last_error().find("ExpiredToken: the session token has ended"),
            std::string::npos)
      << store_->last_error();
  rules("[]");
  const std::uint64_t patience_ns = base::SteadyClock::read() + 60'000'000'000;
  while (get(chain) != 4 && base::SteadyClock::read() < patience_ns) usleep(50'000);
  EXPECT_EQ(get(chain), 4u);
}

TEST_F(S3Field, PutsThatAreDeniedAreOneOutageOfPutsAndNamed) {
  open_store();
  Chain chain(1, 4, 4096);
  ASSERT_EQ(put(chain), 4u);
  LogLines lines;
  rules(R"([{"verb": "PUT", "status": 403, "code": "AccessDenied"}])");
  const std::uint64_t until_ns = base::SteadyClock::read() + 5'000'000'000;
  for (std::uint64_t name = 2; base::SteadyClock::read() < until_ns; ++name) {
    EXPECT_EQ(put(Chain(name, 2, 4096)), 0u);
    EXPECT_EQ(get(chain), 4u);
    usleep(50'000);
  }
  EXPECT_TRUE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 0u);
  ASSERT_EQ(lines.all().size(), 1u) << lines.all().back();
  EXPECT_NE(lines.all()[0].find("PUT: HTTP 403, AccessDenied"), std::string::npos)
      << lines.all()[0];
}

TEST_F(S3Field, ARegionThatTheServiceNamesIsUsed) {
  for (
      const char* const answer :
      {R"("status": 301, "code": "PermanentRedirect", "headers": {"x-amz-bucket-region": "eu-west-7"})",
       R"("status": 307, "code": "TemporaryRedirect",
            "headers": {"Location": "https://kv-bucket.s3.eu-west-7.amazonaws.com/"})",
       R"("status": 400, "code": "AuthorizationHeaderMalformed", "xml": "<Region>eu-west-7</Region>")"}) {
    SCOPED_TRACE(answer);
    rules(R"([{"unless": "/eu-west-7/", )" + std::string(answer) + "}]");
    LogLines lines;
    const Result<std::unique_ptr<Backend>> backend = open_backend(text(), kSecrets);
    ASSERT_TRUE(backend) << backend.error().message;
    EXPECT_TRUE(put_one(**backend, soon()));
    EXPECT_TRUE(get_one(**backend, soon()));
    ASSERT_EQ(lines.all().size(), 1u);
    EXPECT_NE(lines.all()[0].find("region eu-west-7, not us-east-1"), std::string::npos);
    const std::size_t redirected = requests("GET", 301) + requests("GET", 307);
    EXPECT_TRUE(exists_one(**backend, soon()));
    EXPECT_EQ(requests("GET", 301) + requests("GET", 307), redirected);
  }
}

TEST_F(S3Field, ABucketThatIsElsewhereEndsTheStartWithItsRegion) {
  rules(R"([{"status": 301, "code": "PermanentRedirect",
             "headers": {"x-amz-bucket-region": "eu-west-7"}}])");
  const std::string named = refusal();
  EXPECT_NE(named.find("region, eu-west-7"), std::string::npos) << named;
  EXPECT_NE(named.find("expected its ?region="), std::string::npos) << named;
  rules(R"([{"status": 301, "code": "PermanentRedirect",
             "headers": {"x-amz-bucket-region": "evil.example/#"}}])");
  EXPECT_NE(refusal().find("does not name"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::storage
