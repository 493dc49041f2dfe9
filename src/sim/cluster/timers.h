// When each of a fixed number of things happens next, and which is first.
//
// Of equal times the lower slot is first, so the order of a simulation depends on nothing but its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cachalot::sim {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// A complete binary tree in which each inner node names the first of its two sides.
// @threads one at a time
// @cost    set: O(log slots); first: O(1)
class Timers {
 public:
  explicit Timers(std::size_t slots) {
    while (leaves_ < slots) leaves_ *= 2;
    time_.assign(leaves_, kNever);
    first_.resize(leaves_ * 2);
    for (std::size_t i = 0; i < leaves_; ++i) first_[leaves_ + i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = leaves_; i-- > 1;) first_[i] = earlier(i);
  }

  void set(std::size_t slot, double time_s) {
    time_[slot] = time_s;
    for (std::size_t i = (leaves_ + slot) / 2; i >= 1; i /= 2) first_[i] = earlier(i);
  }

  std::size_t first() const { return first_[1]; }
  double first_time() const { return time_[first()]; }

 private:
  std::uint32_t earlier(std::size_t node) const {
    const std::uint32_t left = first_[node * 2], right = first_[node * 2 + 1];
    return time_[right] < time_[left] ? right : left;
  }

  std::size_t leaves_ = 2;
  std::vector<double> time_;
  std::vector<std::uint32_t> first_;
};

}  // namespace cachalot::sim
