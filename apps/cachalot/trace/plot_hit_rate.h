// Hit rate over capacity as a drawing: one line a policy, capacities on a logarithmic axis.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cache_sim/hit_rate.h"

namespace cachalot::apps {

struct HitRatePlot {
  std::string title;
  std::string subtitle;
  std::uint64_t block_bytes = 0;  // not 0: the axis below says bytes, and blocks stand above
};

// An SVG document, to be read from the back of a room. An unlimited capacity is a dashed line across;
// a policy's name stands where its line ends.
std::string plot_hit_rate(std::span<const cache_sim::HitRateRow> rows, const HitRatePlot& plot);

}  // namespace cachalot::apps
