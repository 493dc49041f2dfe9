// What a benchmark says: rows, each a figure beside the limit it is held against.
//
// A ratio is value / baseline_value, both measured in the same run and in turns. A row may have a
// target; a row without one is there for orientation.
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cachalot::apps::bench {

struct Target {
  enum class Kind : std::uint8_t {
    kNone,
    kRatioAtMost,
    kRatioAtLeast,
    kValueAtLeast,
    kValueAtMost
  };
  Kind kind = Kind::kNone;
  double limit = 0;

  bool is_met(double value, double ratio) const;
  std::string text() const;  // "<= 1.2x", ">= 25"
};

constexpr Target ratio_at_most(double limit) {
  return {Target::Kind::kRatioAtMost, limit};
}
constexpr Target ratio_at_least(double limit) {
  return {Target::Kind::kRatioAtLeast, limit};
}
constexpr Target value_at_most(double limit) {
  return {Target::Kind::kValueAtMost, limit};
}
constexpr Target value_at_least(double limit) {
  return {Target::Kind::kValueAtLeast, limit};
}

struct Row {
  std::string name;  // "touch_rate/noncoherent/1Mi": unique within a benchmark
  double value = 0;
  std::string unit;  // ns, us, ms, GB/s, M/s
  std::string baseline;
  double baseline_value = 0;  // 0: none
  Target target = {};
  // What a paper found, on other hardware: `paper` in the row's unit, `paper_ratio` beside its own limit. 0: nothing.
  double paper = 0, paper_ratio = 0;
  // Further JSON keys, unit last in the key.
  std::vector<std::pair<std::string, double>> extras = {};

  double ratio() const { return baseline_value == 0 ? 0 : value / baseline_value; }
};

class Report {
 public:
  void begin(const std::string& benchmark) { benchmark_ = benchmark; }
  void add(Row row);
  // A line under the table: what the figures depend on.
  void note(const std::string& text);

  void print(std::FILE* out) const;
  nlohmann::json to_json() const;

 private:
  struct Entry {
    std::string benchmark;
    Row row;
  };
  struct Note {
    std::string benchmark, text;
  };
  std::string benchmark_;
  std::vector<Entry> rows_;
  std::vector<Note> notes_;
};

}  // namespace cachalot::apps::bench
