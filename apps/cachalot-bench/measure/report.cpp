#include "report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace cachalot::apps::bench {
namespace {

std::string number(double value) {
  char text[40];
  const char* const format = value >= 1000  ? "%.0f"
                             : value >= 100 ? "%.1f"
                             : value >= 10  ? "%.2f"
                                            : "%.3f";
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// "2.410", "1.330x"
std::string paper_text(const Row& row) {
  if (row.paper != 0) return number(row.paper);
  return row.paper_ratio != 0 ? number(row.paper_ratio) + "x" : "-";
}

}  // namespace

bool Target::is_met(double value, double ratio) const {
  switch (kind) {
    case Kind::kNone:
      return true;
    case Kind::kRatioAtMost:
      return ratio <= limit;
    case Kind::kRatioAtLeast:
      return ratio >= limit;
    case Kind::kValueAtLeast:
      return value >= limit;
    case Kind::kValueAtMost:
      return value <= limit;
  }
  return true;
}

std::string Target::text() const {
  char out[40] = "";
  switch (kind) {
    case Kind::kNone:
      break;
    case Kind::kRatioAtMost:
      std::snprintf(out, sizeof out, "<= %.4gx", limit);
      break;
    case Kind::kRatioAtLeast:
      std::snprintf(out, sizeof out, ">= %.4gx", limit);
      break;
    case Kind::kValueAtLeast:
      std::snprintf(out, sizeof out, ">= %.4g", limit);
      break;
    case Kind::kValueAtMost:
      std::snprintf(out, sizeof out, "<= %.4g", limit);
      break;
  }
  return out;
}

void Report::add(Row row) {
  rows_.push_back({benchmark_, std::move(row)});
}

void Report::note(const std::string& text) {
  notes_.push_back({benchmark_, text});
}

void Report::print(std::FILE* out) const {
  std::size_t width = 20;
  for (const Entry& entry : rows_) width = std::max(width, entry.row.name.size());
  std::string title;
  bool has_paper = false;  // then this benchmark's table has a column for it
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto& [benchmark, row] = rows_[i];
    if (benchmark != title) {
      title = benchmark;
      has_paper = std::any_of(rows_.begin(), rows_.end(), [&](const Entry& entry) {
        return entry.benchmark == title && paper_text(entry.row) != "-";
      });
      std::fprintf(out, "%s%-*s %9s %-4s %9s %7s  %s%-9s %-3s %s\n", i == 0 ? "" : "\n",
                   static_cast<int>(width), title.c_str(), "value", "", "limit", "ratio",
                   has_paper ? "  paper  " : "", "target", "met", "limit is");
    }
    const bool has_baseline = row.baseline_value != 0;
    const bool has_target = row.target.kind != Target::Kind::kNone;
    char paper[32] = "";
    if (has_paper) std::snprintf(paper, sizeof paper, "%7s  ", paper_text(row).c_str());
    std::fprintf(out, "%-*s %9s %-4s %9s %7s  %s%-9s %-3s %s\n", static_cast<int>(width),
                 row.name.c_str(), number(row.value).c_str(), row.unit.c_str(),
                 has_baseline ? number(row.baseline_value).c_str() : "-",
                 has_baseline ? number(row.ratio()).c_str() : "-", paper, row.target.text().c_str(),
                 !has_target                                 ? ""
                 : row.target.is_met(row.value, row.ratio()) ? "yes"
                                                             : "NO",
                 row.baseline.c_str());
    const bool is_last = i + 1 == rows_.size() || rows_[i + 1].benchmark != benchmark;
    for (const Note& note : notes_) {
      if (is_last && note.benchmark == benchmark) std::fprintf(out, "  %s\n", note.text.c_str());
    }
  }
  // A benchmark without a row says why.
  for (const Note& note : notes_) {
    const bool has_rows = std::any_of(rows_.begin(), rows_.end(), [&](const Entry& entry) {
      return entry.benchmark == note.benchmark;
    });
    if (!has_rows) std::fprintf(out, "%s: %s\n", note.benchmark.c_str(), note.text.c_str());
  }
}

nlohmann::json Report::to_json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [benchmark, row] : rows_) {
    nlohmann::json out = {{"benchmark", benchmark}, {"name", row.name},
                          {"value", row.value},     {"unit", row.unit},
                          {"baseline", nullptr},    {"baseline_value", nullptr},
                          {"ratio", nullptr}};
    if (!row.baseline.empty()) out["baseline"] = row.baseline;
    if (row.baseline_value != 0) {
      out["baseline_value"] = row.baseline_value;
      out["ratio"] = row.ratio();
    }
    if (row.target.kind != Target::Kind::kNone) {
      out["target"] = row.target.text();
      out["target_met"] = row.target.is_met(row.value, row.ratio());
    }
    if (row.paper != 0) out["paper"] = row.paper;
    if (row.paper_ratio != 0) out["paper_ratio"] = row.paper_ratio;
    for (const auto& [key, value] : row.extras) out[key] = value;
    rows.push_back(std::move(out));
  }
  nlohmann::json notes = nlohmann::json::array();
  for (const Note& note : notes_) notes.push_back(note.benchmark + ": " + note.text);
  return {{"rows", rows}, {"notes", notes}};
}

}  // namespace cachalot::apps::bench
