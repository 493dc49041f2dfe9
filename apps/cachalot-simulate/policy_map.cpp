#include "policy_map.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

namespace cachalot::apps {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

constexpr MapFigure kFigures[] = {
    {"mean_ttft", "lowest mean TTFT", "lower", sim::Better::kSmaller, false,
     [](const sim::ClusterReport& r) { return r.completed == 0 ? kNone : r.ttft_s.mean; }},
    {"p99_ttft", "lowest p99 of TTFT", "lower", sim::Better::kSmaller, false,
     [](const sim::ClusterReport& r) { return r.completed == 0 ? kNone : r.ttft_s.p99; }},
    {"goodput", "highest goodput", "higher", sim::Better::kLarger, true,
     [](const sim::ClusterReport& r) { return r.goodput_rps == 0 ? kNone : r.goodput_rps; }},
};

// As it was given, a number where it is one.
nlohmann::json json_of_value(const std::string& text) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number =
      read.ec == std::errc() && read.ptr == text.data() + text.size() && std::isfinite(value);
  return is_number ? nlohmann::json(value) : nlohmann::json(text);
}

// Characters, not bytes.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void print_right(std::FILE* out, const std::string& text, std::size_t width) {
  const std::size_t used = width_of(text);
  std::fprintf(out, "%*s%s", static_cast<int>(width > used ? width - used : 0), "", text.c_str());
}

// A lower TTFT is no merit where it comes from requests that were rejected.
bool is_won_by_rejecting(const PolicyMap& map, std::size_t cell) {
  const std::optional<sim::Winner> winner = map.winner_of(cell);
  if (!winner || winner->is_tie() || map.figure->better == sim::Better::kLarger) return false;
  const std::span<const SimulateRow> rows = map.rows_of(cell);
  return std::ranges::any_of(rows, [&](const SimulateRow& row) {
    return row.report.completed > rows[winner->row].report.completed;
  });
}

}  // namespace

std::string map_figure_names(const char* separator) {
  std::string names;
  for (const MapFigure& figure : kFigures)
    names += (names.empty() ? "" : separator) + std::string(figure.name);
  return names;
}

Result<const MapFigure*> find_map_figure(const std::string& name) {
  const auto* const found =
      std::ranges::find_if(kFigures, [&](const MapFigure& figure) { return name == figure.name; });
  if (found != std::end(kFigures)) return found;
  return Error::make(Code::kInvalidArgument, "--map-by: \"%.60s\", expected one of: %s",
                     name.c_str(), map_figure_names(", ").c_str());
}

std::optional<sim::Winner> PolicyMap::winner_of(std::size_t cell) const {
  std::vector<double> figures;
  for (const SimulateRow& row : rows_of(cell)) figures.push_back(figure->of(row.report));
  return sim::winner_of(figures, figure->better);
}

std::size_t PolicyMap::wins_of(std::size_t row) const {
  std::size_t wins = 0;
  for (std::size_t cell = 0; cell < cells(); ++cell) {
    const std::optional<sim::Winner> winner = winner_of(cell);
    if (winner && !winner->is_tie() && winner->row == row) ++wins;
  }
  return wins;
}

std::size_t PolicyMap::ties() const {
  std::size_t ties = 0;
  for (std::size_t cell = 0; cell < cells(); ++cell) {
    const std::optional<sim::Winner> winner = winner_of(cell);
    if (winner && winner->is_tie()) ++ties;
  }
  return ties;
}

std::vector<std::size_t> PolicyMap::best_of(std::size_t cell) const {
  std::vector<std::size_t> best;
  const std::optional<sim::Winner> winner = winner_of(cell);
  if (!winner) return best;
  const std::span<const SimulateRow> here = rows_of(cell);
  for (std::size_t row = 0; row < here.size(); ++row) {
    if (figure->of(here[row].report) == figure->of(here[winner->row].report)) best.push_back(row);
  }
  return best;
}

std::string letter_of(std::size_t row) {
  return std::string(1, static_cast<char>('A' + row));
}

std::string PolicyMap::text_of(std::size_t cell) const {
  const std::optional<sim::Winner> winner = winner_of(cell);
  if (!winner) return "-";
  if (winner->is_tie()) {
    std::string equal = "=";
    for (const std::size_t row : best_of(cell)) equal += letter_of(row);
    return equal;
  }
  std::string text = (winner->is_near_tie() ? "≈" : "") + letter_of(winner->row);
  if (!winner->margin) return text + " alone";
  const double percent = *winner->margin * 100;
  char margin[32];
  std::snprintf(margin, sizeof margin, percent < 9.95 ? " %.1f %%" : " %.0f %%", percent);
  return text + margin;
}

