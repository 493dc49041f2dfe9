// Flags whose names were nearly given.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cachalot::apps {

// "; did you mean NAME?" of the flag with the nearest name, between these signs; "": none is near.
// @param typed  without "--"
std::string name_meant(const CLI::App& command, const std::string& typed, const char* before,
                       const char* after);

}  // namespace cachalot::apps
