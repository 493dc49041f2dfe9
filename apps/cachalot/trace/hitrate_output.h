// What `cachalot hitrate` found, for people and for programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cache_sim/hit_rate.h"

namespace cachalot::apps {

struct HitRateResult {
  std::string trace;
  const nlohmann::json* flags = nullptr;  // as they were given
  const cache_sim::HitRate* rate = nullptr;
  std::vector<cache_sim::HitRateRow> rows;
  std::uint64_t block_tokens = 0;
  std::uint64_t block_bytes = 0;  // 0: not given
  std::uint64_t warmup_requests = 0;
  bool counts_tokens = false;  // in table and CSV; JSON has both
  std::uint64_t skipped_lines = 0;
  double wall_s = 0;  // of reading and counting
};

// "1000", "inf".
std::string capacity_text(std::uint64_t blocks);

void print_table(std::FILE* out, const HitRateResult& result);
std::string csv_of(const HitRateResult& result);
nlohmann::json json_of(const HitRateResult& result);
// The same of several block sizes: one table, one CSV with a column more, an array of what json_of() gives.
void print_sizes(std::FILE* out, std::span<const HitRateResult> results);
std::string csv_of_sizes(std::span<const HitRateResult> results);
nlohmann::json json_of_sizes(std::span<const HitRateResult> results);
// What the drawing is of: mode, blocks, the model.
std::string plot_subtitle(const HitRateResult& result, const std::string& mode,
                          const std::string& model);

}  // namespace cachalot::apps
