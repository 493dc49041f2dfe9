#include "help.h"

#include <sstream>

namespace cachalot::apps {
namespace {

bool is_explained_before(const CLI::Option& option, bool is_positional) {
  return !is_positional && option.get_positional();
}

}  // namespace

std::string values_of(const CLI::Option& option, bool is_positional) {
  if (!is_explained_before(option, is_positional))
    return CLI::Formatter().make_option_opts(&option);
  const bool takes_several = option.get_expected_max() == CLI::detail::expected_max_vector_size;
  return " " + option.get_type_name() + (takes_several ? " ..." : "");
}

std::string description_of(const CLI::Option& option, bool is_positional) {
  if (!is_explained_before(option, is_positional)) return option.get_description();
  return "the same as the argument " + option.get_name(true);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::ostringstream out;
  CLI::detail::format_help(
      out, make_option_name(option, is_positional) + values_of(*option, is_positional),
      description_of(*option, is_positional), column_width_);
  return out.str();
}

}  // namespace cachalot::apps
