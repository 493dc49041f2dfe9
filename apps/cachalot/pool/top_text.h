// What `cachalot top` shows of two looks at the pools: rates between them, and what is now.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cachalot::apps {

// Paths, and what describe_pool() says of each; a text instead: why it cannot be read.
using Snapshots = std::vector<std::pair<std::string, nlohmann::json>>;

// Whole lines, those of pools with a keeper first. A pool that `before` has not, or that was made anew, has no rates.
std::string top_text(const Snapshots& before, const Snapshots& now, double seconds);

}  // namespace cachalot::apps
