// A quantity over time, as its mean in windows of equal length: the load of an instance.
#pragma once

#include <cstddef>
#include <vector>

namespace cachalot::sim {

// @threads one at a time
class LoadSeries {
 public:
  explicit LoadSeries(double window_s) : window_s_(window_s) {}

  // It had `value` from `from_s` to `to_s`. What was not said is 0.
  void add(double from_s, double to_s, double value);

  double window_s() const { return window_s_; }
  // Of each window until `end_s`; the last one, if it is cut, over what there is of it.
  std::vector<double> means(double end_s) const;

 private:
  double window_s_;
  std::vector<double> integrals_;
};

// Of the values; 0 for less than two.
double standard_deviation(const std::vector<double>& values);

}  // namespace cachalot::sim
