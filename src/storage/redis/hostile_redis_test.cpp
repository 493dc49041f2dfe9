// What a Redis may not answer: more than was asked for, and what is no reply. Each call ends at once and says so, and
// one that is never answered in full ends at its deadline.
#include <gtest/gtest.h>

#include "storage/redis/redis_backend.h"
#include "testing/storage/chains.h"
#include "testing/storage/hostile_server.h"
#include "testing/storage/one_object.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

std::unique_ptr<RedisBackend> backend_at(std::uint16_t port, bool is_cluster = false) {
  RedisOptions options;
  options.address.host = "127.0.0.1";
  options.address.port = port;
  options.is_cluster = is_cluster;
  return std::make_unique<RedisBackend>(options, "kv");
}

using Call = Status (*)(Backend& backend, std::uint64_t deadline_ns);
constexpr std::pair<const char*, Call> kCalls[] = {
    {"exists", exists_one}, {"get", get_one}, {"put", put_one}, {"list", list_all}};

struct Hostile {
  const char* name;
  HostileAnswer answer;
};

std::vector<Hostile> hostile_answers() {
  const std::string lot(64 << 10, 'x');
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += "*1\r\n";
  return {{"an array of 10^9", {"*1000000000\r\n", lot}},
          {"an array of 10^9 after a good start", {"*2\r\n$1\r\n0\r\n*1000000000\r\n", lot}},
          {"an array of 2^31", {"*2147483648\r\n", lot}},
          {"arrays in arrays", {"*1\r\n", nested}},
          {"many small arrays", {"*2\r\n$1\r\n0\r\n*60000\r\n", "*60000\r\n"}},
          {"a string of 2 GB", {"$2000000000\r\n", lot}},
          {"a string of 2^63", {"$9223372036854775807\r\n", lot}},
          {"a line without an end", {"+", lot}},
          {"an error without an end", {"-ERR ", lot}},
          {"a length without an end", {"$1", std::string(64 << 10, '0')}},
          {"replies without an end", {"", ":1\r\n:1\r\n:1\r\n:1\r\n"}},
          {"a negative length", {"$-2\r\n"}},
          {"a length that is none", {"$1x\r\n"}},
          {"a line end that is none", {"$1\nx\r\n"}},
          {"another protocol", {"HTTP/1.1 400 Bad Request\r\n\r\n", lot}},
          {"a map", {"%1\r\n+a\r\n+b\r\n"}},
          {"zeroes", {std::string(100, '\0'), std::string(64 << 10, '\0')}}};
}

TEST(HostileRedis, WhatIsMoreThanWasAskedForEndsTheCallAtOnce) {
  const std::uint64_t before_kib = resident_kib();
  for (const Hostile& hostile : hostile_answers()) {
    const HostileServer server(hostile.answer);
    const std::unique_ptr<RedisBackend> backend = backend_at(server.port());
    for (const auto& [name, call] : kCalls) {
      SCOPED_TRACE(std::string(hostile.name) + ", " + name);
      const std::uint64_t begin_ns = base::SteadyClock::read();
      const Status status = call(*backend, soon());
      EXPECT_LT(base::SteadyClock::read() - begin_ns, kAtOnceNs);
      // A reply that is complete is one of another type, and what follows it is a reply to nothing.
      if (std::string_view(hostile.name) == "replies without an end" && name[0] == 'e') continue;
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Code::kIo) << status.error().message;
    }
  }
  EXPECT_LT(resident_kib() - before_kib, 256u << 10);
}

TEST(HostileRedis, AMapOfSlotsIsBoundedToo) {
  for (const char* const start : {"*1000000000\r\n", "*1\r\n*1000000000\r\n", "$2000000000\r\n"}) {
    const HostileServer server({start, std::string(64 << 10, 'x')});
    const std::uint64_t begin_ns = base::SteadyClock::read();
    // A put that had no map to go by is not reported as stored.
    for (const auto& [name, call] : kCalls)
      EXPECT_FALSE(call(*backend_at(server.port(), true), soon())) << start << name;
    EXPECT_LT(base::SteadyClock::read() - begin_ns, kAtOnceNs) << start;
  }
}

// The deadline is of the whole reply, whether it comes byte after byte or as fast as the network is.
TEST(HostileRedis, AReplyThatNeverEndsEndsAtTheDeadline) {
  const HostileAnswer answers[] = {
      {"$4096\r\n", "x", std::chrono::milliseconds(20)},
      {"", "$", std::chrono::milliseconds(20)},
      {"*2\r\n$1\r\n1\r\n*1000\r\n", "$", std::chrono::milliseconds(20)},
      {},
  };
  for (const HostileAnswer& answer : answers) {
    const HostileServer server(answer);
    const std::unique_ptr<RedisBackend> backend = backend_at(server.port());
    const std::uint64_t begin_ns = base::SteadyClock::read();
    const Status status = list_all(*backend, begin_ns + kSecondNs);
    EXPECT_LT(base::SteadyClock::read() - begin_ns, kAtOnceNs) << answer.start;
    EXPECT_FALSE(status) << answer.start;
  }
}

TEST(ReplyScanTest, FindsTheEndWhereverThePiecesAreCut) {
  const std::string replies =
      "+OK\r\n$5\r\nhello\r\n$-1\r\n*-1\r\n*0\r\n:42\r\n*2\r\n$1\r\n0\r\n*2\r\n$3\r\na\r\n\r\n$"
      "0\r\n\r\n-ERR\r\n";
  constexpr std::size_t kReplies = 8;
  for (std::size_t piece = 1; piece <= replies.size(); ++piece) {
    std::vector<std::size_t> ends;
    ReplyScan scan({.elements = 4});
    for (std::size_t at = 0; at < replies.size();) {
      std::size_t taken = 0;
      const ReplyScan::Found found = scan.take(std::string_view(replies).substr(at, piece), taken);
      ASSERT_NE(found, ReplyScan::Found::kBeyond) << piece << " " << at;
      at += taken;
      if (found != ReplyScan::Found::kEnd) continue;
      ends.push_back(at);
      scan = ReplyScan({.elements = 4});
    }
    ASSERT_EQ(ends.size(), kReplies) << piece;
    EXPECT_EQ(ends[1], std::string("+OK\r\n$5\r\nhello\r\n").size());
    EXPECT_EQ(ends.back(), replies.size());
  }
}

TEST(ReplyScanTest, BoundsAreReachedAndNotPassed) {
  const auto found = [](std::string_view reply, const ReplyBounds& bounds) {
    std::size_t taken = 0;
    return ReplyScan(bounds).take(reply, taken);
  };
  EXPECT_EQ(found("*2\r\n:1\r\n:2\r\n", {.elements = 2}), ReplyScan::Found::kEnd);
  EXPECT_EQ(found("*2\r\n:1\r\n:2\r\n", {.elements = 1}), ReplyScan::Found::kBeyond);
  EXPECT_EQ(found("*1\r\n*1\r\n:2\r\n", {.elements = 1}), ReplyScan::Found::kBeyond);
  EXPECT_EQ(found("$3\r\nabc\r\n", {.bytes = 7}), ReplyScan::Found::kEnd);
  EXPECT_EQ(found("$3\r\n", {.bytes = 6}), ReplyScan::Found::kBeyond);
}

}  // namespace
}  // namespace cachalot::storage
