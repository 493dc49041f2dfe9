#include "sim/cluster/winner.h"

#include <algorithm>
#include <cmath>

namespace cachalot::sim {

std::optional<Winner> winner_of(std::span<const double> figures, Better better) {
  const auto best_without = [&](std::optional<std::size_t> left_out) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < figures.size(); ++i) {
      if (std::isnan(figures[i]) || i == left_out) continue;
      const bool is_better = !best || (better == Better::kSmaller ? figures[i] < figures[*best]
                                                                  : figures[i] > figures[*best]);
      if (is_better) best = i;
    }
    return best;
  };
  const std::optional<std::size_t> best = best_without(std::nullopt);
  if (!best) return std::nullopt;
  Winner winner{.row = *best, .second = best_without(best)};
  winner.equals = static_cast<std::size_t>(std::ranges::count(figures, figures[*best]));
  if (!winner.second) return winner;
  const double first = figures[winner.row], second = figures[*winner.second];
  if (first == second) {
    winner.margin = 0;
  } else if (second != 0) {
    winner.margin = std::abs(first - second) / second;
  }
  return winner;
}

}  // namespace cachalot::sim
