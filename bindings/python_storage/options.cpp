#include "options.h"

#include <algorithm>
#include <charconv>

namespace cachalot::python_storage {
namespace {

constexpr std::size_t kMostThreads = 64;

Outcome refuse(std::string why) {
  return {CACHALOT_STORAGE_INVALID_ARGUMENT, std::move(why)};
}

}  // namespace

Outcome Options::parse(std::string_view text, Options& options) {
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const std::size_t equals = std::min(one.find('='), one.size());
    const std::string name(one.substr(0, equals));
    const std::string value(one.substr(std::min(one.size(), equals + 1)));
    if (name == "module") {
      options.module = value;
    } else if (name == "class") {
      options.class_name = value;
    } else if (name == "path") {
      options.path = value;
    } else if (name == "threads") {
      const char* const end = value.data() + value.size();
      const auto [stop, failed] = std::from_chars(value.data(), end, options.threads);
      if (failed != std::errc() || stop != end || options.threads < 1 ||
          options.threads > kMostThreads)
        return refuse("threads is \"" + value + "\", expected a number from 1 to 64");
    } else {
      options.rest.emplace_back(name, value);
    }
  }
  if (options.module.empty()) return refuse("no option module, expected module=NAME&class=NAME");
  if (options.class_name.empty()) return refuse("no option class, expected module=NAME&class=NAME");
  return {};
}

}  // namespace cachalot::python_storage
