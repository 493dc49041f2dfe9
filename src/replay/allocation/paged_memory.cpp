#include "replay/allocation/paged_memory.h"

namespace cachalot::replay {

Status PagedMemory::begin(std::size_t number, const Prompt& prompt) {
  if (number >= slots_.size()) slots_.resize(number + 1);
  return grow(number, prompt.tokens);
}

Status PagedMemory::grow(std::size_t number, std::uint64_t tokens) {
  std::vector<vtensor::Chunk>& pages = slots_[number];
  const std::uint64_t need = (tokens + kPageTokens - 1) / kPageTokens;
  return need <= pages.size() ? Status() : store_.take(need - pages.size(), pages);
}

void PagedMemory::end(std::size_t number) {
  store_.drop(slots_[number]);
  slots_[number].clear();
}

}  // namespace cachalot::replay
