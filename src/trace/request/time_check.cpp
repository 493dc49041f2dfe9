#include "trace/request/time_check.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kEnough = 1000;  // requests
constexpr double kLeastGap = 5;

}  // namespace

bool TimeCheck::add(double time_ms) {
  if (times_ == 0) earliest_ = latest_ = time_ms;
  ++times_;
  earliest_ = std::min(earliest_, time_ms);
  latest_ = std::max(latest_, time_ms);
  if (fraction_at_ == 0 && time_ms != std::floor(time_ms)) {
    fraction_at_ = times_;
    fraction_ = time_ms;
  }
  return times_ == kEnough;
}

std::optional<std::string> TimeCheck::doubt() {
  if (is_said_ || fraction_at_ == 0 || times_ < 2) return std::nullopt;
  const double gap = (latest_ - earliest_) / static_cast<double>(times_ - 1);
  if (gap <= 0 || gap >= kLeastGap) return std::nullopt;
  is_said_ = true;
  char text[240];
  std::snprintf(
      text, sizeof text,
      "timestamp: request %" PRIu64
      " has %.6g, and requests are %.3g apart; read as milliseconds, expected --time-unit "
      "s if these are seconds (ms: no warning)",
      fraction_at_, fraction_, gap);
  return text;
}

}  // namespace cachalot::trace
