// The options of a plug-in's URI: "module=M&class=C&path=DIR&threads=N&name=value".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call.h"

namespace cachalot::python_storage {

struct Options {
  std::string module, class_name;
  std::string path;         // folders for Python's module search path, separated by ":"
  std::size_t threads = 4;  // which may be in the class simultaneously
  std::vector<std::pair<std::string, std::string>> rest;  // for the class

  // @errors CACHALOT_STORAGE_INVALID_ARGUMENT: names the option
  static Outcome parse(std::string_view text, Options& options);
};

}  // namespace cachalot::python_storage
