#include "vmm/vtensor/idle_vtensors.h"

#include <algorithm>

namespace cachalot::vmm {

bool IdleVTensors::is_reusable(const VTensor& vtensor) {
  return vtensor.shared_tokens_ == 0 && !vtensor.planes_.has_read_only() &&
         !vtensor.planes_.is_damaged();
}

void IdleVTensors::add(VTensor* vtensor) {
  const std::uint64_t chunks = vtensor->planes_.chunks();
  (chunks == 0 ? empty_ : with_chunks_).push_back(vtensor);
  chunks_ += chunks;
}

VTensor* IdleVTensors::take(List::iterator place) {
  VTensor* const vtensor = *place;
  chunks_ -= vtensor->planes_.chunks();
  with_chunks_.erase(place);
  return vtensor;
}

VTensor* IdleVTensors::take_best(std::uint64_t tokens, std::uint64_t most_chunks) {
  auto best = with_chunks_.end();
  bool best_covers = false;
  for (auto each = with_chunks_.begin(); each != with_chunks_.end(); ++each) {
    const std::uint64_t chunks = (*each)->planes_.chunks();
    if (chunks > most_chunks || !is_reusable(**each)) continue;
    const bool covers = (*each)->ready_tokens() >= tokens;
    if (best != with_chunks_.end()) {
      const std::uint64_t best_chunks = (*best)->planes_.chunks();
      const bool is_better =
          covers ? !best_covers || chunks < best_chunks : !best_covers && chunks > best_chunks;
      if (!is_better) continue;
    }
    best = each;
    best_covers = covers;
  }
  return best == with_chunks_.end() ? nullptr : take(best);
}

VTensor* IdleVTensors::take_empty() {
  if (empty_.empty()) return nullptr;
  VTensor* const vtensor = empty_.back();
  empty_.pop_back();
  return vtensor;
}

VTensor* IdleVTensors::take_oldest() {
  if (with_chunks_.empty()) return nullptr;
  const auto unusable = std::find_if(with_chunks_.begin(), with_chunks_.end(),
                                     [](VTensor* each) { return !is_reusable(*each); });
  return take(unusable != with_chunks_.end() ? unusable : with_chunks_.begin());
}

bool IdleVTensors::has_unusable() const {
  return std::any_of(with_chunks_.begin(), with_chunks_.end(),
                     [](VTensor* each) { return !is_reusable(*each); });
}

}  // namespace cachalot::vmm
