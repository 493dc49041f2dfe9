// Looks whether times that are read as milliseconds seem to be seconds.
//
// A trace of real services has whole milliseconds, or fractions of them and long gaps. Fractions with a mean gap of
// under 5 ms, more than 200 requests a second, are what seconds look like when they are taken for milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cachalot::trace {

class TimeCheck {
 public:
  // True: enough was seen, ask for doubt().
  bool add(double time_ms);
  // Why the times are in doubt; not asked twice for the same times. @return empty: they are not, or it was said
  std::optional<std::string> doubt();

 private:
  std::uint64_t times_ = 0;
  double earliest_ = 0, latest_ = 0;
  std::uint64_t fraction_at_ = 0;  // request, from 1; 0: none has one
  double fraction_ = 0;
  bool is_said_ = false;
};

}  // namespace cachalot::trace
