#include "stitch/stitch_budget.h"

#include <algorithm>

namespace cachalot::stitch {

bool StitchBudget::may_buy(std::uint64_t bytes, std::uint64_t reserved_bytes) const {
  const std::uint64_t count = stitches();
  if (count == 0 || is_full_) return false;
  // A program that has stitched much may have larger pieces.
  const std::uint64_t piece = reserved_bytes / growth_piece_divisor_ *
                              std::max(count, growth_piece_divisor_) / growth_piece_divisor_;
  const std::uint64_t most =
      std::min(reserved_bytes / growth_divisor_ * count, reserved_bytes / kMostGrowthDivisor);
  return bytes <= piece && bought_bytes_ + bytes <= most;
}

}  // namespace cachalot::stitch
