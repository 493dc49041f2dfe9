#include "flag_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <toml.hpp>
#include <utility>

#include "base/utf8.h"
#include "command.h"
#include "command_tree.h"
#include "name_meant.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Value = toml::basic_value<toml::discard_comments, std::map>;

[[noreturn]] void refuse(const std::string& file, const std::string& problem) {
  throw CLI::ParseError(file + ": " + problem, kExitUsage);
}

std::string quoted(const std::string& text) {
  return "\"" + text.substr(0, 60) + "\"";
}

// As the command line has it: digits without an exponent.
std::string text_of(const Value& value) {
  char text[400];
  switch (value.type()) {
    case toml::value_t::boolean:
      return value.as_boolean() ? "true" : "false";
    case toml::value_t::integer:
      return std::to_string(value.as_integer());
    case toml::value_t::floating:
      return {text,
              std::to_chars(text, text + sizeof text, value.as_floating(), std::chars_format::fixed)
                  .ptr};
    case toml::value_t::string:
      return value.as_string().str;
    case toml::value_t::array: {
      std::string list;
      for (const Value& each : value.as_array()) list += (list.empty() ? "" : ", ") + text_of(each);
      return list;
    }
    default:
      return toml::stringize(value.type());
  }
}

bool has_number_validator(CLI::Option& option) {
  try {
    return option.get_validator(kNumberValidator) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

// Block counts and sizes are numbers or strings.
bool takes_both(CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type == "N|inf" || type == "SIZE" || type == "BYTES" ||
         (type == "N" && !has_number_validator(option));
}

bool takes_numbers(CLI::Option& option) {
  return takes_both(option) || has_number_validator(option);
}

// The line of an error of the library in one line: "[error] toml::name: text\n --> …".
std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  if (line.starts_with("[error] ")) line.erase(0, 8);
  const std::size_t name = line.find(": ");
  if (line.starts_with("toml::") && name != std::string::npos) line.erase(0, name + 2);
  return line;
}

std::string read_file(std::istream& input, const std::string& file) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::string text(kMostBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(input.gcount()));
  if (text.size() > kMostBytes) refuse(file, "more than 1 MiB, expected a file of flags");
  return text;
}

// The end of the string that begins at `at` with a quote; a string of one line ends with its line.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool has_lines = text.substr(at, 3) == std::string(3, quote);
  for (at += has_lines ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (!has_lines && (text[at] == quote || text[at] == '\n')) {
      return at;
    } else if (has_lines && text.substr(at, 3) == std::string(3, quote)) {
      // The string's own last two characters may be quotes.
      at += 2;
      for (int more = 0; more < 2 && text.substr(at + 1, 1) == std::string(1, quote); ++more) ++at;
      return at;
    }
  }
  return text.size();
}

std::string line_of(std::string_view text, std::size_t at) {
  return std::to_string(1 + std::ranges::count(text.substr(0, at), '\n'));
}

// The library parses and frees each level of lists, tables and dotted names by a call within a call.
void check_nesting(std::string_view text, const std::string& file) {
  constexpr int kMostLevels = 16;
  int open = 0, dots = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char next = text[at];
    if (next == '"' || next == '\'') at = end_of_string(text, at);
    if (next == '#') at = std::min(text.find('\n', at), text.size());
    if (next == '[' || next == '{') ++open;
    if (next == ']' || next == '}') --open;
    if (next == '.') ++dots;
    if (std::string_view("[]{},=\n").find(next) != std::string_view::npos) dots = 0;
    if (open <= kMostLevels && dots <= kMostLevels) continue;
    refuse(file + ":" + line_of(text, at),
           "lists, sections or names within each other, expected at most " +
               std::to_string(kMostLevels) + " levels");
  }
}

// The library reads beyond a name that is no UTF-8.
void check_characters(std::string_view text, const std::string& file) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = base::utf8_character_bytes(text.substr(at));
    if (bytes == 0)
      refuse(file + ":" + line_of(text, at),
             "not valid TOML: bytes that are no character, expected UTF-8");
    at += bytes;
  }
}

Value parse(std::istream& input, const std::string& file) {
  const std::string text = read_file(input, file);
  check_characters(text, file);
  check_nesting(text, file);
  std::istringstream checked(text);
  try {
    return toml::parse<toml::discard_comments, std::map>(checked, file);
  } catch (const toml::exception& error) {
    refuse(file + ":" + std::to_string(error.location().line()),
           "not valid TOML: " + first_line(error.what()));
  } catch (const std::exception& error) {
    refuse(file, "not valid TOML: " + first_line(error.what()));
  }
}

