// What is looked up in a radix tree: a sequence of tokens and what separates it from equal sequences.
//
// The elements of a key are its tokens, or the pairs of neighbouring tokens (a bigram key, for a draft model
// whose KV at a place depends on the next token, too): n tokens are n - 1 pairs. Two equal runs of k pairs are two
// equal runs of k + 1 tokens, so a tree stores one token more for them and compares tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::tier {

using Token = std::uint32_t;

struct RadixKey {
  std::span<const Token> tokens = {};
  std::string_view extra = {};  // of frame_extra(), or empty
  bool is_bigram = false;

  // Tokens of a run of elements that belong to the next run, too.
  std::uint32_t shared_tokens() const { return is_bigram ? 1 : 0; }
  std::size_t elements() const {
    return tokens.size() < shared_tokens() ? 0 : tokens.size() - shared_tokens();
  }
  // These two keep what is not tokens; `count` <= elements().
  RadixKey first(std::size_t count) const {
    return {tokens.first(count == 0 ? 0 : count + shared_tokens()), extra, is_bigram};
  }
  RadixKey from(std::size_t count) const { return {tokens.subspan(count), extra, is_bigram}; }
};

// One text of several (adapter, salt, identifiers of images): different lists have different texts.
std::string frame_extra(std::initializer_list<std::string_view> parts);
std::string frame_extra(std::span<const std::string_view> parts);

// How many tokens two sequences have in common from the start.
// @cost memcmp's speed
std::size_t common_tokens(std::span<const Token> one, std::span<const Token> other);

// How many elements two keys have in common from the start, rounded down to whole pages; 0 if `extra` or the
// kind of element differs.
std::size_t common_elements(const RadixKey& one, const RadixKey& other, std::uint32_t page_tokens);

}  // namespace cachalot::tier
