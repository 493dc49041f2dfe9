#include "plot_simulation.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "plot.h"

namespace cachalot::apps {
namespace {

constexpr double kWidth = 1120, kHeight = 620;
constexpr double kLetter = 10.5;  // at most so wide, of a name beside its line
constexpr double kLeft = 96, kRight = 860, kTop = 104, kBottom = 530;

struct Line {
  std::string name;
  std::vector<PlotPoint> points;
};

// Okabe and Ito's palette; beyond it, colours repeat with dashes.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#e69f00", "#56b4e9", "#7a5195", "#000000"};

// A step of 1, 2 or 5 times a power of ten, of which about six reach `top`.
double step_for(double top) {
  const double power = std::pow(10, std::floor(std::log10(top / 6)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (top / (digit * power) <= 6) return digit * power;
  }
  return 10 * power;
}

void draw_axes(std::string& svg, double top_x, double top_y, const char* x_label,
               const char* y_label) {
  for (double y = 0; y <= top_y * 1.0001; y += step_for(top_y)) {
    const double at = kBottom - y / top_y * (kBottom - kTop);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", kLeft, at, kRight, at,
        y == 0 ? "#888" : kPlotGrid);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%.3g</text>\n", kLeft - 10, at + 6, y);
  }
  for (double x = 0; x <= top_x * 1.0001; x += step_for(top_x)) {
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.4g</text>\n",
        kLeft + x / top_x * (kRight - kLeft), kBottom + 26, x);
  }
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", (kLeft + kRight) / 2,
      kBottom + 60, x_label);
  add(svg, "<text transform='translate(28 %.1f) rotate(-90)' text-anchor='middle'>%s</text>\n",
      (kTop + kBottom) / 2, y_label);
}

