// Which slot takes a request: the one whose own cache spares most of the prompt, and of several such
// the one that was idle longest, whose cache is least likely to be asked for again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace cachalot::llama {

using Token = std::int32_t;

struct SlotState {
  bool is_busy = false;
  std::uint64_t last_used = 0;    // counts requests
  std::span<const Token> cached;  // the tokens whose KV it holds, whole blocks
};

// How many tokens at the front of `prompt` need not be computed with `cached` at hand: whole
// blocks, and never all of the prompt, since its last token has to be computed for its logits.
std::size_t reusable_tokens(std::span<const Token> cached, std::span<const Token> prompt,
                            std::size_t block_tokens);

// @return nothing where all are busy
std::optional<std::size_t> choose_slot(std::span<const SlotState> slots,
                                       std::span<const Token> prompt, std::size_t block_tokens);

}  // namespace cachalot::llama
