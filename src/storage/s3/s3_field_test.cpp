// S3 services as they are in the field: busy, with keys that end, in another region. The service is testing/storage's.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "storage/backends.h"
#include "storage/s3/s3_backend.h"
#include "storage/store.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/certificates.h"
#include "testing/storage/chains.h"
#include "testing/storage/log_lines.h"
#include "testing/storage/one_object.h"
#include "testing/storage/server.h"

namespace cachalot::storage {
namespace {

const BackendSecrets kSecrets{.s3_access_key = "OLDKEY", .s3_secret_key = "secret"};

class S3Field : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }
  void start(std::vector<std::string> more) {
    std::vector<std::string> arguments{"python3", CACHALOT_S3_SERVER, "{port}"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Result<TestServer> server = TestServer::start(arguments, folder_);
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
  static std::unique_ptr<Backend> opened(const std::string& text) {
    Result<std::unique_ptr<Backend>> backend = open_backend(text, kSecrets);
    EXPECT_TRUE(backend) << backend.error().message;
    return backend ? *std::move(backend) : nullptr;
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

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
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
  const Status put = put_one(store_->backend(), begin_ns + 2'500'000'000);
  ASSERT_FALSE(put);
  const Code code = put.error().code;
  // Where the last try began just before the deadline, its answer is not waited for.
  EXPECT_TRUE(code == Code::kBusy || code == Code::kTimeout) << put.error().message;
  EXPECT_LT(base::SteadyClock::read() - begin_ns, 10'000'000'000u);
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

// --- Keys ------------------------------------------------------------------------------------------

class S3KeysTest : public S3Field {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/new") << text;
    std::filesystem::rename(folder_ + "/new", folder_ + "/" + name);
  }
  // The service takes these keys only.
  void accept(const std::string& access) {
    rules(R"([{"unless": "Credential=)" + access + R"(/", "path": "kv-bucket", "status": 400,
               "code": "ExpiredToken"}])");
  }
  static std::string ini(const std::string& access) {
    return "[default]\naws_access_key_id = " + access +
           "\naws_secret_access_key = x\n# a comment\n[other]\naws_access_key_id=OTHER\n"
           "aws_secret_access_key=y\naws_session_token = t=\n";
  }
};

TEST_F(S3KeysTest, AProfileOfAFileIsUsedAndReadAgainWhenItChanges) {
  const BackendSecrets secrets{.s3_profile_file = folder_ + "/credentials"};
  EXPECT_NE(refusal("", secrets).find("credentials"), std::string::npos);
  write("credentials", ini("FIRST"));
  accept("FIRST");
  open_store("", secrets);
  Chain chain(1, 4, 4096);
  EXPECT_EQ(put(chain), 4u);
  write("credentials", ini("SECOND"));
  accept("SECOND");
  EXPECT_EQ(get(chain), 4u);
  write("credentials", "[default]\n");  // while it is being written
  EXPECT_EQ(get(chain), 4u);
  EXPECT_EQ(store_->counts().failed_gets, 0u);
  accept("OTHER");
  write("credentials", ini("SECOND"));
  EXPECT_TRUE(open_backend(text("&profile=other"), secrets));
  BackendSecrets named = secrets;
  named.s3_profile = "other";
  EXPECT_TRUE(open_backend(text(), named));
  EXPECT_NE(refusal("&profile=none", secrets).find("\"none\" is not in it"), std::string::npos);
}

TEST_F(S3KeysTest, AWebTokenGivesKeysThatAreRenewedBeforeTheyEnd) {
  write("token", "a.web/token\n");
  const auto answer = [&](const std::string& access, int seconds) {
    const std::time_t end = std::time(nullptr) + seconds;
    char time[40];
    std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&end));
    rules(R"([{"path": "WebIdentityToken=a.web%2Ftoken", "status": 200, "code": "none", "xml":
              "<AccessKeyId>)" +
          access +
          "</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>" +
          "<Expiration>" + time + R"(</Expiration>"},
             {"unless": "Credential=)" +
          access + R"(/", "path": "kv-bucket", "status": 400, "code": "ExpiredToken"}])");
  };
  const std::string service = "http://127.0.0.1:" + std::to_string(server_->port());
  const BackendSecrets secrets{.s3_web_token_file = folder_ + "/token",
                               .s3_role_arn = "arn:aws:iam::1:role/kv",
                               .s3_sts_endpoint = service};
  answer("FIRST", 100);  // less than five minutes: they are renewed with the next call
  open_store("", secrets);
  Chain chain(1, 4, 4096);
  EXPECT_EQ(put(chain), 4u);
  answer("SECOND", 3600);
  EXPECT_EQ(get(chain), 4u);
  EXPECT_EQ(store_->counts().failed_gets, 0u);
  rules(R"([{"path": "WebIdentityToken", "status": 403, "code": "AccessDenied"}])");
  EXPECT_NE(refusal("", secrets).find("the token service: HTTP 403, AccessDenied"),
            std::string::npos);
}

