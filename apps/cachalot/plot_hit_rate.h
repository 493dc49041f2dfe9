// Hit rate over capacity as a drawing: one line a policy, capacities on a logarithmic axis.
#pragma once

#include <span>
#include <string>

#include "index/hit_rate/hit_rate.h"

namespace cachalot::apps {

// An SVG document. Unlimited capacities are drawn as a dashed line across.
std::string plot_hit_rate(std::span<const index::HitRateRow> rows, const std::string& title);

}  // namespace cachalot::apps
