// A copy that a fail point can interrupt.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/fail_point.h"

namespace cachalot::pool {

// Calls copy(at, length) once for all `bytes`; in a build with fail points, once for each piece.
template <class Copy>
void copy_in_pieces(std::uint64_t bytes, base::FailPoint point, Copy&& copy) {
  constexpr std::uint64_t kPieceBytes = 4096;
  if (!base::fail_points_armed()) {
    if (bytes != 0) copy(0, bytes);
    return;
  }
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    copy(at, std::min(kPieceBytes, bytes - at));
    base::reach(point);
  }
}

}  // namespace cachalot::pool
