// One time for all waits of a call, however many steps it takes.
#pragma once

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

  // A call, or a step of one: a call that makes others gives them its own time.
  class Scope {
   public:
    Scope(CallTime& time, base::Clock& clock, std::uint64_t timeout_ns)
        : time_(&time), is_outer_(!time.is_running_) {
      if (!is_outer_) return;
      time.is_running_ = true;
      time.is_extended_ = false;
      time.ends_ns_ = later(clock.now_ns(), timeout_ns);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (!is_outer_) return;
      time_->is_running_ = false;
      time_->ends_ns_ = kNever;
    }

   private:
    CallTime* time_;
    const bool is_outer_;
  };

  // Of the call that is being made; kNever: none is.
  std::uint64_t ends_ns() const { return ends_ns_; }
  // Once a call: it also waits for the next keeper.
  void extend(std::uint64_t by_ns) {
    if (!is_extended_) ends_ns_ = later(ends_ns_, by_ns);
    is_extended_ = true;
  }
  void end_by(std::uint64_t at_ns) { ends_ns_ = at_ns; }

 private:
  bool is_running_ = false, is_extended_ = false;
  std::uint64_t ends_ns_ = kNever;
};

}  // namespace cachalot::pool
