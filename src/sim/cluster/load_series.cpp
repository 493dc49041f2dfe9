#include "sim/cluster/load_series.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace cachalot::sim {

double LoadSeries::length_for(double window_s, double end_s) {
  while (end_s / window_s > static_cast<double>(kMostWindows)) window_s *= 2;
  return window_s;
}

void LoadSeries::lengthen(double end_s) {
  const double length_s = length_for(window_s_, end_s);
  for (; window_s_ < length_s; window_s_ *= 2) {
    for (std::size_t i = 1; i < integrals_.size(); ++i) {
      const double integral = integrals_[i];
      integrals_[i] = 0;
      integrals_[i / 2] += integral;
    }
    integrals_.resize((integrals_.size() + 1) / 2);
  }
}

void LoadSeries::add(double from_s, double to_s, double value) {
  if (value == 0) return;
  lengthen(to_s);
  while (from_s < to_s) {
    const auto window = static_cast<std::size_t>(from_s / window_s_);
    const double end_s = std::min(to_s, static_cast<double>(window + 1) * window_s_);
    if (window >= integrals_.size()) integrals_.resize(window + 1, 0);
    integrals_[window] += (end_s - from_s) * value;
    if (end_s <= from_s) break;  // no time left that the clock can tell
    from_s = end_s;
  }
}

std::vector<double> LoadSeries::means(double end_s) const {
  LoadSeries whole = *this;
  whole.lengthen(end_s);
  const double window_s = whole.window_s_;
  CACHALOT_CHECK(window_s == length_for(shortest_s_, end_s));
  std::vector<double> means;
  for (std::size_t i = 0; static_cast<double>(i) * window_s < end_s; ++i) {
    const double length = std::min(window_s, end_s - static_cast<double>(i) * window_s);
    means.push_back(i < whole.integrals_.size() ? whole.integrals_[i] / length : 0);
  }
  return means;
}

double standard_deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / count);
}

}  // namespace cachalot::sim
