// How many bytes may be written: so many a day. For disks that wear out.
//
// A bucket of an hour's bytes, full at the start, that fills steadily. What finds it empty is refused; the last that
// is admitted may leave a debt, so that objects of any size pass. So any 24 hours have 25/24 of the budget at most,
// and one call's objects. The bucket does not survive a restart.
//
// @threads any
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace cachalot::storage {

class WriteBudget {
 public:
  // @param bytes_per_day  0: no limit
  explicit WriteBudget(std::uint64_t bytes_per_day)
      : bytes_per_day_(bytes_per_day), bytes_(most_bytes()) {}

  // Takes the bytes if the bucket is not empty. Times are of one clock, in ns.
  bool admits(std::uint64_t bytes, std::uint64_t now_ns) {
    if (bytes_per_day_ == 0) return true;
    const std::lock_guard lock(mutex_);
    if (filled_ns_ != 0 && now_ns > filled_ns_) {
      const double days = static_cast<double>(now_ns - filled_ns_) / kDayNs;
      bytes_ = std::min(bytes_ + days * static_cast<double>(bytes_per_day_), most_bytes());
    }
    filled_ns_ = std::max(filled_ns_, now_ns);
    if (bytes_ <= 0) return false;
    bytes_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  static constexpr double kDayNs = 86400e9;
  double most_bytes() const { return static_cast<double>(bytes_per_day_) / 24; }

  const std::uint64_t bytes_per_day_;
  std::mutex mutex_;  // all below
  double bytes_;
  std::uint64_t filled_ns_ = 0;  // 0: never
};

}  // namespace cachalot::storage
