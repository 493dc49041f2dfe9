// A drawing of lines over one axis, with their names beside them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plot.h"

namespace cachalot::apps {

// Okabe and Ito's palette.
inline constexpr std::array kLineColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                            "#e69f00", "#56b4e9", "#7a5195", "#000000"};

struct PlotLine {
  std::string name;
  std::vector<PlotPoint> points;
};

enum class PlotAxis : std::uint8_t {
  kLinear,
  kDoubling,  // logarithmic, with a tick at each point of the first line; all x are above 0
};

// An SVG document. Both axes begin at 0, but for an x axis that doubles.
std::string draw_lines(const std::string& title, const std::string& subtitle, const char* x_label,
                       const char* y_label, const std::vector<PlotLine>& lines,
                       PlotAxis x_axis = PlotAxis::kLinear);

}  // namespace cachalot::apps
