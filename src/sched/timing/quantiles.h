// Means and quantiles of measured values.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace cachalot::sched {

// 0 of none.
inline double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Between two neighbours linear; 0 of none. @param share  0 (the smallest) to 1
inline double quantile_of(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace cachalot::sched
