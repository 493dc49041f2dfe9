#include "sched/timing/profile_tables.h"

#include <algorithm>

namespace cachalot::sched {

double value_at(const Curve& curve, double x) {
  if (curve.empty()) return 0;
  if (curve.size() == 1 || x <= curve.front().first) return curve.front().second;
  const auto& [last_x, last] = curve.back();
  if (x >= last_x) {
    const double far_enough = last_x - (last_x - curve.front().first) / 8;
    auto from = curve.end() - 2;
    while (from != curve.begin() && from->first > far_enough) --from;
    const double slope = (last - from->second) / (last_x - from->first);
    return last + std::max(slope, 0.0) * (x - last_x);
  }
  const auto high =
      std::upper_bound(curve.begin(), curve.end(), x,
                       [](double wanted, const auto& point) { return wanted < point.first; });
  const auto low = high - 1;
  const double share = (x - low->first) / (high->first - low->first);
  return low->second + share * (high->second - low->second);
}

const std::string& SkewAxis::label_of(double value) const {
  for (std::size_t i = 0; i + 1 < labels.size(); ++i) {
    if (value <= upper_edges[i]) return labels[i];
  }
  return labels.back();
}

}  // namespace cachalot::sched
