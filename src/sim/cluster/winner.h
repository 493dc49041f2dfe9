// Which of several rows has the best figure, and by how much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace cachalot::sim {

enum class Better : std::uint8_t { kSmaller, kLarger };

// Differences below it are no result: other seeds or a slightly different trace may turn them.
inline constexpr double kNearTie = 0.01;

struct Winner {
  std::size_t row = 0;
  std::optional<std::size_t> second = {};  // none: no other row has a figure
  std::size_t equals = 1;                  // rows with the best figure
  // |winner - second| / second. None: there is no second, or its figure is 0 and the winner's is not.
  std::optional<double> margin = {};

  bool is_tie() const { return equals > 1; }
  // Also a tie.
  bool is_near_tie() const { return margin && *margin < kNearTie; }
};

// @param  figures  one of each row, none below 0; NaN: the row has none and cannot win
// @return none: no row has a figure. In a tie `row` is the lowest of the equal rows, with a margin of 0.
std::optional<Winner> winner_of(std::span<const double> figures, Better better);

}  // namespace cachalot::sim
