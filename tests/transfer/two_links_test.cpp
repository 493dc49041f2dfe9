// Two links between two hosts: one of them drops everything in mid-transfer, and the transfer completes over the other.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "fault_peer.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

class TwoLinks : public ::testing::TestWithParam<int> {};

TEST_P(TwoLinks, ATransferCompletesThoughOneIsCut) {
  Result<NetnsLink> link = NetnsLink::start(CACHALOT_NETNS_LINK, {"--links", "2"});
  if (!link && link.error().code == Code::kUnsupported) GTEST_SKIP() << link.error().message;
  ASSERT_TRUE(link) << link.error().message;
  std::vector<std::string> addresses;
  for (int i = 0; i < 2; ++i) addresses.push_back("tcp:" + NetnsLink::address('a', i) + ":7001");
  Result<FaultPeer> p = FaultPeer::make(), d = FaultPeer::make();
  ASSERT_TRUE(p && d);
  PeerOptions options{
      .side = 'a', .listen = addresses, .prefill = {}, .peer_timeout_ns = kSecond / 2};
  ASSERT_TRUE(p->start(*link, options));
  options.side = 'b';
  options.listen.clear();
  options.prefill = {addresses};
  ASSERT_TRUE(d->start(*link, options));
  base::Rng rng(7);
  for (std::uint64_t i = 0; i < kCacheBytes; i += 8) {
    const std::uint64_t word = rng.next();
    std::memcpy(p->memory() + i, &word, 8);
  }
  // Both paths are there before the request: the first one that answers is enough for it to begin.
  const auto look = [&](std::uint64_t ask) {
    Command c;
    c.ask = ask;
    return *d->call(c);
  };
  const auto request = [&](std::uint64_t id) {
    Command c;
    c.op = Command::kOffer;
    c.id = {1, id};
    c.page_count = kMostPages;
    for (std::uint32_t i = 0; i < kMostPages; ++i) c.pages[i] = i;
    c.tokens = kMostPages * kPageTokens;
    c.deadline_ns = 60 * kSecond;
    c.layers = kLayers;
    EXPECT_TRUE(p->call(c)->is_ok);
    c.op = Command::kAsk;
    for (std::uint32_t i = 0; i < kMostPages; ++i) c.pages[i] = 2 * i + 1;
    const Reply asked = *d->call(c);
    EXPECT_TRUE(asked.is_ok) << asked.error.message;
    return asked.ask;
  };
  const auto wait_for = [&](std::uint64_t ask, auto is_enough) {
    const std::uint64_t end_ns = base::SteadyClock::read() + 90 * kSecond;
    for (;;) {
      const Reply reply = look(ask);
      if (is_enough(reply) || base::SteadyClock::read() > end_ns) return reply;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const auto has_ended = [](const Reply& r) { return r.state != HandoverState::kRunning; };
  ASSERT_EQ(wait_for(request(1), has_ended).state, HandoverState::kDone);
  ASSERT_TRUE(link->send("rate 4000000"));
  const std::uint64_t ask = request(2);
  const Reply begun = wait_for(ask, [](const Reply& r) { return r.bytes > 0; });
  ASSERT_EQ(begun.state, HandoverState::kRunning);
  ASSERT_TRUE(link->send("cut link=" + std::to_string(GetParam())));
  const Reply done = wait_for(ask, has_ended);
  EXPECT_EQ(done.state, HandoverState::kDone) << done.error.message;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t part = 0; part < kParts; ++part) {
      for (std::uint32_t i = 0; i < kMostPages; ++i) {
        EXPECT_EQ(std::memcmp(d->memory() + offset_of(layer, part, 2 * i + 1),
                              p->memory() + offset_of(layer, part, i), kPageBytes),
                  0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, TwoLinks, ::testing::Values(0, 1));

}  // namespace
}  // namespace cachalot::transfer
