#include "plot_hit_rate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "plot.h"

namespace cachalot::apps {
namespace {

using cache_sim::HitRateRow;

constexpr double kWidth = 1120, kHeight = 660;
constexpr double kLeft = 96, kRight = 880, kTop = 112, kBottom = 560;
constexpr double kLabelHeight = 23;  // of a policy's name
constexpr double kNear = 3;          // pixels: lines that are nearer to each other cover each other

bool is_unlimited(const HitRateRow& row) {
  return row.cache.capacity_blocks == cache_sim::kUnlimitedBlocks;
}

// Capacities from the smallest to the largest with a little air, rates from 0 to a round percentage.
struct Axes {
  double low = 0, high = 1;  // exponents of ten, of blocks
  double top_rate = 0.1, rate_step = 0.1;

  double x(double blocks) const {
    return kLeft + (std::log10(blocks) - low) / (high - low) * (kRight - kLeft);
  }
  double y(double rate) const { return kBottom - rate / top_rate * (kBottom - kTop); }
};

Axes axes_for(std::span<const HitRateRow> rows) {
  Axes axes;
  bool any = false;
  double top = 0;
  for (const HitRateRow& row : rows) {
    top = std::max(top, row.hit_rate);
    if (is_unlimited(row)) continue;
    const double exponent = std::log10(static_cast<double>(row.cache.capacity_blocks));
    axes.low = any ? std::min(axes.low, exponent) : exponent;
    axes.high = any ? std::max(axes.high, exponent) : exponent;
    any = true;
  }
  if (axes.high - axes.low < 1) {
    const double middle = (axes.low + axes.high) / 2;
    axes.low = middle - 0.5;
    axes.high = middle + 0.5;
  }
  const double air = (axes.high - axes.low) * 0.03;
  axes.low -= air;
  axes.high += air;
  for (const double step : {0.01, 0.02, 0.05, 0.1, 0.2}) {
    axes.rate_step = step;
    if (top <= step * 6) break;
  }
  axes.top_rate = std::max(axes.rate_step, std::ceil(top / axes.rate_step - 1e-9) * axes.rate_step);
  return axes;
}

// Round values between the ends of an axis: 1, 2 and 5 times powers of ten, or powers of two, as many as
// can be read.
std::vector<double> ticks(double low, double high, bool is_binary) {
  std::vector<double> values;
  if (is_binary) {
    for (int e = -10; e < 128; ++e) values.push_back(std::exp2(e));
  } else {
    for (int e = -2; e < 22; ++e) {
      for (const double digit : {1.0, 2.0, 5.0}) values.push_back(digit * std::pow(10, e));
    }
  }
  std::erase_if(values, [&](double v) { return v < low || v > high; });
  constexpr std::size_t kMost = 9;
  if (values.size() > kMost && !is_binary) {
    std::erase_if(values, [](double v) {
      const double exponent = std::log10(v);
      return std::abs(exponent - std::round(exponent)) > 1e-9;
    });
  }
  const std::size_t every = (values.size() + kMost - 1) / kMost;
  std::vector<double> kept;
  for (std::size_t i = 0; i < values.size(); i += std::max<std::size_t>(1, every)) {
    kept.push_back(values[i]);
  }
  return kept;
}

void draw_rates(std::string& svg, const Axes& axes) {
  const auto steps = std::lround(axes.top_rate / axes.rate_step);
  for (long i = 0; i <= steps; ++i) {
    const double rate = static_cast<double>(i) * axes.rate_step, y = axes.y(rate);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", kLeft, y, kRight, y,
        i == 0 ? "#888" : kPlotGrid);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%.0f %%</text>\n", kLeft - 10, y + 6,
        rate * 100);
  }
  add(svg,
      "<text transform='translate(28 %.1f) rotate(-90)' text-anchor='middle'>block hit "
      "rate</text>\n",
      (kTop + kBottom) / 2);
}

