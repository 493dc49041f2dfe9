// Both ends of mailboxes for tests. A request says in its payload how it wants to be answered; both
// sides derive every other byte from its tag, and check what they get.
#pragma once

#include <cachalot/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/rng.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace cachalot::rpc {

inline constexpr std::uint32_t kTestEpoch = 7;
inline constexpr std::uint32_t kMostRingLines = 256;
inline constexpr std::size_t kTestMailboxLines = 2 * kMostRingLines;

inline memory::SealedRegion test_region(memory::Domain& domain, void* base) {
  return {domain, static_cast<std::byte*>(base), memory::LineSeal(11, 13)};
}

struct TestPlace {
  std::uint32_t client = 0;
  std::uint32_t incarnation = 1;
  std::uint32_t ring_lines = kMostRingLines;
  bool splits_lines = false;
  std::uint32_t epoch = kTestEpoch;

  std::uint64_t request_ring() const { return client * kTestMailboxLines * memory::kLineBytes; }
  std::uint64_t response_ring() const {
    return request_ring() + kMostRingLines * memory::kLineBytes;
  }
  ChannelPlace channel() const {
    return {request_ring(), response_ring(), ring_lines, incarnation, epoch, splits_lines};
  }
  MailboxPlace mailbox() const {
    return {request_ring(), response_ring(), ring_lines, incarnation, epoch, splits_lines};
  }
};

// What a request asks for. A plain answer is a status alone: those may share a line.
struct Ask {
  std::uint64_t tag = 0;
  std::uint32_t lines = 1;
  std::uint32_t answer_lines = 1;
  std::uint16_t status = 0;
  std::uint16_t is_plain = 1;
  std::uint32_t reserved = 0;
};
inline constexpr std::uint8_t kAskOp = 9;

// Tags carry the incarnation, so that a request or an answer of another one shows.
inline std::uint64_t tag_of(std::uint32_t incarnation, std::uint64_t number) {
  return (std::uint64_t{incarnation} << 32) | number;
}

// Byte i of line `line` of what a tag says.
inline unsigned char noise(std::uint64_t tag, std::uint32_t line, std::size_t i) {
  return static_cast<unsigned char>(base::mix64(tag * 64 + line + (i << 56)));
}
template <std::size_t N>
void fill_noise(unsigned char (&to)[N], std::uint64_t tag, std::uint32_t line, std::size_t from) {
  for (std::size_t i = from; i < N; ++i) to[i] = noise(tag, line, i);
}
inline bool is_noise(const unsigned char* at, std::size_t from, std::size_t to, std::uint64_t tag,
                     std::uint32_t line) {
  for (std::size_t i = from; i < to; ++i) {
    if (at[i] != noise(tag, line, i)) return false;
  }
  return true;
}
inline constexpr std::uint64_t kAnswerNoise = 1ull
                                              << 57;  // an answer's bytes are not its request's

// Answers what is asked for; the first thing that is wrong is its fault().
class TestServer final : private RequestHandler {
 public:
  TestServer(const memory::SealedRegion& region, std::uint32_t clients)
      : server_(region, clients), incarnations_(clients), taken_(clients) {}

  void open(const TestPlace& place, Doorbell doorbell = {}) {
    incarnations_[place.client] = place.incarnation;
    taken_[place.client] = 0;
    server_.open(place.client, place.mailbox(), doorbell);
  }
  std::uint32_t poll() { return server_.poll(*this); }
  Server& server() { return server_; }

  // Requests of this incarnation so far.
  std::uint64_t taken(std::uint32_t client) const { return taken_[client]; }
  const std::string& fault() const { return fault_; }

 private:
  void on_requests(std::uint32_t client, std::span<const Message> messages) override {
    std::size_t at = 0;
    while (at < messages.size()) {
      const Ask ask = check(client, messages[at]);
      std::uint32_t run = 1;  // of plain answers that are given in one call
      while (ask.is_plain != 0 && ask.tag % 3 == 0 && at + run < messages.size()) {
        const auto next = load_payload<Ask>(messages[at + run].head().payload);
        if (next.is_plain == 0 || next.status != ask.status) break;
        check(client, messages[at + run++]);
      }
      at += run;
      answer(client, ask, run);
    }
  }

  Ask check(std::uint32_t client, const Message& message) {
    const RequestHead head = message.head();
    auto ask = load_payload<Ask>(head.payload);
    bool good = ask.tag == tag_of(incarnations_[client], ++taken_[client]) && head.op == kAskOp &&
                head.lines == ask.lines && head.count == ask.lines - 1 &&
                head.epoch == kTestEpoch &&
                is_noise(head.payload, sizeof ask, kRequestPayloadBytes, ask.tag, 0);
    for (std::uint32_t i = 1; good && i < ask.lines; ++i) {
      good = is_noise(message.following(i - 1).payload, 0, kFollowingPayloadBytes, ask.tag, i);
    }
    if (good) return ask;
    if (fault_.empty()) {
      fault_ = "client " + std::to_string(client) + ": request " + std::to_string(taken_[client]) +
               " is wrong: tag " + std::to_string(ask.tag);
    }
    return {};
  }

