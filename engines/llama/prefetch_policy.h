// The names of the policies for blocks from storage, of flags and environment variables.
#pragma once

#include <cachalot/result.h>
#include <cachalot/tier.h>

#include <string>

namespace cachalot::llama {

// @param name  of the flag or variable, for the message
// @errors kInvalidArgument
inline Result<PrefetchStop> parse_prefetch_policy(const char* name, const std::string& text) {
  if (text == "best_effort") return PrefetchStop::kBestEffort;
  if (text == "wait_complete") return PrefetchStop::kWaitComplete;
  if (text == "timeout") return PrefetchStop::kTimeout;
  return Error::make(Code::kInvalidArgument,
                     "%s is \"%.40s\", expected best_effort, wait_complete, timeout or off", name,
                     text.c_str());
}

}  // namespace cachalot::llama
