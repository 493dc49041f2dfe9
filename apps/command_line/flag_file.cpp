#include "flag_file.h"

#include <memory>

#include "command.h"

namespace cachalot::apps {
namespace {

std::string quoted(const std::string& text) {
  return "\"" + text.substr(0, 60) + "\"";
}

std::string list_of(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return "\"" + text.substr(0, 60) + "\"";
}

}  // namespace

std::string FlagFile::problem_of(const CLI::ConfigItem& item) const {
  if (item.name == "++" || !item.parents.empty()) {
    const std::string section = item.parents.empty() ? "" : item.parents.front();
    return quoted(section) + " is a section, expected flags without one: flag-name = value";
  }
  const CLI::Option* const option = command_->get_option_no_throw("--" + item.name);
  if (option == nullptr) {
    return quoted(item.name) + " is not a flag of " + command_->get_name() +
           ", expected lines as in: flag-name = value";
  }
  if (option == command_->get_config_ptr() || option == command_->get_help_ptr()) {
    return quoted(item.name) + " cannot be set in a file, expected it on the command line";
  }
  const bool is_switch = option->get_items_expected_max() == 0;
  if (is_switch && (item.inputs.size() != 1 ||
                    (item.inputs.front() != "true" && item.inputs.front() != "false"))) {
    return "--" + item.name + ": " + list_of(item.inputs) + ", expected true or false";
  }
  if (!is_switch &&
      item.inputs.size() > static_cast<std::size_t>(option->get_items_expected_max())) {
    return "--" + item.name + ": " + list_of(item.inputs) + " are " +
           std::to_string(item.inputs.size()) + " values, expected one";
  }
  return "";
}

std::vector<CLI::ConfigItem> FlagFile::from_config(std::istream& input) const {
  const std::vector<CLI::ConfigItem> found = CLI::ConfigTOML::from_config(input);
  const CLI::Option* const file = command_->get_config_ptr();
  const std::string name = file->count() == 0 ? "configuration file" : file->results().front();
  for (const CLI::ConfigItem& item : found) {
    const std::string problem = problem_of(item);
    if (!problem.empty()) throw CLI::ParseError(name + ": " + problem, kExitUsage);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (found[i].name != found[j].name) continue;
      throw CLI::ParseError(name + ": --" + found[i].name + " is there twice, expected it once",
                            kExitUsage);
    }
  }
  return found;
}

void add_flag_file(CLI::App& command, const char* name) {
  command
      .set_config(
          name, "",
          "flags from a TOML file, by their names without --; a flag of the command line wins")
      ->type_name("FILE.toml");
  command.config_formatter(std::make_shared<FlagFile>(command));
  command.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace cachalot::apps
