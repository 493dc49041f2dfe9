#include "slot_choice.h"

#include <algorithm>

namespace cachalot::llama {

std::size_t reusable_tokens(std::span<const Token> cached, std::span<const Token> prompt,
                            std::size_t block_tokens) {
  if (prompt.empty()) return 0;
  const auto differ = std::mismatch(cached.begin(), cached.end(), prompt.begin(), prompt.end());
  const auto equal = static_cast<std::size_t>(differ.second - prompt.begin());
  return std::min(equal, prompt.size() - 1) / block_tokens * block_tokens;
}

std::optional<std::size_t> choose_slot(std::span<const SlotState> slots,
                                       std::span<const Token> prompt, std::size_t block_tokens) {
  std::optional<std::size_t> best;
  std::size_t best_tokens = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].is_busy) continue;
    const std::size_t tokens = reusable_tokens(slots[i].cached, prompt, block_tokens);
    if (!best || tokens > best_tokens ||
        (tokens == best_tokens && slots[i].last_used < slots[*best].last_used)) {
      best = i;
      best_tokens = tokens;
    }
  }
  return best;
}

}  // namespace cachalot::llama
