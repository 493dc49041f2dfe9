// Why prompts may have missed, from what a pool says of itself: the causes that are there, the likeliest first.
//
// The keeper and the clients count nothing for it: a lookup that misses costs what it did.
#pragma once

#include <nlohmann/json.hpp>

namespace cachalot::apps {

// @param  description  of describe_pool(), without "misses"
// @return {"missed_blocks": blocks that prompts asked for and did not use, "causes": [{"cause", "detail"}]} with
//         cause of: source_down, other_namespace, not_stored, evicted, short_prompt, never_stored
nlohmann::json describe_misses(const nlohmann::json& description);

}  // namespace cachalot::apps
