// The drawing of a map of policies.
#pragma once

#include <string>

#include "policy_map.h"

namespace cachalot::apps {

// An SVG document: a cell has the colour, the letter and the margin of its winner; hatched: less than 1 %.
std::string draw_policy_map(const std::string& trace, const PolicyMap& map);

}  // namespace cachalot::apps
