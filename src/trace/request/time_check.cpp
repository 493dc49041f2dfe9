#include "trace/request/time_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kEnough = 1000;  // requests
constexpr std::uint64_t kFewestWhole = 10;
constexpr double kLeastGap = 5, kLeastWholeGap = 1;

}  // namespace

bool TimeCheck::add(double time_ms) {
  if (times_ == 0) earliest_ = latest_ = time_ms;
  ++times_;
  earliest_ = std::min(earliest_, time_ms);
  latest_ = std::max(latest_, time_ms);
  has_fraction_ = has_fraction_ || time_ms != std::floor(time_ms);
  return times_ == kEnough;
}

std::optional<std::string> TimeCheck::doubt() {
  if (is_said_ || times_ < (has_fraction_ ? 2 : kFewestWhole)) return std::nullopt;
  const double gap = (latest_ - earliest_) / static_cast<double>(times_ - 1);
  if (gap <= 0 || gap >= (has_fraction_ ? kLeastGap : kLeastWholeGap)) return std::nullopt;
  is_said_ = true;
  char text[240];
  std::snprintf(
      text, sizeof text,
      "timestamp: the times are read as milliseconds, which means %.0f requests a second; "
      "give --time-unit s if they are seconds, --time-unit ms if they are milliseconds",
      1000 / gap);
  return text;
}

}  // namespace cachalot::trace
