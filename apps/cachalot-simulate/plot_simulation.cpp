#include "plot_simulation.h"

#include <algorithm>

#include "line_plot.h"
#include "plot.h"

namespace cachalot::apps {
namespace {

// At most as many points as can be seen.
PlotLine ttft_of(const SimulateRow& row) {
  std::vector<double> ttft;
  for (std::size_t i = 0; i < row.report.records.size(); ++i) {
    const sim::RequestRecord& record = row.report.records[i];
    if (record.outcome != sim::Outcome::kCompleted) continue;
    ttft.push_back(record.first_token_s - record.arrival_s);
  }
  std::sort(ttft.begin(), ttft.end());
  PlotLine line{name_of(row), {}};
  constexpr std::size_t kPoints = 200;
  for (std::size_t i = 0; i < kPoints && !ttft.empty(); ++i) {
    const std::size_t at = (ttft.size() - 1) * i / (kPoints - 1);
    line.points.push_back(
        {ttft[at], 100 * static_cast<double>(at + 1) / static_cast<double>(ttft.size())});
  }
  return line;
}

PlotLine over_time(std::string name, const std::vector<double>& values, double window_s) {
  PlotLine line{std::move(name), {}};
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
    bool needs_goals = false;
  };
  constexpr Quantity kQuantities[] = {
      {"goodput.svg", "Goodput", "requests/s within both goals",
       [](const sim::ClusterReport& r) { return r.goodput_rps; }},
      {"attainment.svg", "Requests within both goals", "% of all requests",
       [](const sim::ClusterReport& r) { return 100 * r.slo_attainment; }, true},
      {"ttft_over_rate.svg", "Mean time to first token", "TTFT in s",
       [](const sim::ClusterReport& r) { return r.ttft_s.mean; }},
      {"tpot_over_rate.svg", "Mean time a token", "TPOT in ms",
       [](const sim::ClusterReport& r) { return r.tpot_s.mean * 1e3; }},
  };
  std::vector<Drawing> drawings;
  for (const Quantity& quantity : kQuantities) {
    std::vector<PlotLine> lines;
    for (const SimulateRow& row : rows) {
      if (quantity.needs_goals && !has_goals(row)) continue;
      const std::string name = name_of(row);
      auto line = std::ranges::find(lines, name, &PlotLine::name);
      if (line == lines.end()) line = lines.insert(lines.end(), PlotLine{name, {}});
      line->points.push_back({row.report.offered_rps, quantity.of(row.report)});
    }
    if (lines.empty()) continue;
    for (PlotLine& line : lines) std::ranges::sort(line.points, {}, &PlotPoint::x);
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
  std::vector<PlotLine> ttft, decode;
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
    std::vector<PlotLine> queues;
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
