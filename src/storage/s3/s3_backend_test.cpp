#include "storage/s3/s3_backend.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "storage/backends.h"
#include "storage/s3/listing.h"
#include "storage/value.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"
#include "testing/storage/proxy.h"
#include "testing/storage/server.h"

namespace cachalot::storage {
namespace {

constexpr const char* kNoMoto = "moto is not installed (pip install 'moto[server]')";
const BackendSecrets kSecrets{.s3_access_key = "testing", .s3_secret_key = "testing"};

bool python_has(const std::string& module) {
  const std::string command = "python3 -c 'import " + module + "' 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

// A moto server in a folder that goes with it, with the bucket "kv-bucket".
class Moto {
 public:
  static bool is_installed() {
    static const bool is = python_has("moto.server");
    return is;
  }
  Moto() {
    Result<TestServer> server = TestServer::start(
        {"python3", "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"}, folder_);
    if (!server) throw std::runtime_error(server.error().message);
    server_ = std::make_unique<TestServer>(*std::move(server));
    make_bucket();
  }
  void make_bucket() {
    S3Client client(options());
    S3Request bucket{.verb = S3Request::Verb::kPut};
    client.run({&bucket, 1}, soon() + 100'000'000'000);  // it loads much with its first request
    EXPECT_TRUE(bucket.is_success()) << bucket.code << bucket.answer;
  }
  S3Options options() const {
    S3Options options;
    options.bucket = "kv-bucket";
    options.endpoint = "http://127.0.0.1:" + std::to_string(server_->port());
    options.access_key = options.secret_key = "testing";
    return options;
  }
  TestServer& server() { return *server_; }

 private:
  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<TestServer> server_;
};

Moto& shared() {
  static Moto moto;
  return moto;
}
std::string text(std::uint16_t port, const std::string& prefix) {
  return "s3://kv-bucket/" + prefix + "?endpoint=http://127.0.0.1:" + std::to_string(port);
}

Result<std::unique_ptr<Backend>> open_shared(const std::string& folder) {
  if (!Moto::is_installed()) return Error::make(Code::kUnsupported, "%s", kNoMoto);
  return open_backend(text(shared().server().port(), std::filesystem::path(folder).filename()),
                      kSecrets);
}

INSTANTIATE_TEST_SUITE_P(S3, BackendConformance,
                         ::testing::Values(BackendUnderTest{"s3", open_shared, false, 1u << 20}),
                         name_of_backend);

class S3Rig final : public FaultRig {
 public:
  S3Rig() : proxy_(moto_.server().port()) {}
  static std::unique_ptr<FaultRig> make(const std::string&) {
    return Moto::is_installed() ? std::make_unique<S3Rig>() : nullptr;
  }
  Result<std::unique_ptr<Backend>> open() override {
    return open_backend(text(proxy_.port(), "kv"), kSecrets);
  }
  void begin(Fault fault) override {
    if (fault == Fault::kKilled) moto_.server().kill();
    if (fault == Fault::kPaused) moto_.server().stop();
    if (fault == Fault::kReset) proxy_.set(TestProxy::Mode::kReset);
    if (fault == Fault::kFull) proxy_.set(TestProxy::Mode::kFull);
  }
  void end(Fault fault) override {
    if (fault == Fault::kKilled) restart();
    if (fault == Fault::kPaused) moto_.server().resume();
    if (fault == Fault::kReset || fault == Fault::kFull) proxy_.set(TestProxy::Mode::kPass);
  }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    std::string value = read(chain.key(i));
    ASSERT_EQ(value.size(), value_bytes(chain.head(i)));
    if (fault == Fault::kBitFlipped) value[9000] ^= 1;
    if (fault == Fault::kTruncated) value.resize(9000);
    if (fault == Fault::kSwapped) value = read(other.key(0));
    S3Client client(moto_.options());
    S3Request put{.verb = S3Request::Verb::kPut, .name = name(chain.key(i)), .start = value};
    client.run({&put, 1}, soon());
    EXPECT_TRUE(put.is_success());
  }
  bool is_durable() const override { return false; }

 private:
  static std::string name(const ObjectKey& key) { return "kv/objects/" + to_text(key); }
  std::string read(const ObjectKey& key) {
    S3Client client(moto_.options());
    std::string value;
    S3Request get{.name = name(key)};
    get.take = [&](Bytes bytes) {
      value.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return true;
    };
    client.run({&get, 1}, soon());
    return value;
  }
  void restart() {
    EXPECT_TRUE(moto_.server().restart());
    moto_.make_bucket();
  }

  Moto moto_;
  TestProxy proxy_;
};

INSTANTIATE_TEST_SUITE_P(S3, StorageOutage,
                         ::testing::Values(RigUnderTest{"s3", S3Rig::make, Fault::kKilled},
                                           RigUnderTest{"s3", S3Rig::make, Fault::kPaused},
                                           RigUnderTest{"s3", S3Rig::make, Fault::kReset}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(S3, StorageFull,
                         ::testing::Values(RigUnderTest{"s3", S3Rig::make, Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(S3, StorageDamage,
                         ::testing::Values(RigUnderTest{"s3", S3Rig::make, Fault::kBitFlipped},
                                           RigUnderTest{"s3", S3Rig::make, Fault::kTruncated},
                                           RigUnderTest{"s3", S3Rig::make, Fault::kSwapped}),
                         name_of_rig);

// --- Signatures ------------------------------------------------------------------------------------

// Names, queries and headers as the backend has them, and stranger ones.
TEST(S3SignatureTest, AHundredRandomRequestsAreSignedAsByBotocore) {
  if (!python_has("botocore.auth")) GTEST_SKIP() << "botocore is not installed";
  const Result<TestServer> server =
      TestServer::start({"python3", CACHALOT_SIGNATURE_SERVER, "{port}"}, "/var/tmp");
  ASSERT_TRUE(server) << server.error().message;
  S3Options options;
  options.endpoint = "http://127.0.0.1:" + std::to_string(server->port());
  options.region = "eu-west-7";
  options.access_key = "AKIDEXAMPLE";
  options.secret_key = "wJalr/EXAMPLE+KEY";
  base::Rng random(7);
  const auto word = [&](std::size_t most) {
    constexpr std::string_view kCharacters = "abcXYZ019-._~ +&=%$:@,;'()!*[]\"<>^`|{}\\\xc3\xa4";
    std::string made;
    for (std::size_t i = 0; i <= random.below(most); ++i)
      made += kCharacters[random.below(kCharacters.size() - 2)];
    return made + (random.chance(0.2) ? "\xc3\xa4" : "");
  };
  for (int round = 0; round < 100; ++round) {
    options.bucket = "bucket" + std::to_string(random.below(9));
    options.session_token = random.chance(0.3) ? "token/+=" + std::to_string(round) : "";
    S3Client client(options);
    S3Request request;
    request.verb = static_cast<S3Request::Verb>(random.below(4));
    for (std::size_t i = 0; i < random.below(4); ++i) request.name += (i ? "/" : "") + word(20);
    if (random.chance(0.5)) {
      if (random.chance(0.5))
        request.query = "continuation-token=" + encode_percent(word(40), false) + "&";
      request.query += "list-type=2&max-keys=1000&prefix=" + encode_percent(word(20), false);
    }
    if (random.chance(0.3)) request.headers.push_back("Range: bytes=0-111");
    if (random.chance(0.3)) request.headers.push_back("If-None-Match: *");
    const std::string body = word(300);
    if (request.verb == S3Request::Verb::kPut) request.start = body;
    client.run({&request, 1}, soon());
    EXPECT_TRUE(request.is_success())
        << "round " << round << ": " << request.code << " " << request.name << "?" << request.query
        << "\n"
        << request.answer << (request.status ? "" : request.status.error().message);
  }
}

// --- The rest --------------------------------------------------------------------------------------

TEST(S3Test, ItsTextAndItsKeysAreChecked) {
  const auto refusal = [](const std::string& uri, const BackendSecrets& secrets = kSecrets) {
    const Result<std::unique_ptr<Backend>> opened = open_backend(uri, secrets);
    EXPECT_FALSE(opened) << uri;
    return opened ? "" : std::string(opened.error().message);
  };
  EXPECT_NE(refusal("s3:bucket").find("expected s3://BUCKET"), std::string::npos);
  EXPECT_NE(refusal("s3://B").find("bucket \"B\""), std::string::npos);
  EXPECT_NE(refusal("s3://kv-bucket?endpoint=ftp://x").find("endpoint \"ftp://x\""),
            std::string::npos);
  EXPECT_NE(refusal("s3://kv-bucket?regoin=x").find("known: endpoint region"), std::string::npos);
  EXPECT_NE(refusal("s3://kv-bucket", {}).find("AWS_ACCESS_KEY_ID"), std::string::npos);
}

TEST(S3Test, AListThatIsNoneIsAnError) {
  EXPECT_FALSE(S3Listing::parse("<html>busy</html>"));
  EXPECT_FALSE(S3Listing::parse("<ListBucketResult><Contents></Contents></ListBucketResult>"));
  EXPECT_FALSE(
      S3Listing::parse("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"));
  EXPECT_FALSE(S3Listing::parse("<ListBucketResult><Contents><Key>a</Key>"));
  std::string nested = "<ListBucketResult>";
  for (int i = 0; i < 100'000; ++i) nested += "<Contents>";
  EXPECT_TRUE(S3Listing::parse(nested + "</ListBucketResult>")->names.empty());
  EXPECT_FALSE(S3Listing::parse(nested + "</Contents></ListBucketResult>"));
  const Result<S3Listing> listing = S3Listing::parse(
      "<ListBucketResult><Contents><Key>a&amp;&#x41;</Key><Size>1</Size></"
      "Contents><IsTruncated>true"
      "</IsTruncated><NextContinuationToken>t&lt;</NextContinuationToken></ListBucketResult>");
  ASSERT_TRUE(listing);
  EXPECT_EQ(listing->names, std::vector<std::string>{"a&A"});
  EXPECT_EQ(listing->next, "t<");
}

TEST(S3Test, ABucketThatIsNotThereAtTheStartIsRefusedButNotAServiceThatIsDown) {
  if (!Moto::is_installed()) GTEST_SKIP() << kNoMoto;
  const Result<std::unique_ptr<Backend>> absent =
      open_backend("s3://no-such-bucket?endpoint=" + shared().options().endpoint, kSecrets);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Code::kIo);
  EXPECT_NE(std::string(absent.error().message).find("no-such-bucket: there is no such bucket"),
            std::string::npos);
  EXPECT_TRUE(open_backend(
      "s3://no-such-bucket?endpoint=http://127.0.0.1:" + std::to_string(free_port()), kSecrets));
}

TEST(S3Test, ABucketThatIsNotThereIsAnErrorAndNoMiss) {
  if (!Moto::is_installed()) GTEST_SKIP() << kNoMoto;
  S3Options options = shared().options();
  options.bucket = "no-such-bucket";
  const std::unique_ptr<Backend> backend = make_s3_backend(options, "");
  Chain chain(1, 1, 64);
  std::vector<Room> room = chain.room(0);
  Get get{chain.key(0), room};
  ASSERT_TRUE(backend->get({&get, 1}, soon()));
  ASSERT_FALSE(get.status);
  EXPECT_EQ(get.status.error().code, Code::kIo) << get.status.error().message;
}

// 130 objects on three pages of names; 65 batches of heads, which become one.
TEST(S3Test, TheListReadsFewObjectsAndWritesTheirHeadsTogether) {
  if (!Moto::is_installed()) GTEST_SKIP() << kNoMoto;
  S3Options options = shared().options();
  options.names_per_page = 50;
  const std::unique_ptr<Backend> backend = make_s3_backend(options, "many");
  for (std::uint64_t name = 1; name <= 65; ++name)
    ASSERT_EQ(put_all(*backend, Chain(name, 2, 64)), 2u);
  const auto count_below = [&](const std::string& prefix) {
    S3Client client(options);
    S3Request page{.query = "list-type=2&max-keys=1000&prefix=" + encode_percent(prefix, false)};
    std::string xml;
    page.take = [&](Bytes bytes) {
      xml.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return true;
    };
    client.run({&page, 1}, soon());
    return S3Listing::parse(xml)->names;
  };
  EXPECT_EQ(count_below("many/heads/").size(), 65u);
  const auto listed = [&] {
    std::size_t heads = 0;
    EXPECT_TRUE(backend->list([&](const ObjectHead&) { return ++heads != 0; }, soon()));
    return heads;
  };
  EXPECT_EQ(listed(), 65u * 2);
  const std::vector<std::string> together = count_below("many/heads/");
  EXPECT_EQ(together.size(), 1u);
  // Without them the objects themselves are read.
  S3Client client(options);
  S3Request removal{.verb = S3Request::Verb::kDelete, .name = together[0]};
  client.run({&removal, 1}, soon());
  ASSERT_TRUE(removal.is_success());
  EXPECT_EQ(listed(), 65u * 2);
}

}  // namespace
}  // namespace cachalot::storage