TEST_F(S3KeysTest, AnInstanceGivesKeys) {
  rules(R"([{"verb": "PUT", "path": "/latest/api/token", "status": 200, "body": "a-token"},
            {"path": "/security-credentials/kv-role", "status": 200, "body":
             "{\"Code\": \"Success\", \"AccessKeyId\": \"OFMACHINE\", \"SecretAccessKey\": \"s\", \"Token\": \"t\", \"Expiration\": \"2099-01-01T00:00:00Z\"}"},
            {"path": "/security-credentials/", "status": 200, "body": "kv-role\n"},
            {"unless": "Credential=OFMACHINE/", "status": 400, "code": "ExpiredToken"}])");
  const BackendSecrets secrets{.s3_metadata_endpoint =
                                   "http://127.0.0.1:" + std::to_string(server_->port())};
  open_store("&instance_keys=1", secrets);
  EXPECT_EQ(put(Chain(1, 4, 4096)), 4u);
  EXPECT_NE(refusal("", secrets).find("instance_keys"), std::string::npos);
}

// --- Places ----------------------------------------------------------------------------------------

TEST_F(S3Field, ABucketStandsInThePathOrInTheHostsName) {
  const std::string port = std::to_string(server_->port());
  const std::string host = "s3://kv-bucket?endpoint=http://localhost:" + port + "&style=host";
  // A path has the bucket, a name has not.
  rules(R"([{"unless": "kv-bucket.localhost", "status": 403}])");
  const Result<std::unique_ptr<Backend>> by_name = open_backend(host, kSecrets);
  ASSERT_TRUE(by_name) << by_name.error().message;
  EXPECT_TRUE(put_one(**by_name, soon()));
  rules("[]");
  EXPECT_TRUE(get_one(*opened(text("&style=path")), soon()));
  EXPECT_NE(refusal("&style=virtual").find("expected path or host"), std::string::npos);
}

TEST_F(S3Field, APrivateAuthorityIsTrusted) {
  const Certificates certificates(folder_);
  certificates.sign("server", "IP:127.0.0.1");
  server_.reset();
  start({certificates.cert("server"), certificates.key("server")});
  const std::string text =
      "s3://kv-bucket?endpoint=https://127.0.0.1:" + std::to_string(server_->port());
  const std::unique_ptr<Backend> trusted = opened(text + "&ca=" + certificates.ca());
  EXPECT_TRUE(put_one(*trusted, soon()));
  EXPECT_TRUE(get_one(*trusted, soon()));
  const Result<std::unique_ptr<Backend>> other = open_backend(text, kSecrets);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kPermission);
  EXPECT_NE(std::string(other.error().message).find("certificate"), std::string::npos)
      << other.error().message;
  EXPECT_NE(refusal("&ca=/none/there").find("/none/there"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::storage
