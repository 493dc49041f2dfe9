#include <cachalot/geometry.h>

#include <strings.h>

#include <string>

namespace cachalot {
namespace {

struct Name {
  DType dtype;
  std::string_view name;
};
constexpr Name kNames[] = {{DType::kF32, "f32"},
                           {DType::kF16, "f16"},
                           {DType::kBf16, "bf16"},
                           {DType::kF8, "f8"},
                           {DType::kI8, "i8"}};

}  // namespace

const char* dtype_name(DType dtype) {
  for (const Name& known : kNames) {
    if (known.dtype == dtype) return known.name.data();
  }
  return "unknown";
}

Result<DType> parse_dtype(std::string_view name) {
  std::string list;
  for (const Name& known : kNames) {
    if (known.name.size() == name.size() &&
        strncasecmp(known.name.data(), name.data(), name.size()) == 0) {
      return known.dtype;
    }
    list += (list.empty() ? "" : ", ") + std::string(known.name);
  }
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "dtype: %s is unknown, expected one of: %s",
                     shown.c_str(), list.c_str());
}

}  // namespace cachalot