void draw_capacities(std::string& svg, const Axes& axes, std::uint64_t block_bytes) {
  const double low = std::pow(10, axes.low), high = std::pow(10, axes.high);
  const auto tick = [&](double blocks, double y, const std::string& text) {
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", axes.x(blocks), y,
        text.c_str());
  };
  const double bytes = static_cast<double>(block_bytes);
  for (const double value :
       block_bytes != 0 ? ticks(low * bytes, high * bytes, true) : ticks(low, high, false)) {
    const double blocks = block_bytes != 0 ? value / bytes : value;
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", axes.x(blocks), kTop,
        axes.x(blocks), kBottom, kPlotGrid);
    tick(blocks, kBottom + 26, block_bytes != 0 ? bytes_on_axis(value) : number_on_axis(value));
  }
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", (kLeft + kRight) / 2,
      kBottom + 62, block_bytes != 0 ? "capacity of the pool" : "capacity in blocks");
  if (block_bytes == 0) return;
  add(svg, "<g font-size='15' fill='%s'>\n", kPlotQuiet);
  for (const double blocks : ticks(low, high, false)) {
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", axes.x(blocks), kTop,
        axes.x(blocks), kTop - 6, kPlotQuiet);
    tick(blocks, kTop - 12, number_on_axis(blocks));
  }
  add(svg, "<text x='%.1f' y='%.1f'>blocks</text>\n</g>\n", kRight + 12, kTop - 12);
}

struct Line {
  eviction::PolicyKind policy;
  PlotStyle style;
  std::vector<HitRateRow> rows;  // by capacity, without unlimited ones
  double label_y = 0;

  bool is_optimum() const { return policy == eviction::PolicyKind::kOpt; }
};

std::vector<PlotPoint> points_of(const Axes& axes, const Line& line) {
  std::vector<PlotPoint> points;
  for (const HitRateRow& row : line.rows) {
    points.push_back(
        {axes.x(static_cast<double>(row.cache.capacity_blocks)), axes.y(row.hit_rate)});
  }
  return points;
}

// A stretch that the line has to itself in one piece; what it shares, in dashes between those of the others.
void draw_line(std::string& svg, const Line& line, const std::vector<PlotPoint>& points,
               const std::vector<Share>& shares) {
  const char* const width = line.is_optimum() ? "2" : "3";
  for (std::size_t from = 0, to; from + 1 < points.size(); from = to) {
    to = from + 1;
    const bool is_alone = shares[from].of == 1;
    while (is_alone && to + 1 < points.size() && shares[to].of == 1) ++to;
    const double length = std::hypot(points[to].x - points[from].x, points[to].y - points[from].y);
    const std::string dashes =
        is_alone && line.is_optimum() ? " stroke-dasharray='9 5'" : dashes_of(shares[from], length);
    add(svg,
        "<polyline fill='none' stroke='%s' stroke-width='%s'%s stroke-linejoin='round' points='",
        line.style.colour, width, dashes.c_str());
    for (std::size_t i = from; i <= to; ++i) add(svg, "%.1f,%.1f ", points[i].x, points[i].y);
    svg += "'/>\n";
  }
}

// Of lines that run together one has its mark at a point, each in turn.
void draw_marks(std::string& svg, const Line& line, const std::vector<PlotPoint>& points,
                const std::vector<Share>& shares) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Share share = shares.empty() ? Share() : shares[std::min(i, shares.size() - 1)];
    if (i % share.of != share.number) continue;
    add(svg, "<path transform='translate(%.1f %.1f)' d='%s' fill='%s'/>\n", points[i].x,
        points[i].y, line.style.mark, line.style.colour);
  }
}

// The first that was asked for lies on top.
void draw_lines(std::string& svg, const Axes& axes, const std::vector<Line>& lines) {
  std::vector<std::vector<PlotPoint>> points;
  for (const Line& line : lines) points.push_back(points_of(axes, line));
  const std::vector<std::vector<Share>> shares = shares_of(points, kNear);
  for (std::size_t i = lines.size(); i-- > 0;) draw_line(svg, lines[i], points[i], shares[i]);
  for (std::size_t i = lines.size(); i-- > 0;) draw_marks(svg, lines[i], points[i], shares[i]);
}

