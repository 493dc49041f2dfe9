// Flags of a command from a file: TOML, `flag-name = value`, each flag once, no sections.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cachalot::apps {

// Reads with the library's parser, and refuses what that would take for something else: a name that is no flag, a
// section, more values than the flag takes, and a value of a switch that is neither true nor false.
class FlagFile final : public CLI::ConfigTOML {
 public:
  // @param command  outlives this; its flags are those that are known
  explicit FlagFile(const CLI::App& command) : command_(&command) {}

  // @throws CLI::ParseError: names the file, the flag, the value and what was expected
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  std::string problem_of(const CLI::ConfigItem& item) const;

  const CLI::App* command_;
};

// --NAME FILE.toml. A flag of the command line wins.
void add_flag_file(CLI::App& command, const char* name);

}  // namespace cachalot::apps
