// Commands and their flags. A thin wrapper: the calls have the names and meanings of CLI11, whose header costs seconds
// of processor time in each file that includes it. Only flags.cpp, flag_file.cpp, manual.cpp and program.cpp do.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace cachalot::apps {

// What a flag's value has to be.
class Validator {
 public:
  // @param check        returns what is wrong with the value, "" if nothing; it may change the value
  // @param description  of the values, in the help
  // @param name         by which flag_file.cpp knows what the flag takes
  Validator(std::function<std::string(std::string&)> check, const std::string& description,
            const std::string& name = "");

  std::string problem_of(std::string& value) const;  // what `check` returns

 private:
  friend class Flag;
  friend Validator one_of(const std::vector<std::string>& values);
  explicit Validator(std::shared_ptr<const CLI::Validator> validator);

  std::shared_ptr<const CLI::Validator> validator_;
};

Validator one_of(const std::vector<std::string>& values);

class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(&option) {}

  Flag* type_name(const std::string& name);
  Flag* description(const std::string& text);
  Flag* group(const std::string& name);
  Flag* required();
  Flag* needs(Flag* other);
  Flag* excludes(Flag* other);
  Flag* check(const Validator& validator);      // looks at the value
  Flag* transform(const Validator& validator);  // may change it
  Flag* capture_default_str();                  // the help has the variable's value now
  Flag* default_str(const std::string& text);
  Flag* delimiter(char between);
  Flag* expected(int values);
  Flag* expected(int least, int most);  // -1: any number
  Flag* allow_extra_args(bool allowed);
  Flag* take_all();  // of a flag that is given several times

  std::string get_name() const;
  std::string get_group() const;
  std::size_t count() const;                 // how often it was given
  std::vector<std::string> results() const;  // what it was given
  bool is_switch() const;                    // takes no value

  // The variable as if the command line had this value alone. @errors kInvalidArgument: the flag refuses it
  Status set(const std::string& value);

 private:
  CLI::Option* option_;
};

// The program's flags, or those of one of its commands. Pointers to its parts stay valid as long as it exists.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  Command* add_subcommand(const std::string& name, const std::string& description);
  // A heading of the help for these of its commands.
  void group_subcommands(const std::string& title, std::initializer_list<const char*> names);
  // T: those that flags.cpp lists. `value` outlives the command.
  template <class T>
  Flag* add_option(const std::string& name, T& value, const std::string& text);
  Flag* add_flag(const std::string& name, bool& value, const std::string& text);
  void footer(const std::string& text);
  void callback(std::function<void()> call);

  Flag* get_option(const std::string& name) const;           // which exists
  Flag* get_option_no_throw(const std::string& name) const;  // null: there is none
  std::vector<Flag*> get_options() const;
  std::size_t count(const std::string& flag) const;

  CLI::App& app() const { return *app_; }

 private:
  Flag* add(CLI::Option* option);

  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> commands_;
  std::vector<std::unique_ptr<Flag>> flags_;
};

// A command of no program: to read a command line another time.
class LooseCommand {
 public:
  explicit LooseCommand(const std::string& name);
  ~LooseCommand();
  Command& command() { return command_; }
  // @errors kInvalidArgument: as the program says it
  Status parse(const std::vector<std::string>& arguments);

 private:
  std::unique_ptr<CLI::App> app_;
  Command command_;
};

}  // namespace cachalot::apps
