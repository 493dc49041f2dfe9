// Two links between two hosts: both carry a transfer, each as much as it can, and it completes over one if the other one
// drops everything.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "fault_peer.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kRequestBytes = std::uint64_t{kLayers} * kParts * kMostPages * kPageBytes;

bool has_ended(const Reply& r) {
  return r.state != HandoverState::kRunning;
}

// A prefill rank at both links, a decode rank that knows both addresses. Parameter: a link.
struct TwoLinks : ::testing::TestWithParam<int> {
  std::optional<NetnsLink> link;
  std::optional<FaultPeer> p, d;

  // Skips the test if there can be no links here.
  void start(std::uint64_t peer_timeout_ns, std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--links", "2"});
    Result<NetnsLink> started = NetnsLink::start(CACHALOT_NETNS_LINK, flags);
    if (!started && started.error().code == Code::kUnsupported)
      GTEST_SKIP() << started.error().message;
    ASSERT_TRUE(started) << started.error().message;
    link.emplace(*std::move(started));
    std::vector<std::string> addresses;
    for (int i = 0; i < 2; ++i) addresses.push_back("tcp:" + NetnsLink::address('a', i) + ":7001");
    Result<FaultPeer> prefill = FaultPeer::make(), decode = FaultPeer::make();
    ASSERT_TRUE(prefill && decode);
    p.emplace(*std::move(prefill));
    d.emplace(*std::move(decode));
    PeerOptions options{
        .side = 'a', .listen = addresses, .prefill = {}, .peer_timeout_ns = peer_timeout_ns};
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
    // Both paths are there before what a test asks for: the first one that answers is enough for it to begin.
    ASSERT_EQ(wait_for(request(1), has_ended).state, HandoverState::kDone);
  }

  std::uint64_t request(std::uint64_t id) {
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
  }
  template <class F>
  Reply wait_for(std::uint64_t ask, F&& is_enough) {
    const std::uint64_t end_ns = base::SteadyClock::read() + 90 * kSecond;
    for (;;) {
      Command c;
      c.ask = ask;
      const Reply reply = *d->call(c);
      if (is_enough(reply) || base::SteadyClock::read() > end_ns) return reply;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void expect_pages() {
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
  // Bytes that a link has carried from the prefill rank.
  std::uint64_t carried(int number) {
    const std::string stats = *link->call("stats way=ab link=" + std::to_string(number));
    const std::string name = "\"bytes\": ";
    return std::stoull(stats.substr(stats.find(name) + name.size()));
  }
};

TEST_P(TwoLinks, ATransferCompletesThoughOneIsCut) {
  ASSERT_NO_FATAL_FAILURE(start(kSecond / 2));
  if (IsSkipped()) return;
  ASSERT_TRUE(link->send("rate 4000000"));
  const std::uint64_t ask = request(2);
  const Reply begun = wait_for(ask, [](const Reply& r) { return r.bytes > 0; });
  ASSERT_EQ(begun.state, HandoverState::kRunning);
  ASSERT_TRUE(link->send("cut link=" + std::to_string(GetParam())));
  const Reply done = wait_for(ask, has_ended);
  EXPECT_EQ(done.state, HandoverState::kDone) << done.error.message;
  expect_pages();
}

// Nothing says which link is the fast one.
TEST_P(TwoLinks, EachCarriesWhatItCan) {
  // Packets of the MTU: a slow link that drops 64 KiB at once is no path for TCP.
  ASSERT_NO_FATAL_FAILURE(start(20 * kSecond, {"--no-offload"}));
  if (IsSkipped()) return;
  constexpr std::uint64_t kRequests = 6, kSlow = 1'000'000;
  const int fast = GetParam(), slow = 1 - fast;
  ASSERT_TRUE(link->send("rate " + std::to_string(kSlow) + " link=" + std::to_string(slow)));
  ASSERT_TRUE(link->send("rate " + std::to_string(3 * kSlow) + " link=" + std::to_string(fast)));
  const std::array<std::uint64_t, 2> before = {carried(0), carried(1)};
  const std::uint64_t start_ns = base::SteadyClock::read();
  std::array<std::uint64_t, kRequests> asks;
  for (std::uint64_t i = 0; i < kRequests; ++i) asks[i] = request(2 + i);
  for (const std::uint64_t ask : asks) {
    const Reply done = wait_for(ask, has_ended);
    ASSERT_EQ(done.state, HandoverState::kDone) << done.error.message;
  }
  const double seconds = static_cast<double>(base::SteadyClock::read() - start_ns) * 1e-9;
  expect_pages();
  const auto of_fast = static_cast<double>(carried(fast) - before[static_cast<std::size_t>(fast)]);
  const auto of_slow = static_cast<double>(carried(slow) - before[static_cast<std::size_t>(slow)]);
  std::printf("of links of 1 and 3: the fast one carried %.3f of the bytes; %.2f of both rates\n",
              of_fast / (of_fast + of_slow), kRequests * kRequestBytes / seconds / (4 * kSlow));
  // Halves would be 0.5, one link alone 1.
  EXPECT_GT(of_fast / (of_fast + of_slow), 0.55);
  EXPECT_LT(of_fast / (of_fast + of_slow), 0.95);
}

INSTANTIATE_TEST_SUITE_P(Each, TwoLinks, ::testing::Values(0, 1));

}  // namespace
}  // namespace cachalot::transfer