// "": none.
std::string problem_of(const CLI::App& command, CLI::Option* option, const std::string& name,
                       const Value& value) {
  if (value.is_table()) {
    return quoted(name) + " is a section, expected flags without one: flag-name = value";
  }
  if (option == nullptr) {
    return quoted(name) + " is not a flag of " + command.get_name() +
           ", expected lines as in: flag-name = value" +
           name_meant(name, flag_names_of(command), "\"", "\"");
  }
  if (option == command.get_config_ptr() || option == command.get_help_ptr()) {
    return quoted(name) + " cannot be set in a file, expected it on the command line";
  }
  const std::string flag = "--" + name + ": ";
  if (option->get_items_expected_max() == 0) {
    return value.is_boolean() ? "" : flag + quoted(text_of(value)) + ", expected true or false";
  }
  if (value.is_array()) {
    const std::size_t values = value.as_array().size();
    if (values == 0) return flag + "an empty list, expected at least one value";
    if (values > static_cast<std::size_t>(option->get_items_expected_max())) {
      return flag + quoted(text_of(value)) + " are " + std::to_string(values) +
             " values, expected one";
    }
  }
  const bool has_numbers = takes_numbers(*option);
  const bool has_strings = !has_numbers || takes_both(*option);
  const auto is_wrong = [&](const Value& each) -> std::string {
    const bool is_number = each.is_integer() || each.is_floating();
    if ((has_numbers && is_number) || (has_strings && each.is_string())) return "";
    return flag + quoted(text_of(each)) + " is of type " + toml::stringize(each.type()) +
           ", expected " + (has_numbers ? "a number" : "a string");
  };
  if (!value.is_array()) return is_wrong(value);
  for (const Value& each : value.as_array()) {
    if (std::string problem = is_wrong(each); !problem.empty()) return problem;
  }
  return "";
}

// What the option itself says of its values, before they are taken.
std::string refusal_of(CLI::Option& option, const std::vector<std::string>& values) {
  std::string refusal;
  try {
    option.clear();
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    refusal = error.what();
  }
  option.clear();
  return refusal;
}

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

std::vector<CLI::ConfigItem> FlagFile::from_config(std::istream& input) const {
  const CLI::Option* const named = command_->get_config_ptr();
  file_ = named->count() == 0 ? "configuration file" : named->results().front();
  given_.clear();
  const Value root = parse(input, file_);
  std::vector<CLI::ConfigItem> found;
  for (const auto& [name, value] : root.as_table()) {
    CLI::Option* const option = command_->get_option_no_throw("--" + name);
    if (const std::string problem = problem_of(*command_, option, name, value); !problem.empty()) {
      refuse(file_, problem);
    }
    CLI::ConfigItem item;
    item.name = name;
    if (value.is_array()) {
      for (const Value& each : value.as_array()) item.inputs.push_back(text_of(each));
    } else {
      item.inputs.push_back(text_of(value));
    }
    if (option->count() == 0) {
      given_.push_back("--" + name);
      const std::string refusal = refusal_of(*option, item.inputs);
      if (!refusal.empty()) refuse(file_, refusal);
    }
    found.push_back(std::move(item));
  }
  return found;
}

std::string FlagFile::file_of(const std::string& flag) const {
  return std::ranges::find(given_, flag) == given_.end() ? "" : file_;
}

}  // namespace

void add_flag_file(Command& command, const char* name) {
  CLI::App& app = command.app();
  app.set_config(
         name, "",
         "flags from a TOML file, by their names without --; a flag of the command line wins")
      ->type_name("FILE.toml");
  app.config_formatter(std::make_shared<FlagFile>(app));
  app.allow_config_extras(CLI::config_extras_mode::error);
}

std::string flag_file_of(const Command& command) {
  const CLI::Option* const named = command.app().get_config_ptr();
  return named->count() == 0 ? "" : named->results().front();
}

Error with_flag_file(const Command& command, const Error& error) {
  const auto* const files =
      dynamic_cast<const FlagFile*>(command.app().get_config_formatter().get());
  const std::string message = error.message;
  const std::size_t end = message.find_first_of(":, ");
  if (files == nullptr || end == std::string::npos) return error;
  const std::string file = files->file_of(message.substr(0, end));
  if (file.empty()) return error;
  return Error::make(error.code, "%.120s: %s", file.c_str(), error.message);
}

}  // namespace cachalot::apps
