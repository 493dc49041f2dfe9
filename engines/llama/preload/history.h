// What a sequence of a context holds, as far as the calls that filled it tell.
//
// Invariants
//   1. While it is known, the sequence holds tokens() at positions 0, 1, …
//   2. The first exact() of them, whole blocks, were computed block by block or came from the pool:
//      computed again they would be the same to the bit.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace cachalot::llama {

class History {
 public:
  bool is_known() const { return is_known_; }
  const std::vector<llama_token>& tokens() const { return tokens_; }
  std::size_t exact() const { return exact_; }

  void clear() { *this = History(); }
  // Until it is empty again.
  void forget() {
    clear();
    is_known_ = false;
  }

  void add(llama_token token, llama_pos position) {
    if (!is_known_) return;
    if (position < 0 || static_cast<std::size_t>(position) != tokens_.size()) return forget();
    tokens_.push_back(token);
  }

  // As llama_memory_seq_rm: positions [from, to), negative for all that way.
  void remove(llama_pos from, llama_pos to) {
    const std::size_t first = from < 0 ? 0 : static_cast<std::size_t>(from);
    if (first == 0 && to < 0) return clear();
    if (!is_known_ || first >= tokens_.size()) return;
    if (to >= 0 && static_cast<std::size_t>(to) <= first) return;
    if (to >= 0 && static_cast<std::size_t>(to) < tokens_.size()) return forget();  // a hole
    tokens_.resize(first);
    exact_ = std::min(exact_, first);
    if (first == 0) clear();
  }

  // As llama_memory_seq_cp, from `source` into this one.
  void copy(const History& source, llama_pos from, llama_pos to) {
    if (from > 0 || !tokens_.empty() || !is_known_ || !source.is_known_) return forget();
    *this = source;
    if (to >= 0) remove(to, -1);
  }

  // The sequence holds all of `tokens`, the first `exact` as said above.
  void set(std::span<const llama_token> tokens, std::size_t exact) {
    is_known_ = true;
    tokens_.assign(tokens.begin(), tokens.end());
    exact_ = exact;
  }

 private:
  bool is_known_ = true;
  std::vector<llama_token> tokens_;
  std::size_t exact_ = 0;
};

}  // namespace cachalot::llama
