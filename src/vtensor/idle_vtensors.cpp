#include "vtensor/idle_vtensors.h"

namespace cachalot::vtensor {

void IdleVTensors::add(VTensor* vtensor) {
  const MappedPlanes& planes = vtensor->planes_;
  const Idle idle{.vtensor = vtensor, .chunks = planes.chunks()};
  const bool is_reusable =
      vtensor->shared_tokens_ == 0 && !planes.has_read_only() && !planes.is_damaged();
  (idle.chunks == 0 ? empty_ : is_reusable ? reusable_ : unusable_).push_back(idle);
  chunks_ += idle.chunks;
}

VTensor* IdleVTensors::take(List& list, List::iterator place) {
  VTensor* const vtensor = place->vtensor;
  chunks_ -= place->chunks;
  list.erase(place);
  return vtensor;
}

VTensor* IdleVTensors::take_best(std::uint64_t tokens, std::uint64_t most_chunks) {
  auto best = reusable_.end();
  bool best_covers = false;
  for (auto each = reusable_.begin(); each != reusable_.end(); ++each) {
    if (each->chunks > most_chunks) continue;
    const bool covers = each->vtensor->ready_tokens() >= tokens;
    if (best != reusable_.end()) {
      const bool is_better = covers ? !best_covers || each->chunks < best->chunks
                                    : !best_covers && each->chunks > best->chunks;
      if (!is_better) continue;
    }
    best = each;
    best_covers = covers;
  }
  return best == reusable_.end() ? nullptr : take(reusable_, best);
}

VTensor* IdleVTensors::take_empty() {
  return empty_.empty() ? nullptr : take(empty_, std::prev(empty_.end()));
}

VTensor* IdleVTensors::take_oldest() {
  if (!unusable_.empty()) return take(unusable_, unusable_.begin());
  return reusable_.empty() ? nullptr : take(reusable_, reusable_.begin());
}

}  // namespace cachalot::vtensor