std::string name_in_map(const SimulateRow& row) {
  SimulateRow same;
  same.policy = row.policy;
  same.admission = row.admission;
  same.layerwise = row.layerwise;
  same.names_cluster = row.names_cluster;
  const bool is_colocated =
      !row.report.instances.empty() && row.report.instances.front().is_colocated;
  same.cluster = is_colocated ? "colocated" : "separated";
  return name_of(same);
}

void print_policy_map(std::FILE* out, const PolicyMap& map) {
  std::fprintf(out, "%s, and how much %s than the second's (≈: less than 1 %%, =: equal)\n",
               map.figure->title, map.figure->margin);
  for (std::size_t row = 0; row < map.names.size(); ++row) {
    std::fprintf(out, "  %s  %s: %zu of %zu cells\n", letter_of(row).c_str(),
                 map.names[row].c_str(), map.wins_of(row), map.cells());
  }
  if (map.ties() != 0) {
    std::fprintf(out, "  =  equal rows: %zu of %zu cells\n", map.ties(), map.cells());
  }
  std::size_t first = map.axes[1].flag.size(), width = 9, rejecting = 0;
  for (const std::string& value : map.axes[1].values) first = std::max(first, width_of(value));
  for (const std::string& value : map.axes[0].values) width = std::max(width, width_of(value));
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    width = std::max(width, width_of(map.text_of(cell)));
    if (is_won_by_rejecting(map, cell)) ++rejecting;
  }
  std::fprintf(out, "\n%*s  %s\n%s", static_cast<int>(first), "", map.axes[0].flag.c_str(),
               map.axes[1].flag.c_str());
  std::fprintf(out, "%*s", static_cast<int>(first - map.axes[1].flag.size()), "");
  for (const std::string& value : map.axes[0].values) {
    std::fputs("  ", out);
    print_right(out, value, width);
  }
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    if (cell % map.columns() == 0) {
      std::fputc('\n', out);
      print_right(out, map.axes[1].values[cell / map.columns()], first);
    }
    std::fputs("  ", out);
    print_right(out, map.text_of(cell), width);
  }
  std::fputc('\n', out);
  if (rejecting != 0) {
    std::fprintf(out, "in %zu of %zu cells the winner completed fewer requests than another row\n",
                 rejecting, map.cells());
  }
}

nlohmann::json json_of_policy_map(const PolicyMap& map) {
  nlohmann::json axes = nlohmann::json::array(), cells = nlohmann::json::array(),
                 rows = nlohmann::json::array();
  for (const MapAxis& axis : map.axes) {
    nlohmann::json values = nlohmann::json::array();
    for (const std::string& value : axis.values) values.push_back(json_of_value(value));
    axes.push_back({{"flag", axis.flag}, {"title", axis.title}, {"values", values}});
  }
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    nlohmann::json at = nlohmann::json::object();
    for (const FlagValue& value : map.values_of(cell)) at[value.flag] = json_of_value(value.value);
    for (std::size_t i = 0; i < map.names.size(); ++i) {
      nlohmann::json row = json_of_row(map.rows_of(cell)[i]);
      row["cell"] = at;
      row["name"] = map.names[i];
      rows.push_back(std::move(row));
    }
    const std::optional<sim::Winner> winner = map.winner_of(cell);
    nlohmann::json json = {
        {"cell", at},        {"winner", nullptr},
        {"second", nullptr}, {"margin", nullptr},
        {"near_tie", false}, {"won_by_rejecting", is_won_by_rejecting(map, cell)},
        {"tie", nullptr}};
    if (winner && winner->is_tie()) {
      json["tie"] = nlohmann::json::array();
      for (const std::size_t row : map.best_of(cell)) json["tie"].push_back(map.names[row]);
      json["margin"] = 0;
      json["near_tie"] = true;
    } else if (winner) {
      json["winner"] = map.names[winner->row];
      if (winner->second) json["second"] = map.names[*winner->second];
      if (winner->margin) json["margin"] = *winner->margin;
      json["near_tie"] = winner->is_near_tie();
    }
    cells.push_back(std::move(json));
  }
  return {{"map", {{"by", map.figure->name}, {"axes", axes}, {"cells", cells}}}, {"rows", rows}};
}

}  // namespace cachalot::apps
