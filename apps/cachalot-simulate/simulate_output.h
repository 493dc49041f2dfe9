// What `cachalot simulate` found, for people and for programs.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cost.h"
#include "sim/cluster/cluster_options.h"
#include "sim/cluster/report.h"
#include "sim/cluster/workload.h"
#include "timing_source.h"

namespace cachalot::apps {

struct SimulateRow {
  std::string cluster;  // "8P+8D", "16 colocated"
  std::string policy, admission;
  std::string layerwise = "off";
  double rate_scale = 1;
  bool names_cluster = false;      // other rows have other clusters
  std::uint64_t block_tokens = 0;  // of the trace
  sim::ClusterOptions options = {};
  std::shared_ptr<const Timing> timing = nullptr;
  sim::ClusterReport report;
  double wall_s = 0;
  RunCost cost = {};
};

// What tells the row from others of the same rate.
std::string name_of(const SimulateRow& row);
// Whether --ttft-slo-ms or --tbt-slo-ms says what a good request is.
bool has_goals(const SimulateRow& row);

// Where the times of the rows come from.
void print_times(std::FILE* out, std::span<const SimulateRow> rows);
void print_simulation(std::FILE* out, const sim::Workload& workload,
                      std::span<const SimulateRow> rows);
nlohmann::json json_of_row(const SimulateRow& row);
// One row: its object; several: "rows".
nlohmann::json json_of_simulation(std::span<const SimulateRow> rows);
// A line for each request of each row.
std::string csv_of_simulation(const sim::Workload& workload, std::span<const SimulateRow> rows);

}  // namespace cachalot::apps
