#include "flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"

namespace cachalot::apps {

Validator::Validator(std::function<std::string(std::string&)> check, const std::string& description,
                     const std::string& name)
    : validator_(std::make_shared<CLI::Validator>(std::move(check), description, name)) {}

Validator::Validator(std::shared_ptr<const CLI::Validator> validator)
    : validator_(std::move(validator)) {}

std::string Validator::problem_of(std::string& value) const {
  return (*validator_)(value);
}

Validator one_of(const std::vector<std::string>& values) {
  return Validator(std::make_shared<const CLI::Validator>(CLI::IsMember(values)));
}

Flag* Flag::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}

Flag* Flag::description(const std::string& text) {
  option_->description(text);
  return this;
}

Flag* Flag::group(const std::string& name) {
  option_->group(name);
  return this;
}

Flag* Flag::required() {
  option_->required();
  return this;
}

Flag* Flag::needs(Flag* other) {
  option_->needs(other->option_);
  return this;
}

Flag* Flag::excludes(Flag* other) {
  option_->excludes(other->option_);
  return this;
}

Flag* Flag::check(const Validator& validator) {
  option_->check(*validator.validator_);
  return this;
}

Flag* Flag::transform(const Validator& validator) {
  option_->transform(*validator.validator_);
  return this;
}

Flag* Flag::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Flag* Flag::default_str(const std::string& text) {
  option_->default_str(text);
  return this;
}

Flag* Flag::delimiter(char between) {
  option_->delimiter(between);
  return this;
}

Flag* Flag::expected(int values) {
  option_->expected(values);
  return this;
}

Flag* Flag::expected(int least, int most) {
  option_->expected(least, most);
  return this;
}

Flag* Flag::allow_extra_args(bool allowed) {
  option_->allow_extra_args(allowed);
  return this;
}

Flag* Flag::take_all() {
  option_->take_all();
  return this;
}

std::string Flag::get_name() const {
  return option_->get_name();
}

std::string Flag::get_group() const {
  return option_->get_group();
}

std::size_t Flag::count() const {
  return option_->count();
}

std::vector<std::string> Flag::results() const {
  return option_->results();
}

bool Flag::is_switch() const {
  return option_->get_items_expected_max() == 0;
}

Status Flag::set(const std::string& value) {
  option_->clear();
  option_->add_result(value);
  try {
    option_->run_callback();
  } catch (const CLI::ParseError& error) {
    return Error::make(Code::kInvalidArgument, "%s", error.what());
  }
  return {};
}

LooseCommand::LooseCommand(const std::string& name)
    : app_(std::make_unique<CLI::App>("", name)), command_(*app_) {}

LooseCommand::~LooseCommand() = default;

Status LooseCommand::parse(const std::vector<std::string>& arguments) {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return Error::make(Code::kInvalidArgument, "%s", error.what());
  }
  return {};
}

void Command::group_subcommands(const std::string& title,
                                std::initializer_list<const char*> names) {
  for (const char* const name : names) app_->get_subcommand(name)->group(title);
}

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  return commands_.emplace_back(std::make_unique<Command>(*app_->add_subcommand(name, description)))
      .get();
}

template <class T>
Flag* Command::add_option(const std::string& name, T& value, const std::string& text) {
  return add(app_->add_option(name, value, text));
}

template Flag* Command::add_option(const std::string&, std::string&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<std::string>&,
                                   const std::string&);
template Flag* Command::add_option(const std::string&, std::uint32_t&, const std::string&);
template Flag* Command::add_option(const std::string&, std::optional<std::uint32_t>&,
                                   const std::string&);
template Flag* Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Flag* Command::add_option(const std::string&, double&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<double>&, const std::string&);

Flag* Command::add_flag(const std::string& name, bool& value, const std::string& text) {
  return add(app_->add_flag(name, value, text));
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::callback(std::function<void()> call) {
  app_->callback(std::move(call));
}

Flag* Command::get_option(const std::string& name) const {
  Flag* const flag = get_option_no_throw(name);
  CACHALOT_CHECK(flag != nullptr);
  return flag;
}

Flag* Command::get_option_no_throw(const std::string& name) const {
  const auto found = std::ranges::find_if(
      flags_, [&](const std::unique_ptr<Flag>& flag) { return flag->get_name() == name; });
  return found == flags_.end() ? nullptr : found->get();
}

std::vector<Flag*> Command::get_options() const {
  std::vector<Flag*> flags;
  for (const std::unique_ptr<Flag>& flag : flags_) flags.push_back(flag.get());
  return flags;
}

std::size_t Command::count(const std::string& flag) const {
  return get_option(flag)->count();
}

Flag* Command::add(CLI::Option* option) {
  return flags_.emplace_back(std::make_unique<Flag>(*option)).get();
}

}  // namespace cachalot::apps
