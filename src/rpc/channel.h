// A client's end of its mailbox: posts requests, up to 128 at a time, and takes the answers in order.
//
// Invariants
//   1. At most kMaxOutstanding requests and kRingLines lines are unanswered, and their answers
//      together never exceed the response ring: nothing unread is overwritten on either side.
//   2. Every answer is matched to its request: answers come in the order of the requests, and each
//      says which request it is the last answer to. One that does not fit answers nothing.
//   3. An answer is taken only from the keeper and for the incarnation that the channel was opened
//      with: the seal of its lines covers both.
//
// @threads  one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "rpc/message.h"
#include "rpc/pending_requests.h"
#include "rpc/ring.h"
#include "rpc/waiter.h"

namespace cachalot::rpc {

// Salts of the two directions' seals.
inline std::uint64_t request_salt(std::uint32_t incarnation) {
  return incarnation;
}
inline std::uint64_t response_salt(std::uint32_t incarnation, std::uint32_t epoch) {
  return (std::uint64_t{epoch} << 32) | incarnation;
}

struct ChannelPlace {
  std::uint64_t request_ring = 0;  // offsets on device 0
  std::uint64_t response_ring = 0;
  std::uint32_t ring_lines = 0;
  std::uint32_t incarnation = 0;
  std::uint32_t epoch = 0;
  bool keeper_splits_lines = false;  // confirm each response by a second read (R5)
};

// What came back. `tag` is what the caller gave to post(); answers to requests of tag 0 are dropped.
struct Answer {
  std::uint64_t tag = 0;
  std::uint8_t op = 0;
  std::uint16_t status = 0;  // 0 or a Code
  std::uint16_t count = 0;
  // The head's payload, then those of following lines; empty for a plain yes or no.
  std::span<const unsigned char> payload;
};

// Receives answers while the channel is polled.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void on_answer(const Answer& answer) = 0;
};

class Channel {
 public:
  struct Request {
    std::uint8_t op = 0;
    std::uint16_t count = 0;
    std::uint32_t answer_lines = 1;  // the most lines the answer can have
    std::uint64_t tag = 0;
  };

  Channel() = default;
  Channel(const memory::SealedRegion& region, const ChannelPlace& place, Waiter& waiter,
          base::Clock& clock, Doorbell keeper_doorbell);

  // True if a request of this size can be posted now.
  bool has_credit(std::uint32_t lines, std::uint32_t answer_lines) const;

  // Posts one request: its head, of which only the payload is set (request_payload()), and following
  // lines. Needs has_credit(). Requests go out in batches: at the latest with the next poll() or
  // flush().
  void post(const Request& request, const memory::Line& head,
            std::span<const FollowingLine> following = {});
  void flush();
  // The same, with the head's payload given as at most 44 bytes.
  void post(const Request& request, std::span<const unsigned char> payload,
            std::span<const FollowingLine> following = {}) {
    CACHALOT_CHECK(payload.size() <= kRequestPayloadBytes);
    memory::Line head{};
    if (!payload.empty())
      std::memcpy(head.words + kRequestPayloadWord, payload.data(), payload.size());
    post(request, head, following);
  }

  // Takes all answers that have arrived; returns how many requests they answered.
  std::uint32_t poll(AnswerSink& sink);

  // Polls until `done()`; kTimeout once the clock has passed until_ns() and at most a nap more, kNoKeeper
  // once `gone()` says so. kNever: there is no such time. While it spins, gone() and the clock are asked now and
  // then; later every kLookNs, and once more when the time is up. An answer that comes before the first look costs no
  // call of until_ns(). gone() may poll, too.
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  template <class Until, class Done, class Gone>
  Status wait_until(AnswerSink& sink, Until&& until_ns, Done&& done, Gone&& gone);

  std::uint32_t outstanding() const { return pending_.count(); }
  std::uint64_t answered() const {
    return pending_.answered();
  }  // requests, since the channel was opened
  // Answers that did not fit their requests: a keeper that breaks the protocol.
  std::uint64_t malformed() const { return malformed_; }

 private:
  static constexpr std::uint32_t kPollLines = 64;
  static constexpr std::uint64_t kLookNs = 20'000'000;

  std::uint32_t take(const memory::Line* lines, std::uint32_t count, AnswerSink& sink);
  std::uint32_t deliver(const memory::Line* lines, AnswerSink& sink);

  RingWriter requests_;
  RingReader responses_;
  memory::Domain* domain_ = nullptr;
  Waiter* waiter_ = nullptr;
  base::Clock* clock_ = nullptr;
  Doorbell keeper_doorbell_;
  ChannelPlace place_;
  std::uint64_t malformed_ = 0;
  std::uint32_t window_ = 1;  // response lines to read in the next poll
  PendingRequests pending_;
};

template <class Until, class Done, class Gone>
Status Channel::wait_until(AnswerSink& sink, Until&& until_ns, Done&& done, Gone&& gone) {
  constexpr std::uint32_t kRoundsBetweenChecks = 256;
  std::uint32_t idle = 0, rounds = 0;
  std::uint64_t looked_ns = 0;
  const auto out_of_time = [] {
    return Error::make(Code::kTimeout, "the keeper did not answer in time");
  };
  while (!done()) {
    if (poll(sink) != 0) {
      idle = 0;
      // Answers that come one by one do not make the time longer.
      if (!done() && until_ns() != kNever && clock_->now_ns() > until_ns()) return out_of_time();
      continue;
    }
    keeper_doorbell_.ring_if_asleep();
    bool is_time_to_look = ++rounds % kRoundsBetweenChecks == 0;
    // Later rounds are naps: looking at the clock costs nothing beside one.
    if (is_time_to_look || idle >= kRoundsBetweenChecks) {
      const std::uint64_t now = clock_->now_ns();
      if (looked_ns == 0) looked_ns = now;
      is_time_to_look = is_time_to_look || now - looked_ns > kLookNs;
      const bool is_over = now > until_ns();
      if (is_time_to_look || is_over) {
        looked_ns = now;
        if (gone()) return Error::make(Code::kNoKeeper, "no keeper serves this client any more");
        if (done()) return {};
      }
      if (is_over) return out_of_time();
    }
    waiter_->wait(idle++);
  }
  return {};
}

}  // namespace cachalot::rpc
