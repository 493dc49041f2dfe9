#include "plot_allocations.h"

#include <algorithm>
#include <cmath>

#include "plot.h"

namespace cachalot::apps {
namespace {

constexpr double kWidth = 1120, kHeight = 660;
constexpr double kLeft = 116, kRight = 860, kTop = 112, kBottom = 560;
constexpr double kLegendHeight = 58;

struct Axes {
  double events = 1;               // at the right end
  double top_bytes = 1, step = 1;  // of the grid

  double x(double event) const { return kLeft + event / events * (kRight - kLeft); }
  double y(double bytes) const { return kBottom - bytes / top_bytes * (kBottom - kTop); }
};

// At most eight steps of a power of two of bytes; events from 0 to the last.
Axes axes_for(std::span<const AllocLine> lines) {
  Axes axes;
  double top = 1;
  for (const AllocLine& line : lines) {
    for (const replay::AllocSample& sample : line.samples) {
      axes.events = std::max(axes.events, static_cast<double>(sample.events));
      top = std::max({top, static_cast<double>(sample.reserved_bytes),
                      static_cast<double>(sample.live_bytes)});
    }
  }
  axes.step = std::exp2(std::ceil(std::log2(top / 8)));
  axes.top_bytes = std::ceil(top / axes.step) * axes.step;
  return axes;
}

// 1, 2 or 5 times a power of ten, for at most eight steps.
double event_step(double events) {
  double step = 1;
  for (double decade = 1; events / step > 8; decade *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      step = digit * decade;
      if (events / step <= 8) break;
    }
  }
  return step;
}

void draw_axes(std::string& svg, const Axes& axes) {
  for (double bytes = 0; bytes <= axes.top_bytes; bytes += axes.step) {
    const double y = axes.y(bytes);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", kLeft, y, kRight, y,
        bytes == 0 ? "#888" : kPlotGrid);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%s</text>\n", kLeft - 10, y + 6,
        bytes_on_axis(bytes).c_str());
  }
  const double step = event_step(axes.events);
  for (double event = 0; event <= axes.events; event += step) {
    const double x = axes.x(event);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", x, kTop, x, kBottom,
        kPlotGrid);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", x, kBottom + 26,
        number_on_axis(event).c_str());
  }
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>time, in allocations and frees</text>\n",
      (kLeft + kRight) / 2, kBottom + 62);
}

// A sample is the most of the stretch of events that it ends: a step, so that peaks are as wide as they were.
template <class Bytes>
void draw_steps(std::string& svg, const Axes& axes, const AllocLine& line, const std::string& style,
                Bytes bytes_of) {
  add(svg, "<path fill='none' stroke='%s' %s d='M%.1f,%.1f",
      style_of_allocator(line.allocator).colour, style.c_str(), axes.x(0), axes.y(0));
  for (const replay::AllocSample& sample : line.samples) {
    add(svg, "V%.1fH%.1f", axes.y(static_cast<double>(bytes_of(sample))),
        axes.x(static_cast<double>(sample.events)));
  }
  svg += "'/>\n";
}

// Lines drawn first are wider: where others lie on them, their edges are seen.
std::string reserved_style(std::size_t number, std::size_t count) {
  std::string style;
  add(style, "stroke-width='%.1f' stroke-linejoin='round'",
      2.2 + 2.8 * static_cast<double>(count - 1 - number));
  return style;
}

// Mostly the same bytes for each allocator: dashes of one lie in the gaps of the others.
std::string active_style(std::size_t number, std::size_t count) {
  constexpr double kDash = 7;
  std::string style;
  add(style, "stroke-width='1.6' stroke-dasharray='%.0f %.0f' stroke-dashoffset='%.0f'", kDash,
      kDash * static_cast<double>(std::max<std::size_t>(1, count - 1)),
      -kDash * static_cast<double>(number));
  return style;
}

void draw_legend(std::string& svg, std::span<const AllocLine> lines) {
  constexpr double kX = kRight + 28;
  double y = kTop + 16;
  for (std::size_t i = 0; i < lines.size(); ++i, y += kLegendHeight) {
    const AllocLine& line = lines[i];
    std::uint64_t peak = 0;
    for (const replay::AllocSample& sample : line.samples)
      peak = std::max(peak, sample.reserved_bytes);
    const char* const colour = style_of_allocator(line.allocator).colour;
    add(svg, "<path d='M%.1f,%.1fh30' stroke='%s' %s/>\n", kX, y - 6, colour,
        reserved_style(i, lines.size()).c_str());
    add(svg, "<text x='%.1f' y='%.1f' fill='%s'>%s</text>\n", kX + 40, y, colour,
        escaped(line.allocator).c_str());
    add(svg, "<text x='%.1f' y='%.1f' font-size='15' fill='%s'>at most %s</text>\n", kX + 40,
        y + 20, kPlotQuiet, bytes_on_axis(static_cast<double>(peak)).c_str());
  }
  add(svg, "<text x='%.1f' y='%.1f' font-size='15' fill='%s'>solid: reserved</text>\n", kX, y + 6,
      kPlotQuiet);
  add(svg, "<text x='%.1f' y='%.1f' font-size='15' fill='%s'>dashed: active, as asked for</text>\n",
      kX, y + 26, kPlotQuiet);
}

}  // namespace

std::string plot_allocations(std::span<const AllocLine> lines, const AllocPlot& plot) {
  const Axes axes = axes_for(lines);
  std::string svg = begin_plot(kWidth, kHeight, kLeft, plot.title, plot.subtitle);
  draw_axes(svg, axes);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    draw_steps(svg, axes, lines[i], reserved_style(i, lines.size()),
               [](const replay::AllocSample& sample) { return sample.reserved_bytes; });
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    draw_steps(svg, axes, lines[i], active_style(i, lines.size()),
               [](const replay::AllocSample& sample) { return sample.live_bytes; });
  }
  draw_legend(svg, lines);
  return svg + "</svg>\n";
}

}  // namespace cachalot::apps
