// Flags of a command from a file: TOML, `flag-name = value`, each flag once, no sections.
#pragma once

#include <cachalot/result.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cachalot::apps {

// What is no TOML is refused, and what a flag would take for something else: a name that is no flag, a section, a value
// of another type or of which there are more than the flag takes, and one that the flag refuses.
class FlagFile final : public CLI::ConfigTOML {
 public:
  // @param command  outlives this; its flags are those that are known
  explicit FlagFile(CLI::App& command) : command_(&command) {}

  // @throws CLI::ParseError: names the file, the flag, the value and what was expected
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // The last file's name if it gave this flag ("--flag") and the command line did not; else "".
  std::string file_of(const std::string& flag) const;

 private:
  CLI::App* command_;
  mutable std::string file_;
  mutable std::vector<std::string> given_;
};

// --NAME FILE.toml. A flag of the command line wins.
void add_flag_file(CLI::App& command, const char* name);

// An error of a flag that such a file gave names the file, too.
Error with_flag_file(const CLI::App& command, const Error& error);

}  // namespace cachalot::apps
