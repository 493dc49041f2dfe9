// Looks whether times that are read as milliseconds seem to be seconds.
//
// A mean gap of under 5 ms is more than 200 requests a second. Mooncake's own traces have fewer than 10, so such times are
// more likely seconds. Whole times may also be one request each millisecond, as programs make them: of these only more than
// 1,000 a second are doubted. Equal times are a batch, and fewer than 10 whole times are too few to tell.
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
  bool has_fraction_ = false;
  bool is_said_ = false;
};

}  // namespace cachalot::trace
