// Which device holds which byte of the pool's data: 2 MiB stripes, dealt to the devices in turn.
// Pure arithmetic; touches no memory.
//
//   logical address a, counted in the data areas only:
//   stripe s = a / 2 MiB,  device = s mod n,
//   offset = start(device) + (s div n) * 2 MiB + a mod 2 MiB
//
// One device is worth about 22.5 GB/s, and skewed access to a few of many costs a third of the
// throughput (source: Beluga, arXiv 2511.20172: 8.49 to 11.32 QPS by interleaving).
//
// 1. [0, total_bytes()) and the data areas are in one-to-one correspondence.
// 2. An extent lies inside one device's data area; with one device a range is one extent.
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace cachalot::memory {

inline constexpr std::uint64_t kStripeBytes = std::uint64_t{2} << 20;

class Interleave {
 public:
  // @param  data_starts      offset of each device's data area, multiples of 2 MiB
  // @param  data_bytes_each  bytes of every data area, a multiple of 2 MiB, not 0
  // @errors kInvalidArgument, also where offsets or the total do not fit 63 bits
  static Result<Interleave> make(std::vector<std::uint64_t> data_starts,
                                 std::uint64_t data_bytes_each);

  std::uint32_t devices() const { return static_cast<std::uint32_t>(starts_.size()); }
  std::uint64_t data_start(std::uint32_t device) const { return starts_[device]; }
  std::uint64_t data_bytes_each() const { return data_bytes_each_; }
  std::uint64_t total_bytes() const { return data_bytes_each_ * starts_.size(); }

  // True if the whole range is data. Ask before for_each_extent where a number came from outside.
  bool contains(std::uint64_t logical, std::uint64_t bytes) const {
    return bytes <= total_bytes() && logical <= total_bytes() - bytes;
  }

  // Calls f(device, offset, length) for the extents of a range, in logical order.
  // @param logical, bytes  contains() them; 0 bytes: no call
  // @cost  one division; no allocation
  template <class F>
  void for_each_extent(std::uint64_t logical, std::uint64_t bytes, F&& f) const {
    CACHALOT_CHECK(contains(logical, bytes));
    if (bytes == 0) return;
    if (starts_.size() == 1) return static_cast<void>(f(0u, starts_[0] + logical, bytes));
    const std::uint64_t stripe = logical / kStripeBytes;
    std::uint32_t device = static_cast<std::uint32_t>(stripe % starts_.size());
    std::uint64_t row = stripe / starts_.size() * kStripeBytes;
    std::uint64_t within = logical % kStripeBytes;
    while (bytes > 0) {
      const std::uint64_t length = std::min(bytes, kStripeBytes - within);
      f(device, starts_[device] + row + within, length);
      bytes -= length;
      within = 0;
      if (++device == starts_.size()) {
        device = 0;
        row += kStripeBytes;
      }
    }
  }

 private:
  Interleave(std::vector<std::uint64_t> starts, std::uint64_t data_bytes_each)
      : starts_(std::move(starts)), data_bytes_each_(data_bytes_each) {}

  std::vector<std::uint64_t> starts_;
  std::uint64_t data_bytes_each_;
};

}  // namespace cachalot::memory
