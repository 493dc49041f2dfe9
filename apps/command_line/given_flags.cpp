#include "given_flags.h"

#include <nlohmann/json.hpp>

namespace cachalot::apps {
namespace {

bool is_given(const Flag& flag) {
  return flag.count() != 0 && !(flag.is_switch() && flag.results().back() == "false");
}

std::string name_of(const Flag& flag) {
  const std::string name = flag.get_name();
  return name.substr(name.find_first_not_of('-'));
}

}  // namespace

std::vector<FlagValue> given_flags(const Command& command) {
  std::vector<FlagValue> given;
  for (const Flag* const flag : command.get_options()) {
    if (!is_given(*flag)) continue;
    FlagValue& added = given.emplace_back(FlagValue{name_of(*flag), ""});
    if (flag->is_switch()) continue;
    for (const std::string& value : flag->results())
      added.value += (added.value.empty() ? "" : ",") + value;
  }
  return given;
}

nlohmann::json json_of_flags(const Command& command) {
  nlohmann::json json = nlohmann::json::object();
  for (const Flag* const flag : command.get_options()) {
    if (!is_given(*flag)) continue;
    nlohmann::json& value = json[name_of(*flag)];
    const std::vector<std::string> results = flag->results();
    if (flag->is_switch()) {
      value = true;
    } else if (results.size() == 1) {
      value = results.front();
    } else {
      value = results;
    }
  }
  return json;
}

}  // namespace cachalot::apps
