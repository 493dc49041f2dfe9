// Why prompts may have missed, from what a pool says of itself: the causes that are there, the likeliest first.
//
// The keeper and the clients count nothing for it: a lookup that misses costs what it did.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cachalot::apps {

// @param  description  of describe_pool(), without "misses"
// @return {"missed_blocks": blocks that prompts asked for and did not use, "causes": [{"cause", "detail"}]} with
//         cause of: source_down, other_namespace, not_stored, evicted, short_prompt, never_stored
nlohmann::json describe_misses(const nlohmann::json& description);

// Each of these causes, and whether it is there.
// @param  misses  of describe_misses()
std::vector<std::pair<std::string, bool>> found_miss_causes(const nlohmann::json& misses);

}  // namespace cachalot::apps
