// Names of commands and flags that were nearly given.
#pragma once

#include <string>
#include <vector>

namespace cachalot::apps {

// "; did you mean NAME?" of the nearest name, between these signs; "": none is near.
std::string name_meant(const std::string& typed, const std::vector<std::string>& known,
                       const char* before, const char* after);

}  // namespace cachalot::apps
