#include "keywords.h"

#include <string>
#include <string_view>

namespace cachalot::python {
namespace {

// What stands before a colon that is in no brackets but the outermost.
nb::list names_of(std::string_view signature) {
  nb::list names;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < signature.size(); ++i) {
    const char c = signature[i];
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (depth != 1) continue;
    if (c == '(' || c == ' ' || c == ',') begin = i + 1;
    if (c == ':') names.append(nb::str(&signature[begin], i - begin));
  }
  return names;
}

}  // namespace

void refuse_unknown(const nb::kwargs& unknown, const char* call, const char* signature) {
  for (const auto [key, value] : unknown) {
    const nb::list names = names_of(signature);
    const nb::object near =
        nb::module_::import_("difflib").attr("get_close_matches")(key, names, 1);
    std::string message = std::string(call) + ": unexpected keyword '" + nb::str(key).c_str() + "'";
    if (nb::len(near) != 0) {
      message += " (did you mean '" + std::string(nb::str(nb::object(near[0])).c_str()) + "'?)";
    } else {
      message += ", expected one of " +
                 std::string(nb::str(nb::object(nb::str(", ").attr("join")(names))).c_str());
    }
    throw nb::type_error(message.c_str());
  }
}

}  // namespace cachalot::python
