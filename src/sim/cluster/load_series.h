// A quantity over time, as its mean in windows of equal length: the load of an instance.
//
// However long the time is, there are at most kMostWindows: beyond, windows are twice as long, and again.
#pragma once

#include <cstddef>
#include <vector>

namespace cachalot::sim {

// @threads one at a time
class LoadSeries {
 public:
  static constexpr std::size_t kMostWindows = 16384;  // 11 days of minutes
  // The length of the windows of a time until `end_s` that were to be of `window_s`.
  static double length_for(double window_s, double end_s);

  explicit LoadSeries(double window_s) : shortest_s_(window_s), window_s_(window_s) {}

  // It had `value` from `from_s` to `to_s`. What was not said is 0.
  void add(double from_s, double to_s, double value);

  // Of each window until `end_s`; the last one, if it is cut, over what there is of it. Nothing was added after `end_s`.
  // The windows are of length_for(the constructor's, end_s).
  std::vector<double> means(double end_s) const;

 private:
  void lengthen(double end_s);

  double shortest_s_;
  double window_s_;
  std::vector<double> integrals_;
};

// Of the values; 0 for less than two.
double standard_deviation(const std::vector<double>& values);

}  // namespace cachalot::sim
