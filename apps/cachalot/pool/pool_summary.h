// The most important of what a pool says of itself, for people: `cachalot pool info` without --all.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

namespace cachalot::apps {

// At most 15 lines. @param description  describe_pool()
void print_summary(std::FILE* out, const nlohmann::json& description);

// "serving for 3 d 4 h", "none", "hangs". @param keeper  of describe_pool()
std::string keeper_state_text(const nlohmann::json& keeper);

struct CountedPart {
  const char* name;  // of the number
  const char* noun;  // "": none
  const char* what;
};
// The parts whose number is there and not 0: "3 blocks without room, 8 not valid"; "none".
std::string counts_text(const nlohmann::json& values, std::initializer_list<CountedPart> parts);

// "3 d 4 h", "2 min 5 s".
std::string duration_text(double s);

}  // namespace cachalot::apps
