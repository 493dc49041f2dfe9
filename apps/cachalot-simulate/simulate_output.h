// What `cachalot simulate` found, for people and for programs.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cost.h"
#include "sim/cluster/report.h"
#include "sim/cluster/workload.h"

namespace cachalot::apps {

struct SimulateRow {
  std::string cluster;  // "8P+8D", "16 colocated"
  std::string policy, admission;
  std::string layerwise = "off";
  double rate_scale = 1;
  bool names_cluster = false;  // other rows have other clusters
  sim::ClusterReport report;
  double wall_s = 0;
  RunCost cost = {};
};

// What tells the row from others of the same rate.
std::string name_of(const SimulateRow& row);

void print_simulation(std::FILE* out, const sim::Workload& workload,
                      std::span<const SimulateRow> rows);
nlohmann::json json_of_row(const SimulateRow& row);
// One row: its object; several: "rows".
nlohmann::json json_of_simulation(std::span<const SimulateRow> rows);
// A line for each request of each row.
std::string csv_of_simulation(const sim::Workload& workload, std::span<const SimulateRow> rows);

}  // namespace cachalot::apps
