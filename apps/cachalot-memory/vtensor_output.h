// What `cachalot vtensor` says: a row for each memory and layout.
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "replay/allocation/kv_formula.h"
#include "replay/allocation/kv_slots.h"
#include "replay/allocation/vtensor_memory.h"

namespace cachalot::apps {

struct VTensorRow {
  std::string memory, layout;
  const replay::VTensorMemory* vtensor = nullptr;  // until take()
  const device_memory::Backend* backend = nullptr;

  double mean_bytes = 0, expected_mean_bytes = 0;
  std::uint64_t peak_bytes = 0, expected_peak_bytes = 0;
  std::uint64_t wrong_steps = 0;
  bool has_formula = false, has_vtensor = false;
  // Of vTensors.
  vtensor::VTensorStats stats = {};
  device_memory::CallCounts calls = {};
  replay::KvTimes times = {};
  std::uint64_t expected_shared_chunks = 0, expected_shared_tokens = 0;

  // What came out; byte sums become means with the run's steps in print and JSON.
  void take(const replay::KvTrack& track, const replay::KvFormula* formula);
  bool agrees() const;
};

struct VTensorResult {
  replay::KvRun run;
  std::uint64_t token_bytes = 0, max_tokens = 0, chunk_bytes = 0;
  std::uint64_t block_tokens = 0;  // 0: the trace has no blocks
  bool shares = false;
  std::uint64_t skipped_lines = 0;
  double wall_s = 0;
  std::string device = {};
  std::vector<VTensorRow> rows = {};

  bool agrees() const;
  double mean_kv_bytes() const {
    return run.mean(run.token_steps) * static_cast<double>(token_bytes);
  }
};

void print_table(std::FILE* out, const VTensorResult& result);
nlohmann::json json_of(const VTensorResult& result);

}  // namespace cachalot::apps
