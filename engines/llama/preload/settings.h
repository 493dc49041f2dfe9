// What the environment says to the preload library. CACHALOT_POOL alone switches it on.
//
//   CACHALOT_POOL            path of the pool (or those of all its devices, with commas between)
//   CACHALOT_BLOCK_TOKENS    tokens a block, 64
//   CACHALOT_HOST            this machine's number in the pool, 0
//   CACHALOT_SALT            part of the namespace: engines with different salts share nothing
//   CACHALOT_FLIGHT_WAIT_MS  how long to wait for blocks that another process computes, 30000
//   CACHALOT_PREFETCH_POLICY best_effort, wait_complete, timeout (default) or off: see PrefetchOptions
//   CACHALOT_VERBOSE         1: a line for each prompt on stderr
#pragma once

#include <cachalot/result.h>

#include <functional>
#include <optional>

#include "../prompt_cache.h"

namespace cachalot::llama {

struct Settings {
  PromptCacheOptions cache;
  bool is_verbose = false;
};

// @param get  the value of a variable, null: it is not set
// @return nothing: CACHALOT_POOL is not set, or empty
// @errors kInvalidArgument: names the variable, its value and what was expected
Result<std::optional<Settings>> read_settings(const std::function<const char*(const char*)>& get);

}  // namespace cachalot::llama
