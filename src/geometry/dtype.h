// The type of one number in a KV cache.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string_view>

namespace cachalot::geometry {

enum class DType : std::uint32_t { kF32, kF16, kBf16, kF8, kI8 };

// Bytes of one number; 0 for a value that is none of the enumerators.
constexpr std::uint64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kF8:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// "f32", "f16", "bf16", "f8", "i8".
const char* dtype_name(DType dtype);

// Upper and lower case are the same.
// @errors kInvalidArgument: no such type; the message lists those there are
Result<DType> parse_dtype(std::string_view name);

}  // namespace cachalot::geometry
