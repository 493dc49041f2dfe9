// The most important of what a pool says of itself, for people: `cachalot pool info` without --all.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

namespace cachalot::apps {

// At most 15 lines. @param description  describe_pool()
void print_summary(std::FILE* out, const nlohmann::json& description);

// "3 d 4 h", "2 min 5 s".
std::string duration_text(double s);

}  // namespace cachalot::apps