// Names beside the ends of their lines, moved apart where they would overlap.
void draw_names(std::string& svg, const Axes& axes, std::vector<Line> lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    const double end = a.rows.back().hit_rate - b.rows.back().hit_rate;
    return std::abs(end) > 1e-12 ? end > 0 : a.rows.front().hit_rate > b.rows.front().hit_rate;
  });
  double next = kTop;
  for (Line& line : lines) {
    line.label_y = std::max(axes.y(line.rows.back().hit_rate), next);
    next = line.label_y + kLabelHeight;
  }
  double below = kBottom;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    line->label_y = std::min(line->label_y, below);
    below = line->label_y - kLabelHeight;
  }
  for (const Line& line : lines) {
    const HitRateRow& end = line.rows.back();
    const double x = axes.x(static_cast<double>(end.cache.capacity_blocks));
    add(svg, "<path d='M%.1f,%.1fL%.1f,%.1fH%.1f' fill='none' stroke='%s' opacity='0.5'/>\n", x + 8,
        axes.y(end.hit_rate), kRight + 22, line.label_y, kRight + 36, line.style.colour);
    add(svg, "<path transform='translate(%.1f %.1f)' d='%s' fill='%s'/>\n", kRight + 44,
        line.label_y, line.style.mark, line.style.colour);
    add(svg, "<text x='%.1f' y='%.1f' fill='%s'>%s</text>\n", kRight + 56, line.label_y + 6,
        line.style.colour, eviction::policy_name(line.policy));
  }
}

// One for all policies: without a limit nothing is ever dropped.
void draw_unlimited(std::string& svg, const Axes& axes, std::span<const HitRateRow> rows) {
  const auto row = std::find_if(rows.begin(), rows.end(), is_unlimited);
  if (row == rows.end()) return;
  const double y = axes.y(row->hit_rate);
  const double label_y = y - 7 > kTop + 16 ? y - 7 : y + 18;  // not across the plot's upper end
  add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s' stroke-dasharray='2 5'/>\n",
      kLeft, y, kRight, y, kPlotQuiet);
  add(svg, "<text x='%.1f' y='%.1f' font-size='15' fill='%s'>unlimited: %.1f %%</text>\n",
      kLeft + 8, label_y, kPlotQuiet, row->hit_rate * 100);
}

std::vector<Line> lines_of(std::span<const HitRateRow> rows) {
  std::vector<Line> lines;
  for (const HitRateRow& row : rows) {
    if (is_unlimited(row)) continue;
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const Line& l) { return l.policy == row.cache.policy; });
    if (line == lines.end()) {
      line = lines.insert(lines.end(), Line{row.cache.policy, style_of(row.cache.policy), {}});
    }
    line->rows.push_back(row);
  }
  for (Line& line : lines) {
    std::sort(line.rows.begin(), line.rows.end(), [](const HitRateRow& a, const HitRateRow& b) {
      return a.cache.capacity_blocks < b.cache.capacity_blocks;
    });
    // A policy or a capacity may be asked for twice: after this all lines have the same capacities.
    const auto last = std::unique(line.rows.begin(), line.rows.end(),
                                  [](const HitRateRow& a, const HitRateRow& b) {
                                    return a.cache.capacity_blocks == b.cache.capacity_blocks;
                                  });
    line.rows.erase(last, line.rows.end());
  }
  return lines;
}

}  // namespace

std::string plot_hit_rate(std::span<const HitRateRow> rows, const HitRatePlot& plot) {
  const Axes axes = axes_for(rows);
  const std::vector<Line> lines = lines_of(rows);
  std::string svg = begin_plot(kWidth, kHeight, kLeft, plot.title, plot.subtitle);
  draw_rates(svg, axes);
  if (lines.empty()) {  // where the capacities would stand
    add(svg,
        "<text x='%.1f' y='%.1f' text-anchor='middle' fill='%s'>no curve: only unlimited "
        "capacities were asked for</text>\n",
        (kLeft + kRight) / 2, kBottom + 26, kPlotQuiet);
  } else {
    draw_capacities(svg, axes, plot.block_bytes);
  }
  draw_unlimited(svg, axes, rows);
  draw_lines(svg, axes, lines);
  draw_names(svg, axes, lines);
  return svg + "</svg>\n";
}

}  // namespace cachalot::apps
