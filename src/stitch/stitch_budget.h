// The budget for new memory in place of stitches. A program whose requests are new again and again would stitch at
// every step; a little more memory, bought piece by piece, avoids most of these stitches.
//
// A program that settles stitches in its first iterations, and one stitch saves memory for good. So stitches are
// counted, and forgotten in time: one for each `free_stitch_requests` requests. Each stitch that is not forgotten
// allows the heap to grow by one part in `growth_divisor`, in pieces of at most one part in `growth_piece_divisor`:
// small ones first, which avoid as many stitches as large ones.
//
// 1. What was bought since the last release is at most (stitches that are not forgotten) / growth_divisor of the heap
//    when it was bought, and at most one part in kMostGrowthDivisor.
//
// @threads one at a time
// @cost    a few ns a request
#pragma once

#include <cstdint>

#include "stitch/stitch_options.h"

namespace cachalot::stitch {

class StitchBudget {
 public:
  // With a tenth no trace that was replayed loses 0.1 points of utilization (docs/decisions/0008-a-plain-budget.md).
  static constexpr std::uint64_t kMostGrowthDivisor = 10;

  explicit StitchBudget(const StitchOptions& options)
      : free_stitch_requests_(options.free_stitch_requests),
        growth_divisor_(options.growth_divisor),
        growth_piece_divisor_(options.growth_piece_divisor) {}

  // A request was served.
  void served(bool is_stitched) {
    level_ -= level_ != 0;
    if (is_stitched && stitches() < kMostStitches) level_ += free_stitch_requests_;
  }

  // Whether new memory of that size may be created instead of a stitch.
  bool may_buy(std::uint64_t bytes, std::uint64_t reserved_bytes) const;
  void bought(std::uint64_t bytes) { bought_bytes_ += bytes; }
  // The device has no more memory: nothing is bought until something is released.
  void device_is_full() { is_full_ = true; }
  // The allocator has given back what it cached.
  void released() {
    bought_bytes_ = 0;
    is_full_ = false;
  }

  // Stitches that are not forgotten.
  std::uint64_t stitches() const { return level_ / free_stitch_requests_; }

 private:
  // So that all are forgotten in time, and products of them and of sizes fit 64 bits.
  static constexpr std::uint64_t kMostStitches = std::uint64_t{1} << 16;

  const std::uint64_t free_stitch_requests_, growth_divisor_, growth_piece_divisor_;
  std::uint64_t level_ = 0;  // free_stitch_requests for each stitch, less one for each request
  std::uint64_t bought_bytes_ = 0;
  bool is_full_ = false;
};

}  // namespace cachalot::stitch
