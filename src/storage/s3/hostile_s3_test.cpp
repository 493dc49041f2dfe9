// What an S3 service may not answer: bodies, headers and lists without an end, or larger than what was asked for. Each
// call ends at once, or at its deadline.
#include <gtest/gtest.h>

#include "storage/s3/s3_backend.h"
#include "storage/value.h"
#include "testing/storage/chains.h"
#include "testing/storage/hostile_server.h"
#include "testing/storage/one_object.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

std::unique_ptr<Backend> backend_at(std::uint16_t port) {
  S3Options options;
  options.bucket = "kv-bucket";
  options.endpoint = "http://127.0.0.1:" + std::to_string(port);
  options.access_key = options.secret_key = "testing";
  return make_s3_backend(options, "kv");
}

std::string chunk(const std::string& bytes) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

const std::string kLot(64 << 10, 'x');
const std::string kOk = "HTTP/1.1 200 OK\r\n";

TEST(HostileS3, WhatIsMoreThanWasAskedForEndsTheCallAtOnce) {
  const std::pair<const char*, HostileAnswer> answers[] = {
      {"chunks", {kOk + "Transfer-Encoding: chunked\r\n\r\n", chunk(kLot)}},
      {"a body of 2^62", {kOk + "Content-Length: 4611686018427387904\r\n\r\n", kLot}},
      {"a body of no length", {kOk + "\r\n", kLot}},
      {"an error's body", {"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(kLot)}},
      {"headers", {kOk, "X-Header: " + std::string(2000, 'y') + "\r\n"}},
      {"a header", {kOk + "X-Header: ", kLot}},
      {"answers to come", {"", "HTTP/1.1 100 Continue\r\nX-A: bbbbbbbbbbbbbbbbbbbbbbbbb\r\n\r\n"}},
      {"a status line", {"HTTP/1.1 200 ", kLot}}};
  const std::uint64_t before_kib = resident_kib();
  for (const auto& [what, answer] : answers) {
    const HostileServer server(answer);
    const std::unique_ptr<Backend> backend = backend_at(server.port());
    const std::pair<const char*, Status (*)(Backend&, std::uint64_t)> calls[] = {
        {"get", get_one}, {"put", put_one}, {"list", list_all}};
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(std::string(what) + ", " + name);
      const std::uint64_t begin_ns = base::SteadyClock::read();
      const Status status = call(*backend, soon());
      EXPECT_LT(base::SteadyClock::read() - begin_ns, kAtOnceNs);
      EXPECT_FALSE(status);
    }
  }
  EXPECT_LT(resident_kib() - before_kib, 256u << 10);
}

TEST(HostileS3, AnObjectThatGoesOnAfterItsSizeIsDamagedAndReadNoFurther) {
  const Chain chain(1, 1, 4096);
  const ObjectHead head = chain.head(0);
  std::string value(reinterpret_cast<const char*>(&head), kHeadBytes);
  value.append(reinterpret_cast<const char*>(chain.data(0)), 4096);
  const HostileServer server(
      {kOk + "Transfer-Encoding: chunked\r\n\r\n" + chunk(value), chunk(kLot)});
  const std::uint64_t begin_ns = base::SteadyClock::read();
  const Status status = get_one(*backend_at(server.port()), soon());
  EXPECT_LT(base::SteadyClock::read() - begin_ns, kAtOnceNs);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kCorrupt) << status.error().message;
}

TEST(HostileS3, AListWithMoreNamesThanWereAskedForIsAnError) {
  std::string xml = "<ListBucketResult>";
  for (int i = 0; i < 1001; ++i) xml += "<Contents><Key>a</Key></Contents>";
  xml += "</ListBucketResult>";
  const HostileServer server(
      {kOk + "Content-Length: " + std::to_string(xml.size()) + "\r\n\r\n" + xml});
  const Status status = list_all(*backend_at(server.port()), soon());
  ASSERT_FALSE(status);
  EXPECT_NE(std::string(status.error().message).find("1001 names"), std::string::npos)
      << status.error().message;
}

// The deadline is of the whole answer.
TEST(HostileS3, AnAnswerThatComesByteAfterByteEndsAtTheDeadline) {
  const HostileServer server(
      {kOk + "Content-Length: 4208\r\n\r\nCchObj1", "x", std::chrono::milliseconds(20)});
  for (const auto call : {get_one, list_all}) {
    const std::uint64_t begin_ns = base::SteadyClock::read();
    const Status status = call(*backend_at(server.port()), begin_ns + kSecondNs);
    EXPECT_LT(base::SteadyClock::read() - begin_ns, kAtOnceNs);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kTimeout) << status.error().message;
  }
}

TEST(HostileS3, ATokenThatHasExpiredIsARefusal) {
  const std::string xml = "<Error><Code>ExpiredToken</Code></Error>";
  const HostileServer server({"HTTP/1.1 400 Bad Request\r\nContent-Length: " +
                              std::to_string(xml.size()) + "\r\n\r\n" + xml});
  const Status status = put_one(*backend_at(server.port()), soon());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kPermission) << status.error().message;
}

}  // namespace
}  // namespace cachalot::storage