  void answer(std::uint32_t client, const Ask& ask, std::uint32_t run) {
    if (ask.is_plain != 0) return server_.answer(client, ask.status, run);
    unsigned char payload[kResponsePayloadBytes];
    fill_noise(payload, ask.tag + kAnswerNoise, 0, 0);
    std::array<FollowingLine, kMaxMessageLines> following{};
    for (std::uint32_t i = 1; i < ask.answer_lines; ++i) {
      fill_noise(following[i - 1].payload, ask.tag + kAnswerNoise, i, 0);
    }
    server_.answer(client, ask.status, static_cast<std::uint16_t>(ask.answer_lines), payload,
                   {following.data(), ask.answer_lines - 1});
  }

  Server server_;
  std::vector<std::uint32_t> incarnations_;
  std::vector<std::uint64_t> taken_;
  std::string fault_;
};

// Sends requests and expects exactly their answers, in order.
class TestClient final : private AnswerSink {
 public:
  TestClient(const memory::SealedRegion& region, const TestPlace& place, Waiter& waiter,
             base::Clock& clock, Doorbell keeper_doorbell = {})
      : place_(place),
        clock_(&clock),
        channel_(region, place.channel(), waiter, clock, keeper_doorbell) {}

  bool can_send(const Ask& ask) const { return channel_.has_credit(ask.lines, ask.answer_lines); }

  // The tag is filled in here; the keeper sees it after the next poll or flush. Needs can_send().
  void stage(Ask ask) {
    ask.tag = tag_of(place_.incarnation, ++sent_);
    std::array<unsigned char, kRequestPayloadBytes> head;
    std::memcpy(head.data(), &ask, sizeof ask);
    for (std::size_t i = sizeof ask; i < head.size(); ++i) head[i] = noise(ask.tag, 0, i);
    std::array<FollowingLine, kMaxMessageLines> following{};
    for (std::uint32_t i = 1; i < ask.lines; ++i) {
      fill_noise(following[i - 1].payload, ask.tag, i, 0);
    }
    expected_.push_back(ask);
    channel_.post({kAskOp, static_cast<std::uint16_t>(ask.lines - 1), ask.answer_lines, ask.tag},
                  request_payload(head), {following.data(), ask.lines - 1});
  }
  void send(const Ask& ask) {
    stage(ask);
    channel_.flush();
  }

  std::uint32_t poll() { return channel_.poll(*this); }
  // Until at most `outstanding` requests are without answer.
  Status wait(std::uint32_t outstanding, std::uint64_t timeout_ns) {
    const std::uint64_t until_ns =
        timeout_ns == Channel::kNever ? timeout_ns : clock_->now_ns() + timeout_ns;
    return channel_.wait_until(
        *this, [=] { return until_ns; }, [&] { return channel_.outstanding() <= outstanding; },
        [] { return false; });
  }

  Channel& channel() { return channel_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t answered() const { return answered_; }
  const std::string& fault() const { return fault_; }

 private:
  void on_answer(const Answer& answer) override {
    const Ask ask = expected_.empty() ? Ask{} : expected_.front();
    if (!expected_.empty()) expected_.pop_front();
    ++answered_;
    if (answer.tag == ask.tag && answer.op == kAskOp && answer.status == ask.status &&
        (ask.is_plain != 0 ? answer.payload.empty() : has_payload(ask, answer))) {
      return;
    }
    if (fault_.empty()) {
      fault_ = "answer " + std::to_string(answered_) + " is wrong: tag " +
               std::to_string(answer.tag) + ", expected " + std::to_string(ask.tag);
    }
  }

  static bool has_payload(const Ask& ask, const Answer& answer) {
    const std::size_t bytes =
        kResponsePayloadBytes + (ask.answer_lines - 1) * kFollowingPayloadBytes;
    if (answer.count != ask.answer_lines || answer.payload.size() != bytes) return false;
    const unsigned char* at = answer.payload.data();
    if (!is_noise(at, 0, kResponsePayloadBytes, ask.tag + kAnswerNoise, 0)) return false;
    at += kResponsePayloadBytes;
    for (std::uint32_t i = 1; i < ask.answer_lines; ++i, at += kFollowingPayloadBytes) {
      if (!is_noise(at, 0, kFollowingPayloadBytes, ask.tag + kAnswerNoise, i)) return false;
    }
    return true;
  }

  TestPlace place_;
  base::Clock* clock_;
  Channel channel_;
  std::deque<Ask> expected_;
  std::uint64_t sent_ = 0, answered_ = 0;
  std::string fault_;
};

// Mostly small requests with plain answers, like a client's; some long ones.
inline Ask random_ask(base::Rng& rng) {
  Ask ask;
  if (rng.chance(0.4)) ask.lines = static_cast<std::uint32_t>(1 + rng.below(8));
  if (rng.chance(0.05)) ask.lines = static_cast<std::uint32_t>(1 + rng.below(kMaxMessageLines));
  ask.is_plain = rng.chance(0.6) ? 1 : 0;
  if (rng.chance(0.1)) ask.status = static_cast<std::uint16_t>(Code::kNotFound);
  if (ask.is_plain == 0 && rng.chance(0.3)) {
    ask.answer_lines = static_cast<std::uint32_t>(1 + rng.below(rng.chance(0.1) ? 64 : 6));
  }
  return ask;
}

}  // namespace cachalot::rpc
