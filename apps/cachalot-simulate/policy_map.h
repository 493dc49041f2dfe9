// Which policy wins over two flags: every row of `cachalot simulate` in each cell of a map.
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster/winner.h"
#include "simulate_output.h"
#include "varying_flags.h"

namespace cachalot::apps {

// What rows are compared by.
struct MapFigure {
  const char* name;    // of --map-by
  const char* title;   // with its verb: "lowest mean TTFT"
  const char* margin;  // of the winner's figure to the second's: "lower", "higher"
  sim::Better better;
  bool needs_goals;
  double (*of)(const sim::ClusterReport&);  // NaN: such a row cannot win
};
// "mean_ttft", "p99_ttft", "goodput".
std::string map_figure_names(const char* separator);
// @errors kInvalidArgument: no such figure
Result<const MapFigure*> find_map_figure(const std::string& name);

struct PolicyMap {
  const MapFigure* figure = nullptr;
  std::array<MapAxis, 2> axes;     // from left to right, from bottom to top
  std::vector<std::string> names;  // of the rows of a cell
  std::vector<SimulateRow> rows;   // all of the first cell, then of the next to its right

  std::size_t columns() const { return axes[0].values.size(); }
  std::size_t lines() const { return axes[1].values.size(); }
  std::size_t cells() const { return columns() * lines(); }
  std::array<FlagValue, 2> values_of(std::size_t cell) const {
    return {{{axes[0].flag, axes[0].values[cell % columns()]},
             {axes[1].flag, axes[1].values[cell / columns()]}}};
  }
  std::span<const SimulateRow> rows_of(std::size_t cell) const {
    return std::span(rows).subspan(cell * names.size(), names.size());
  }
  // None: no row has a figure.
  std::optional<sim::Winner> winner_of(std::size_t cell) const;
  // Cells that the row wins alone, and cells that no row does: equal rows are best.
  std::size_t wins_of(std::size_t row) const;
  std::size_t ties() const;
  // The rows that are best in a cell: more than one in a tie.
  std::vector<std::size_t> best_of(std::size_t cell) const;
  // The winner's letter and its margin, in percent: "B 12 %"; "≈B 0.4 %" near a tie; "=AB" in one; "-" without a
  // winner.
  std::string text_of(std::size_t cell) const;
};

// Rows are told apart by a letter.
inline constexpr std::size_t kMostMapRows = 26;
std::string letter_of(std::size_t row);

// What tells a row from others of its cell, and is the same in all cells.
std::string name_in_map(const SimulateRow& row);

void print_policy_map(std::FILE* out, const PolicyMap& map);
// "map" has axes and cells, "rows" all rows, each with its "cell".
nlohmann::json json_of_policy_map(const PolicyMap& map);

}  // namespace cachalot::apps
