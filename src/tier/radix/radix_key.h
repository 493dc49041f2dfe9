// What is looked up in a radix tree: a sequence of tokens and what separates it from equal sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot::tier {

using Token = std::uint32_t;

struct RadixKey {
  std::span<const Token> tokens = {};
  std::string_view extra = {};  // adapter, salt, images; may be empty

  // Keeps what is not tokens; `count` <= tokens.size().
  RadixKey first(std::size_t count) const { return {tokens.first(count), extra}; }
};

// How many tokens two sequences have in common from the start.
// @cost memcmp's speed
std::size_t common_tokens(std::span<const Token> one, std::span<const Token> other);

}  // namespace cachalot::tier
