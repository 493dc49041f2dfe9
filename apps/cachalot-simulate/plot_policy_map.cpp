#include "plot_policy_map.h"

#include <algorithm>
#include <array>

#include "line_plot.h"
#include "plot.h"

namespace cachalot::apps {
namespace {

constexpr double kCellWidth = 104, kCellHeight = 54, kTop = 92;
constexpr double kLetter = 10;        // at most so wide
constexpr double kTitleLetter = 8.5;  // in the mean

std::string colour_of(std::size_t row) {
  return kLineColours[row % kLineColours.size()];
}

// Stripes on white: of each row's colour, and after the last row grey ones for the legend.
std::string hatches(std::size_t rows) {
  std::string svg = "<defs>\n";
  for (std::size_t row = 0; row <= rows; ++row) {
    add(svg,
        "<pattern id='tie%zu' width='8' height='8' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><rect width='2' height='8' fill='%s' "
        "fill-opacity='0.25'/></pattern>\n",
        row, row == rows ? kPlotQuiet : colour_of(row).c_str());
  }
  return svg + "</defs>\n";
}

void draw_cell(std::string& svg, double x, double y, double width, double height,
               const PolicyMap& map, std::size_t cell) {
  const std::optional<sim::Winner> winner = map.winner_of(cell);
  std::string fill = "#f4f4f4", opacity = "1", line = "#cccccc";
  if (winner && winner->is_tie()) {
    fill = "#ffffff";
    line = kPlotQuiet;
  } else if (winner && winner->is_near_tie()) {
    fill = "url(#tie" + std::to_string(winner->row) + ")";
    line = colour_of(winner->row);
  } else if (winner) {
    fill = line = colour_of(winner->row);
    opacity = "0.5";
  }
  add(svg,
      "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s' fill-opacity='%s' "
      "stroke='%s' stroke-opacity='0.6'/>\n",
      x + 1, y + 1, width - 2, height - 2, fill.c_str(), opacity.c_str(), line.c_str());
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", x + width / 2,
      y + height / 2 + 6, map.text_of(cell).c_str());
}

}  // namespace

std::string draw_policy_map(const std::string& trace, const PolicyMap& map) {
  const auto longest = [](const std::vector<std::string>& texts) {
    std::size_t most = 0;
    for (const std::string& text : texts) most = std::max(most, text.size());
    return kLetter * static_cast<double>(most);
  };
  // No cell is smaller than its text, and no axis shorter than its title.
  const auto size_of_cell = [&](const MapAxis& axis, double least) {
    return std::max(least, kTitleLetter * static_cast<double>(axis.title.size()) /
                               static_cast<double>(axis.values.size()));
  };
  const double cell_width =
      size_of_cell(map.axes[0], std::max(kCellWidth, longest(map.axes[0].values) + 12));
  const double cell_height = size_of_cell(map.axes[1], kCellHeight);
  const double left = std::max(96.0, 72 + longest(map.axes[1].values));
  const double right = left + cell_width * static_cast<double>(map.columns());
  const double bottom = kTop + cell_height * static_cast<double>(map.lines());
  std::vector<std::string> legend;
  for (std::size_t row = 0; row < map.names.size(); ++row) {
    legend.push_back(letter_of(row) + "  " + map.names[row] + " (" +
                     std::to_string(map.wins_of(row)) + ")");
  }
  const double legend_bottom =
      kTop + 30 * static_cast<double>(legend.size() + (map.ties() != 0 ? 2 : 1));
  const double width = std::max({right + 70 + longest(legend), right + 300, 900.0});
  const double height = std::max(bottom + 84, legend_bottom + 20);
  std::string svg =
      begin_plot(width, height, left, "Which policy has the " + std::string(map.figure->title),
                 "how much " + std::string(map.figure->margin) + " than the second's, on " +
                     name_in_title(trace));
  svg += hatches(map.names.size());
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    const double x = left + cell_width * static_cast<double>(cell % map.columns());
    const double y = bottom - cell_height * static_cast<double>(cell / map.columns() + 1);
    draw_cell(svg, x, y, cell_width, cell_height, map, cell);
  }
  for (std::size_t i = 0; i < map.columns(); ++i) {
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>",
        left + cell_width * (static_cast<double>(i) + 0.5), bottom + 26);
    svg += escaped(map.axes[0].values[i]) + "</text>\n";
  }
  for (std::size_t i = 0; i < map.lines(); ++i) {
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>", left - 12,
        bottom - cell_height * (static_cast<double>(i) + 0.5) + 6);
    svg += escaped(map.axes[1].values[i]) + "</text>\n";
  }
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", (left + right) / 2,
      bottom + 60, map.axes[0].title.c_str());
  add(svg, "<text transform='translate(28 %.1f) rotate(-90)' text-anchor='middle'>%s</text>\n",
      (kTop + bottom) / 2, map.axes[1].title.c_str());
  for (std::size_t row = 0; row < legend.size(); ++row) {
    const double y = kTop + 6 + 30 * static_cast<double>(row);
    add(svg,
        "<rect x='%.1f' y='%.1f' width='24' height='18' fill='%s' fill-opacity='0.5' "
        "stroke='%s'/>\n<text x='%.1f' y='%.1f'>",
        right + 20, y, colour_of(row).c_str(), colour_of(row).c_str(), right + 54, y + 15);
    svg += escaped(legend[row]) + "</text>\n";
  }
  const double y = kTop + 6 + 30 * static_cast<double>(legend.size());
  add(svg,
      "<rect x='%.1f' y='%.1f' width='24' height='18' fill='url(#tie%zu)' stroke='%s'/>\n"
      "<text x='%.1f' y='%.1f'>≈  less than 1 %%</text>\n",
      right + 20, y, legend.size(), kPlotQuiet, right + 54, y + 15);
  if (map.ties() != 0) {
    add(svg,
        "<rect x='%.1f' y='%.1f' width='24' height='18' fill='#ffffff' stroke='%s'/>\n"
        "<text x='%.1f' y='%.1f'>=  equal (%zu)</text>\n",
        right + 20, y + 30, kPlotQuiet, right + 54, y + 45, map.ties());
  }
  return svg + "</svg>\n";
}

}  // namespace cachalot::apps
