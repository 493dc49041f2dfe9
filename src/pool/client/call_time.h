// One time for all waits of a call, however many steps it takes: the client's time-out, and the deadline
// that the caller has set.
//
// The time-out begins when the call first asks for its end, which is after a few microseconds of waiting: most calls
// are done by then, and reading the clock would be a tenth of what they take.
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace cachalot::pool {

class CallTime {
 public:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  static std::uint64_t later(std::uint64_t at_ns, std::uint64_t by_ns) {
    return by_ns > kNever - at_ns ? kNever : at_ns + by_ns;
  }

  // @param clock  outlives this
  CallTime(base::Clock& clock, std::uint64_t timeout_ns)
      : clock_(&clock), timeout_ns_(timeout_ns) {}

  // A call, or a step of one: a call that makes others gives them its own time.
  class Scope {
   public:
    explicit Scope(CallTime& time) : time_(&time), is_outer_(!time.is_running_) {
      if (!is_outer_) return;
      time.is_running_ = true;
      time.has_end_ = time.is_extended_ = false;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (!is_outer_) return;
      time_->is_running_ = false;
    }

   private:
    CallTime* time_;
    const bool is_outer_;
  };

  // Of the call that is being made; kNever: none is.
  std::uint64_t ends_ns() const {
    if (!is_running_) return kNever;
    if (!has_end_) {
      ends_ns_ = later(clock_->now_ns(), timeout_ns_);
      has_end_ = true;
    }
    return ends_ns_;
  }
  // Once a call: it also waits for the next keeper.
  void extend(std::uint64_t by_ns) {
    if (!is_extended_) end_by(later(ends_ns(), by_ns));
    is_extended_ = true;
  }
  void end_by(std::uint64_t at_ns) {
    ends_ns_ = at_ns;
    has_end_ = true;
  }

  // The caller's deadline, of all calls from here on.
  std::uint64_t deadline_ns() const { return deadline_ns_; }
  void set_deadline(std::uint64_t at_ns) { deadline_ns_ = at_ns; }

  // The end of every wait.
  std::uint64_t until_ns() const { return std::min(ends_ns(), deadline_ns_); }
  // Whether the time is up. Does not begin the time-out: a call that has not waited has the deadline only.
  bool is_over() const {
    const std::uint64_t until_ns =
        std::min(is_running_ && has_end_ ? ends_ns_ : kNever, deadline_ns_);
    return until_ns != kNever && clock_->now_ns() > until_ns;
  }

  // What a call returns whose time is up.
  Error no_answer() const {
    if (deadline_ns_ < ends_ns()) {
      return Error::make(Code::kTimeout, "the keeper did not answer in the time given");
    }
    return Error::make(Code::kTimeout, "the keeper did not answer within %llu ms",
                       static_cast<unsigned long long>(timeout_ns_ / 1'000'000));
  }
  // The same of an attachment, if the deadline has passed.
  static Error deadline_passed() {
    return Error::make(Code::kTimeout,
                       "the time given has passed while this client attached to the pool's keeper");
  }

 private:
  base::Clock* clock_;
  std::uint64_t timeout_ns_;
  bool is_running_ = false, is_extended_ = false;
  // The end of the running call; false until the call has asked for it.
  mutable bool has_end_ = false;
  mutable std::uint64_t ends_ns_ = kNever;
  std::uint64_t deadline_ns_ = kNever;
};

}  // namespace cachalot::pool
