// The requests of a channel that are not answered yet, oldest first, and the lines that they and their
// answers use.
#pragma once

#include <array>
#include <cstdint>

#include "rpc/message.h"

namespace cachalot::rpc {

struct PendingRequest {
  std::uint64_t last_sequence = 0;  // the number of its last line in the request ring
  std::uint64_t tag = 0;
  std::uint32_t lines = 0;
  std::uint32_t answer_lines = 0;
  std::uint8_t op = 0;
};

class PendingRequests {
 public:
  // True if a request of this size fits, with rings of `ring_lines` lines.
  bool has_room(std::uint32_t lines, std::uint32_t answer_lines, std::uint32_t ring_lines) const {
    return count() < kMaxOutstanding && lines_ + lines <= ring_lines &&
           answer_lines_ + answer_lines <= ring_lines;
  }

  void push(const PendingRequest& request) {
    requests_[posted_++ % kMaxOutstanding] = request;
    lines_ += request.lines;
    answer_lines_ += request.answer_lines;
  }
  PendingRequest pop() {
    const PendingRequest request = requests_[answered_++ % kMaxOutstanding];
    lines_ -= request.lines;
    answer_lines_ -= request.answer_lines;
    return request;
  }

  // True if the answer's requests are pending, and the last of them is the one that it names.
  bool fits(const ResponseHead& answer) const {
    if (answer.answered == 0 || answer.answered > count()) return false;
    const PendingRequest& last = requests_[(answered_ + answer.answered - 1) % kMaxOutstanding];
    return static_cast<std::uint32_t>(last.last_sequence) == answer.request;
  }

  std::uint32_t count() const { return static_cast<std::uint32_t>(posted_ - answered_); }
  std::uint64_t answered() const { return answered_; }  // of all that were pushed

 private:
  std::uint64_t posted_ = 0, answered_ = 0;
  std::uint32_t lines_ = 0, answer_lines_ = 0;
  std::array<PendingRequest, kMaxOutstanding> requests_{};
};

}  // namespace cachalot::rpc
