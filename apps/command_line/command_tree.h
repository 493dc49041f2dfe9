// The commands of a program as the parser has them: for what walks through all of them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cachalot::apps {

inline std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

inline std::vector<std::string> flag_names_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* flag : command.get_options()) {
    for (const std::string& name : flag->get_lnames()) names.push_back(name);
  }
  return names;
}

// "cachalot pool create".
inline std::string full_name(const CLI::App* command) {
  const CLI::App* const parent = command->get_parent();
  return parent == nullptr ? command->get_name() : full_name(parent) + " " + command->get_name();
}

}  // namespace cachalot::apps
