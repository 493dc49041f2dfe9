// Pinned reads in flight, as the client's pin line announces them: the keeper reuses nothing that could be
// looked up after the oldest one began.
//
// @threads one at a time
#pragma once

#include <cstdint>
#include <deque>

#include "pool/client/client_options.h"

namespace cachalot::pool {

class Pins {
 public:
  explicit Pins(const ClientContext& context) : context_(context) {}

  // Announces one more. @return its number @cost a line, and a fence that waits for it
  std::uint64_t begin() {
    in_flight_.push_back(++begun_);
    publish();
    return begun_;
  }
  // The pin is over; publish() announces that.
  void end(std::uint64_t pin) { std::erase(in_flight_, pin); }
  // All are over. The line stays as it is.
  void end_all() { in_flight_.clear(); }
  bool none() const { return in_flight_.empty(); }

  // From here on the line is of this incarnation. Call before the keeper can see the incarnation, so that it
  // takes no older announcement for one of this.
  void begin_incarnation(std::uint32_t incarnation) {
    incarnation_ = incarnation;
    publish();
  }
  // Writes the line, if this client pins.
  void publish() const {
    if (!context_.options.pins) return;
    PinLine line{};
    line.oldest = none() ? 0 : in_flight_.front();
    line.newest = begun_;
    line.incarnation = incarnation_;
    const Access& access = context_.access;
    access.region.publish(access.layout.client_pins(context_.slot), line);
    if (!access.domain().broken(memory::Rule::kPinWithoutComplete)) access.domain().complete();
  }

 private:
  const ClientContext& context_;
  std::uint32_t incarnation_ = 0;
  std::uint64_t begun_ = 0;
  std::deque<std::uint64_t> in_flight_;  // ascending
};

}  // namespace cachalot::pool
