// How `--help` and manual pages show a flag. An argument that a flag can give, too, is explained once, and said once to be required.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cachalot::apps {

// What stands behind its name, and what is said of it.
std::string values_of(const CLI::Option& option, bool is_positional);
std::string description_of(const CLI::Option& option, bool is_positional);

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace cachalot::apps
