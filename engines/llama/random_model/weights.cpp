#include "weights.h"

namespace cachalot::llama {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t stream_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t state = mixed(seed + 0x9e3779b97f4a7c15ull);
  for (const char c : name) state = mixed(state ^ static_cast<unsigned char>(c)) + 1;
  return state;
}

}  // namespace

void fill_random(std::span<float> weights, std::uint64_t seed, std::string_view name,
                 float deviation) {
  // Four uniform numbers of 16 bits: their sum has mean 131070 and deviation 65536 / sqrt(3).
  const float scale = deviation * 1.7320508F / 65536.0F;
  std::uint64_t state = stream_of(seed, name);
  for (float& weight : weights) {
    const std::uint64_t bits = mixed(state += 0x9e3779b97f4a7c15ull);
    const auto sum = static_cast<std::int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                               (bits >> 32 & 0xffff) + (bits >> 48));
    weight = static_cast<float>(sum - 131070) * scale;
  }
}

}  // namespace cachalot::llama
