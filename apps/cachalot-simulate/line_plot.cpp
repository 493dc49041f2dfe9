#include "line_plot.h"

#include <algorithm>
#include <cmath>

namespace cachalot::apps {
namespace {

constexpr double kWidth = 1120, kHeight = 620;
constexpr double kLetter = 10.5;  // at most so wide, of a name beside its line
constexpr double kLeft = 96, kRight = 860, kTop = 104, kBottom = 530;

// A step of 1, 2 or 5 times a power of ten, of which about six reach `top`.
double step_for(double top) {
  const double power = std::pow(10, std::floor(std::log10(top / 6)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (top / (digit * power) <= 6) return digit * power;
  }
  return 10 * power;
}

// Where values lie in the drawing.
struct Scale {
  double low_x = 0, top_x = 0, top_y = 0;
  PlotAxis axis = PlotAxis::kLinear;

  double x(double value) const {
    double part = value / top_x;
    if (axis == PlotAxis::kDoubling) {
      part = low_x == top_x ? 0.5 : std::log(value / low_x) / std::log(top_x / low_x);
    }
    return kLeft + part * (kRight - kLeft);
  }
  double y(double value) const { return kBottom - value / top_y * (kBottom - kTop); }
};

Scale scale_of(const std::vector<PlotLine>& lines, PlotAxis axis) {
  Scale scale{.axis = axis};
  for (const PlotLine& line : lines) {
    for (const PlotPoint& point : line.points) {
      scale.low_x = scale.low_x == 0 ? point.x : std::min(scale.low_x, point.x);
      scale.top_x = std::max(scale.top_x, point.x);
      scale.top_y = std::max(scale.top_y, point.y);
    }
  }
  if (scale.top_x <= 0) scale.top_x = 1;
  if (scale.top_y <= 0) scale.top_y = 1;
  return scale;
}

std::vector<double> ticks_of(const std::vector<PlotLine>& lines, const Scale& scale) {
  std::vector<double> ticks;
  if (scale.axis == PlotAxis::kDoubling) {
    if (lines.empty()) return ticks;
    for (const PlotPoint& point : lines.front().points) ticks.push_back(point.x);
    return ticks;
  }
  for (double x = 0; x <= scale.top_x * 1.0001; x += step_for(scale.top_x)) ticks.push_back(x);
  return ticks;
}

void draw_axes(std::string& svg, const Scale& scale, const std::vector<double>& ticks,
               const char* x_label, const char* y_label) {
  for (double y = 0; y <= scale.top_y * 1.0001; y += step_for(scale.top_y)) {
    const double at = scale.y(y);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", kLeft, at, kRight, at,
        y == 0 ? "#888" : kPlotGrid);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%.3g</text>\n", kLeft - 10, at + 6, y);
  }
  for (const double x : ticks) {
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.4g</text>\n", scale.x(x), kBottom + 26,
        x);
  }
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", (kLeft + kRight) / 2,
      kBottom + 60, x_label);
  add(svg, "<text transform='translate(28 %.1f) rotate(-90)' text-anchor='middle'>%s</text>\n",
      (kTop + kBottom) / 2, y_label);
}

}  // namespace

std::string draw_lines(const std::string& title, const std::string& subtitle, const char* x_label,
                       const char* y_label, const std::vector<PlotLine>& lines, PlotAxis x_axis) {
  const Scale scale = scale_of(lines, x_axis);
  double width = kWidth;
  for (const PlotLine& line : lines) {
    width = std::max(width, kRight + 62 + kLetter * static_cast<double>(line.name.size()));
  }
  std::string svg = begin_plot(width, kHeight, kLeft, title, subtitle);
  draw_axes(svg, scale, ticks_of(lines, scale), x_label, y_label);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    // Beyond the palette colours repeat with dashes.
    const char* const colour = kLineColours[i % kLineColours.size()];
    const char* const dashes = i < kLineColours.size() ? "" : " stroke-dasharray='6 4'";
    add(svg,
        "<polyline fill='none' stroke='%s' stroke-width='2'%s stroke-linejoin='round' points='",
        colour, dashes);
    for (const PlotPoint& point : lines[i].points) {
      add(svg, "%.1f,%.1f ", scale.x(point.x), scale.y(point.y));
    }
    svg += "'/>\n";
    const double y = kTop + 10 + 24 * static_cast<double>(i);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s' stroke-width='3'%s/>\n",
        kRight + 16, y, kRight + 44, y, colour, dashes);
    add(svg, "<text x='%.1f' y='%.1f'>", kRight + 52, y + 6);
    svg += escaped(lines[i].name) + "</text>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace cachalot::apps