std::string draw_lines(const std::string& title, const std::string& subtitle, const char* x_label,
                       const char* y_label, const std::vector<Line>& lines) {
  double top_x = 0, top_y = 0, width = kWidth;
  for (const Line& line : lines) {
    width = std::max(width, kRight + 62 + kLetter * static_cast<double>(line.name.size()));
    for (const PlotPoint& point : line.points) {
      top_x = std::max(top_x, point.x);
      top_y = std::max(top_y, point.y);
    }
  }
  if (top_x <= 0) top_x = 1;
  if (top_y <= 0) top_y = 1;
  std::string svg = begin_plot(width, kHeight, kLeft, title, subtitle);
  draw_axes(svg, top_x, top_y, x_label, y_label);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* const colour = kColours[i % kColours.size()];
    const char* const dashes = i < kColours.size() ? "" : " stroke-dasharray='6 4'";
    add(svg,
        "<polyline fill='none' stroke='%s' stroke-width='2'%s stroke-linejoin='round' points='",
        colour, dashes);
    for (const PlotPoint& point : lines[i].points) {
      add(svg, "%.1f,%.1f ", kLeft + point.x / top_x * (kRight - kLeft),
          kBottom - point.y / top_y * (kBottom - kTop));
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

// At most as many points as can be seen.
Line ttft_of(const SimulateRow& row) {
  std::vector<double> ttft;
  for (std::size_t i = 0; i < row.report.records.size(); ++i) {
    const sim::RequestRecord& record = row.report.records[i];
    if (record.outcome != sim::Outcome::kCompleted) continue;
    ttft.push_back(record.first_token_s - record.arrival_s);
  }
  std::sort(ttft.begin(), ttft.end());
  Line line{name_of(row), {}};
  constexpr std::size_t kPoints = 200;
  for (std::size_t i = 0; i < kPoints && !ttft.empty(); ++i) {
    const std::size_t at = (ttft.size() - 1) * i / (kPoints - 1);
    line.points.push_back(
        {ttft[at], 100 * static_cast<double>(at + 1) / static_cast<double>(ttft.size())});
  }
  return line;
}

Line over_time(std::string name, const std::vector<double>& values, double window_s) {
  Line line{std::move(name), {}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    line.points.push_back({(static_cast<double>(i) + 0.5) * window_s, values[i]});
  }
  return line;
}

// A line for each name, a point for each rate.
std::vector<Drawing> draw_over_rate(const std::string& trace, std::span<const SimulateRow> rows) {
  struct Quantity {
    const char* file;
    const char* title;
    const char* axis;
    double (*of)(const sim::ClusterReport&);
  };
  constexpr Quantity kQuantities[] = {
      {"goodput.svg", "Goodput", "requests/s within both goals",
       [](const sim::ClusterReport& r) { return r.goodput_rps; }},
      {"attainment.svg", "Requests within both goals", "% of all requests",
       [](const sim::ClusterReport& r) { return 100 * r.slo_attainment; }},
      {"ttft_over_rate.svg", "Mean time to first token", "TTFT in s",
       [](const sim::ClusterReport& r) { return r.ttft_s.mean; }},
      {"tpot_over_rate.svg", "Mean time a token", "TPOT in ms",
       [](const sim::ClusterReport& r) { return r.tpot_s.mean * 1e3; }},
  };
  std::vector<Drawing> drawings;
  for (const Quantity& quantity : kQuantities) {
    std::vector<Line> lines;
    for (const SimulateRow& row : rows) {
      const std::string name = name_of(row);
      auto line = std::ranges::find(lines, name, &Line::name);
      if (line == lines.end()) line = lines.insert(lines.end(), Line{name, {}});
      line->points.push_back({row.report.offered_rps, quantity.of(row.report)});
    }
    for (Line& line : lines) std::ranges::sort(line.points, {}, &PlotPoint::x);
    drawings.push_back(
        {quantity.file,
         draw_lines(std::string(quantity.title) + " over the rate of " + name_in_title(trace),
                    "each point is a run", "requests/s offered", quantity.axis, lines)});
  }
  return drawings;
}

}  // namespace

std::vector<Drawing> draw_simulation(const std::string& trace, std::span<const SimulateRow> rows) {
  if (std::ranges::any_of(
          rows, [&](const SimulateRow& row) { return row.rate_scale != rows[0].rate_scale; })) {
    return draw_over_rate(trace, rows);
  }
  const std::string of = " of " + name_in_title(trace);
  std::vector<Drawing> drawings;
  std::vector<Line> ttft, decode;
  for (const SimulateRow& row : rows) {
    ttft.push_back(ttft_of(row));
    decode.push_back(over_time(name_of(row), row.report.decode_load, row.report.window_s));
  }
  char windows[64];
  std::snprintf(windows, sizeof windows, "means of %g s", rows[0].report.window_s);
  drawings.push_back({"ttft.svg", draw_lines("Time to first token" + of, "requests that completed",
                                             "TTFT in s", "% of them within", ttft)});
  const bool has_load = std::ranges::any_of(rows, [](const SimulateRow& row) {
    return std::ranges::any_of(row.report.decode_load, [](double load) { return load > 0; });
  });
  if (has_load) {
    drawings.push_back(
        {"decode_load.svg", draw_lines("Load of the decode side" + of, windows, "time in s",
                                       "time of a step / goal", decode)});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<Line> queues;
    for (const sim::InstanceReport& instance : rows[i].report.instances) {
      if (instance.is_decode || queues.size() == 16) continue;
      const std::string role = instance.is_colocated ? "engine " : "prefill ";
      queues.push_back(over_time(role + std::to_string(instance.instance), instance.queue,
                                 rows[i].report.window_s));
    }
    std::string file = "prefill_queue_" + name_of(rows[i]) + ".svg";
    std::ranges::replace(file, '/', '_');
    std::ranges::replace(file, ' ', '_');
    drawings.push_back(
        {file, draw_lines("Requests at each instance" + of, name_of(rows[i]) + ", " + windows,
                          "time in s", "queued and running", queues)});
  }
  return drawings;
}

}  // namespace cachalot::apps
