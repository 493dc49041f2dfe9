// Tokens of a request that its hit blocks save: the last block may be partial.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cachalot::cache_sim {

// min(blocks * block_tokens, input_tokens), whatever their size.
inline std::uint64_t hit_tokens(std::uint64_t blocks, std::uint64_t block_tokens,
                                std::uint64_t input_tokens) {
  std::uint64_t tokens = 0;
  if (__builtin_mul_overflow(blocks, block_tokens, &tokens)) return input_tokens;
  return std::min(tokens, input_tokens);
}

}  // namespace cachalot::cache_sim
