#include "base/c_boundary.h"

#include <algorithm>
#include <cstdio>

namespace cachalot::base {
namespace {

thread_local char last_message[Error::kMessageBytes] = "";

}  // namespace

cachalot_code fail(const Error& error) {
  std::snprintf(last_message, sizeof last_message, "%s", error.message);
  return static_cast<cachalot_code>(error.code);
}

const char* last_failure() {
  return last_message;
}

Status check_struct_size(std::uint32_t size, const char* what, std::span<const std::uint32_t> ends,
                         std::size_t alignment) {
  constexpr std::uint32_t kMost = 4096;
  const std::uint32_t all = ends.back();
  if (size < ends.front()) {
    return Error::make(Code::kInvalidArgument,
                       "%s: struct_size %u, expected %u, the size of this struct", what, size, all);
  }
  if (size > all) {
    if (size <= kMost && size % alignment == 0) return {};
    return Error::make(
        Code::kInvalidArgument,
        "%s: struct_size %u, expected %u, or of a later version a multiple of %zu up to %u", what,
        size, all, alignment, kMost);
  }
  const auto end = std::lower_bound(ends.begin(), ends.end(), size);
  if (*end == size) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: struct_size %u ends within the field of bytes %u to %u, expected %u, or "
                     "of an earlier version "
                     "the end of a field",
                     what, size, end[-1], *end - 1, all);
}

}  // namespace cachalot::base
