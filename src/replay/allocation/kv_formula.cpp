#include "replay/allocation/kv_formula.h"

#include <algorithm>

namespace cachalot::replay {

std::uint64_t KvUnits::units(std::uint64_t tokens) const {
  std::uint64_t sum = 0;
  for (const Width& width : widths) {
    sum += width.planes * ((tokens * width.token_bytes + unit_bytes - 1) / unit_bytes);
  }
  return sum;
}

std::uint64_t KvUnits::full_units(std::uint64_t tokens) const {
  std::uint64_t sum = 0;
  for (const Width& width : widths) sum += width.planes * (tokens * width.token_bytes / unit_bytes);
  return sum;
}

void KvFormula::set(Slot& slot, std::uint64_t units) {
  units_ += units - slot.units;
  slot.units = units;
}

// An id stands for its whole prefix, so the known ones come first.
std::uint64_t KvFormula::known_blocks(const Prompt& prompt) const {
  const auto unknown = std::find_if(prompt.ids.begin(), prompt.ids.end(),
                                    [&](std::uint64_t id) { return !known_.contains(id); });
  return static_cast<std::uint64_t>(unknown - prompt.ids.begin());
}

Status KvFormula::begin(std::size_t number, const Prompt& prompt) {
  if (number >= slots_.size()) slots_.resize(number + 1);
  Slot& slot = slots_[number];
  if (options_.static_tokens != 0) {
    set(slot, options_.units.units(options_.static_tokens));
    return {};
  }
  slot.total_tokens = prompt.total_tokens;
  slot.shared_tokens = 0;
  if (options_.block_tokens != 0 && prompt.tokens > 1) {
    slot.shared_tokens = std::min(known_blocks(prompt) * options_.block_tokens, prompt.tokens - 1);
  }
  const std::uint64_t shared = options_.units.full_units(slot.shared_tokens);
  shared_units_ += shared;
  shared_tokens_ += slot.shared_tokens;
  set(slot, options_.units.units(prompt.tokens) - shared);
  return {};
}

// The first request that computes a block records it.
Status KvFormula::computed(std::size_t number, const Prompt& prompt) {
  if (options_.block_tokens == 0) return {};
  const std::uint64_t blocks = prompt.ids.size(), known = known_blocks(prompt);
  if (blocks == known) return {};
  slots_[number].recorded = options_.units.units(blocks * options_.block_tokens) -
                            options_.units.full_units(known * options_.block_tokens);
  known_.insert(prompt.ids.begin(), prompt.ids.end());
  return {};
}

Status KvFormula::grow(std::size_t number, std::uint64_t tokens) {
  if (options_.static_tokens != 0) return {};
  Slot& slot = slots_[number];
  const std::uint64_t with_ahead = std::min(tokens + options_.ahead_tokens, slot.total_tokens);
  set(slot, options_.units.units(with_ahead) - options_.units.full_units(slot.shared_tokens));
  return {};
}

void KvFormula::end(std::size_t number) {
  if (options_.static_tokens != 0) return;
  Slot& slot = slots_[number];
  set(slot, slot.recorded);
  slot = {};  // what is recorded stays
}

}  // namespace cachalot::replay
