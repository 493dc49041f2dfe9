#include "vtensor_output.h"

#include <algorithm>
#include <cinttypes>
#include <nlohmann/json.hpp>

namespace cachalot::apps {
namespace {

constexpr double kGiB = 1u << 30;

double gib(double bytes) {
  return bytes / kGiB;
}

const char* agreement(const VTensorRow& row) {
  if (!row.has_formula) return "-";
  return row.agrees() ? "yes" : "NO";
}

void print_row(std::FILE* out, const VTensorResult& result, const VTensorRow& row) {
  const double mean = result.run.mean(row.mean_bytes);
  std::fprintf(out, "%-8s %-12s %9.2f %9.2f %8.3f  %-6s", row.memory.c_str(), row.layout.c_str(),
               gib(static_cast<double>(row.peak_bytes)), gib(mean), mean / result.mean_kv_bytes(),
               agreement(row));
  if (row.has_vtensor) {
    std::fprintf(
        out, " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %6" PRIu64 " %6" PRIu64 " %8.2f %8.2f",
        row.calls.map, row.calls.set_access, row.calls.unmap, row.stats.waits, row.times.late_steps,
        static_cast<double>(row.times.longest_step_ns) / 1e6,
        static_cast<double>(row.times.begin_ns) / 1e6 / static_cast<double>(result.run.requests));
  }
  std::fprintf(out, "\n");
}

void print_sharing(std::FILE* out, const VTensorResult& result) {
  for (const VTensorRow& row : result.rows) {
    if (!row.has_vtensor || !result.shares) continue;
    std::fprintf(out,
                 "shared   %-12s %" PRIu64 " tokens, %" PRIu64
                 " chunks not needed (%.2f GiB), %.2f GiB copied, %" PRIu64
                 " blocks recorded, %" PRIu64 " evicted\n",
                 row.layout.c_str(), row.stats.matched_tokens, row.stats.borrowed_chunks_total,
                 gib(static_cast<double>(row.stats.borrowed_chunks_total) *
                     static_cast<double>(result.chunk_bytes)),
                 gib(static_cast<double>(row.stats.copied_bytes)), row.stats.recorded_blocks,
                 row.stats.evicted_blocks);
  }
}

nlohmann::json json_of(const VTensorResult& result, const VTensorRow& row) {
  nlohmann::json json = {
      {"memory", row.memory},
      {"layout", row.layout},
      {"peak_bytes", row.peak_bytes},
      {"mean_bytes", result.run.mean(row.mean_bytes)},
      {"bytes_per_kv_byte", result.run.mean(row.mean_bytes) / result.mean_kv_bytes()}};
  if (row.has_formula) {
    json["formula"] = {{"peak_bytes", row.expected_peak_bytes},
                       {"mean_bytes", result.run.mean(row.expected_mean_bytes)},
                       {"wrong_steps", row.wrong_steps},
                       {"agrees", row.agrees()}};
  }
  if (!row.has_vtensor) return json;
  json["calls"] = {{"create", row.calls.create},
                   {"map", row.calls.map},
                   {"set_access", row.calls.set_access},
                   {"unmap", row.calls.unmap}};
  json["waits"] = row.stats.waits;
  json["prepared"] = row.stats.prepared;
  json["begin_ns"] = row.times.begin_ns;
  json["late_steps"] = row.times.late_steps;
  json["late_ns"] = row.times.late_ns;
  json["background_ns"] = row.times.background_ns;
  json["longest_step_ns"] = row.times.longest_step_ns;
  if (!result.shares) return json;
  json["sharing"] = {{"tokens", row.stats.matched_tokens},
                     {"chunks", row.stats.borrowed_chunks_total},
                     {"copied_bytes", row.stats.copied_bytes},
                     {"recorded_blocks", row.stats.recorded_blocks},
                     {"evicted_blocks", row.stats.evicted_blocks}};
  if (row.has_formula) {
    json["formula"]["sharing_tokens"] = row.expected_shared_tokens;
    json["formula"]["sharing_chunks"] = row.expected_shared_chunks;
  }
  return json;
}

}  // namespace

void VTensorRow::take(const replay::KvTrack& track, const replay::KvFormula* formula) {
  mean_bytes = track.byte_steps;
  peak_bytes = track.peak_bytes;
  expected_mean_bytes = track.expected_byte_steps;
  expected_peak_bytes = track.expected_peak_bytes;
  wrong_steps = track.wrong_steps;
  has_formula = formula != nullptr;
  if (has_formula) {
    expected_shared_chunks = formula->shared_units();
    expected_shared_tokens = formula->shared_tokens();
  }
  has_vtensor = vtensor != nullptr;
  if (!has_vtensor) return;
  stats = vtensor->stats();
  calls = backend->counts();
  times = vtensor->times();
}

bool VTensorRow::agrees() const {
  if (!has_formula) return true;
  const bool shares_alike =
      !has_vtensor || (stats.borrowed_chunks_total == expected_shared_chunks &&
                       stats.matched_tokens == expected_shared_tokens);
  return wrong_steps == 0 && peak_bytes == expected_peak_bytes && shares_alike;
}

bool VTensorResult::agrees() const {
  return std::all_of(rows.begin(), rows.end(), [](const VTensorRow& row) { return row.agrees(); });
}

void print_table(std::FILE* out, const VTensorResult& result) {
  const replay::KvRun& run = result.run;
  std::fprintf(out,
               "%" PRIu64 " requests of at most %" PRIu64 " tokens, %" PRIu64
               " bytes a token; %" PRIu64 " decode steps, %.1f running on average, %" PRIu64
               " at most\n",
               run.requests, result.max_tokens, result.token_bytes, run.steps,
               run.mean(run.running_steps), run.peak_running);
  if (run.left_out != 0) {
    std::fprintf(out, "%" PRIu64 " requests left out: longer than that, or empty\n", run.left_out);
  }
  if (result.skipped_lines != 0) {
    std::fprintf(out, "%" PRIu64 " bad lines left out\n", result.skipped_lines);
  }
  std::fprintf(out, "KV of the tokens: %.2f GiB at most, %.2f GiB on average\n",
               gib(static_cast<double>(run.peak_tokens) * static_cast<double>(result.token_bytes)),
               gib(result.mean_kv_bytes()));
  std::fprintf(out, "device: %s\n", result.device.c_str());
  std::fprintf(out, "%-8s %-12s %9s %9s %8s  %-6s %10s %10s %10s %6s %6s %8s %8s\n", "memory",
               "layout", "peak_GiB", "mean_GiB", "per_KV", "agrees", "map", "set_access", "unmap",
               "waits", "late", "worst_ms", "begin_ms");
  for (const VTensorRow& row : result.rows) print_row(out, result, row);
  print_sharing(out, result);
}

nlohmann::json json_of(const VTensorResult& result) {
  const replay::KvRun& run = result.run;
  nlohmann::json rows = nlohmann::json::array();
  for (const VTensorRow& row : result.rows) rows.push_back(json_of(result, row));
  return {{"requests", run.requests},
          {"left_out", run.left_out},
          {"skipped_lines", result.skipped_lines},
          {"steps", run.steps},
          {"running_peak", run.peak_running},
          {"running_mean", run.mean(run.running_steps)},
          {"max_tokens", result.max_tokens},
          {"token_bytes", result.token_bytes},
          {"chunk_bytes", result.chunk_bytes},
          {"block_tokens",
           result.block_tokens != 0 ? nlohmann::json(result.block_tokens) : nlohmann::json()},
          {"kv_peak_bytes", run.peak_tokens * result.token_bytes},
          {"kv_mean_bytes", result.mean_kv_bytes()},
          {"device", result.device},
          {"agrees", result.agrees()},
          {"rows", rows},
          {"wall_s", result.wall_s}};
}

}  // namespace cachalot::apps
