// The flags that the command line, or its flag file, gave a command.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "flags.h"

namespace cachalot::apps {

// A flag by its name without "--".
struct FlagValue {
  std::string flag, value;
};

// All that have an effect: a switch that a file sets to false has none. Several values stand in one, with commas.
std::vector<FlagValue> given_flags(const Command& command);

// For results: {"prefill": "8", "shared-pool": true, "rate-scale": ["1", "2"]}.
nlohmann::json json_of_flags(const Command& command);

}  // namespace cachalot::apps
