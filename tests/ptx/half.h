// For tests: numbers of 16 bits, as bits: IEEE's (f16) and the upper half of a float (bf16).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace cachalot::ptx {

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// To the nearest, ties to even.
inline std::uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  float value = 0;
  if (exponent == 0x1f) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

inline std::uint16_t to_f16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float size = std::fabs(value);
  if (size == 0) return sign;
  if (size >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);  // rounds to infinity
  int exponent = 0;
  std::frexp(size, &exponent);
  // In units of the last of its ten bits; below 2^-14 they become no smaller.
  const int unit = (exponent < -13 ? -13 : exponent) - 11;
  const float units = std::nearbyint(std::ldexp(size, -unit));
  // A fraction that rounds up to 2048 becomes the next exponent by itself.
  const auto bits = static_cast<std::uint16_t>(static_cast<int>(units) + ((unit + 24) << 10));
  return static_cast<std::uint16_t>(sign | bits);
}

}  // namespace cachalot::ptx
