// Time as something that is passed in, so that a simulator can pass its own.
#pragma once

#include <cstdint>

namespace cachalot::base {

inline constexpr std::uint64_t kNsPerS = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since some fixed instant of this machine; never goes back. ~25 ns a call.
  virtual std::uint64_t now_ns() = 0;
};

// CLOCK_MONOTONIC. Comparable between processes of one machine, not between machines.
class SteadyClock final : public Clock {
 public:
  std::uint64_t now_ns() override { return read(); }
  static std::uint64_t read();
};

}  // namespace cachalot::base
