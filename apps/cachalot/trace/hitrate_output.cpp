#include "hitrate_output.h"

#include <cinttypes>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "output.h"

namespace cachalot::apps {
namespace {

using cache_sim::HitRateRow;

std::string gib_text(std::uint64_t blocks, std::uint64_t block_bytes) {
  if (blocks == cache_sim::kUnlimitedBlocks) return "inf";
  char text[32];
  constexpr double kGiB = 1u << 30;
  std::snprintf(text, sizeof text, "%.1f",
                static_cast<double>(blocks) * static_cast<double>(block_bytes) / kGiB);
  return text;
}

// Exact as long as it fits 64 bits, which JSON's numbers do; beyond that single bytes do not matter.
nlohmann::json capacity_bytes(std::uint64_t blocks, std::uint64_t block_bytes) {
  if (blocks == cache_sim::kUnlimitedBlocks) return "inf";
  std::uint64_t bytes = 0;
  if (!__builtin_mul_overflow(blocks, block_bytes, &bytes)) return bytes;
  return static_cast<double>(blocks) * static_cast<double>(block_bytes);
}

std::string window_text(std::uint64_t window_ms) {
  constexpr std::uint64_t kMinute = 60'000, kHour = 60 * kMinute;
  if (window_ms % kHour == 0) return std::to_string(window_ms / kHour) + " h";
  return std::to_string(window_ms / kMinute) + " min";
}

void print_rate(std::FILE* out, const cache_sim::HitRate& rate) {
  const cache_sim::ReuseDistances* const reuse = rate.reuse();
  if (reuse == nullptr) return;
  std::fprintf(out, "reuse distance: %" PRIu64 " of %" PRIu64 " references are reuses",
               reuse->reuses(), rate.blocks_total());
  if (reuse->reuses() != 0) {
    std::fprintf(out, "; distinct blocks in between: p50 %.0f  p90 %.0f  p99 %.0f  max %" PRIu64,
                 reuse->percentile(0.5), reuse->percentile(0.9), reuse->percentile(0.99),
                 reuse->longest());
  }
  std::fprintf(out, "\nworking set:   ");
  for (const cache_sim::WorkingSet& set : rate.working_sets()) {
    std::fprintf(
        out, "%s in %s: mean %.0f  max %" PRIu64,
        set.window_ms() == rate.working_sets().front().window_ms() ? " distinct blocks" : ";",
        window_text(set.window_ms()).c_str(), set.mean_blocks(), set.largest_blocks());
  }
  std::fprintf(out, "\n");
}

nlohmann::json summary_of(const cache_sim::HitRate& rate) {
  const cache_sim::ReuseDistances& reuse = *rate.reuse();
  nlohmann::json sets = nlohmann::json::array();
  for (const cache_sim::WorkingSet& set : rate.working_sets()) {
    sets.push_back({{"window_ms", set.window_ms()},
                    {"windows", set.windows()},
                    {"mean_blocks", set.mean_blocks()},
                    {"max_blocks", set.largest_blocks()}});
  }
  return {{"reuses", reuse.reuses()},
          {"reuse_distance_blocks",
           {{"p50", reuse.percentile(0.5)},
            {"p90", reuse.percentile(0.9)},
            {"p99", reuse.percentile(0.99)},
            {"max", reuse.longest()}}},
          {"working_sets", sets}};
}

std::string trace_text(const cache_sim::HitRate& rate, std::uint64_t block_tokens) {
  return base::counted(rate.requests(), "request") + ", " +
         base::counted(rate.blocks_total(), "block") + " of " + std::to_string(block_tokens) +
         " tokens" + ", " + base::grouped(rate.blocks_unique()) + " distinct";
}

void print_trace(std::FILE* out, const HitRateResult& result) {
  std::fprintf(out, "trace: %s\n", base::printable(result.trace).c_str());
}

void print_head(std::FILE* out, const HitRateResult& result) {
  const cache_sim::HitRate& rate = *result.rate;
  std::fprintf(out, "%s", trace_text(rate, result.block_tokens).c_str());
  if (result.block_bytes != 0) {
    std::fprintf(out, " (%s GiB)", gib_text(rate.blocks_unique(), result.block_bytes).c_str());
  }
  std::fprintf(out, "\n");
  if (result.warmup_requests == 0) return;
  std::fprintf(out, "rows are without the first %s\n",
               base::counted(result.warmup_requests, "request").c_str());
}

void print_column_names(std::FILE* out, const HitRateResult& result) {
  std::fprintf(out, "%-13s %-6s %15s %s%12s %12s %8s %8s %8s\n", "policy", "mode",
               "capacity_blocks", result.block_bytes != 0 ? "     GiB " : "",
               result.counts_tokens ? "hit_tokens" : "hit_blocks",
               result.counts_tokens ? "tokens" : "prefix", "hit", "prefix", "token");
}

void print_row(std::FILE* out, const HitRateResult& result, const HitRateRow& row) {
  std::fprintf(out, "%-13s %-6s %15s ", eviction::policy_name(row.cache.policy),
               eviction::cache_mode_name(row.cache.mode),
               capacity_text(row.cache.capacity_blocks).c_str());
  if (result.block_bytes != 0) {
    std::fprintf(out, "%8s ", gib_text(row.cache.capacity_blocks, result.block_bytes).c_str());
  }
  std::fprintf(out, "%12" PRIu64 " %12" PRIu64 " %7.2f%% %7.2f%% %7.2f%%\n",
               result.counts_tokens ? row.hit_tokens : row.hit_blocks,
               result.counts_tokens ? row.tokens : row.prefix_blocks, row.hit_rate * 100,
               row.prefix_hit_rate * 100, row.token_hit_rate * 100);
}

void print_bad_lines(std::FILE* out, const HitRateResult& result) {
  if (result.skipped_lines != 0)
    std::fprintf(out, "%" PRIu64 " bad lines left out\n", result.skipped_lines);
}

std::string csv_head(const HitRateResult& result) {
  return std::string(
             "policy,mode,capacity_blocks,hit_blocks,prefix_blocks,hit_rate,prefix_hit_rate,"
             "token_hit_rate") +
         (result.counts_tokens ? ",hit_tokens,tokens" : "") +
         (result.block_bytes != 0 ? ",capacity_bytes" : "");
}

std::string csv_row(const HitRateResult& result, const HitRateRow& row) {
  char line[256];
  std::snprintf(line, sizeof line, "%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%.6f,%.6f,%.6f",
                eviction::policy_name(row.cache.policy), eviction::cache_mode_name(row.cache.mode),
                capacity_text(row.cache.capacity_blocks).c_str(), row.hit_blocks, row.prefix_blocks,
                row.hit_rate, row.prefix_hit_rate, row.token_hit_rate);
  std::string text = line;
  if (result.counts_tokens) {
    text += "," + std::to_string(row.hit_tokens) + "," + std::to_string(row.tokens);
  }
  if (result.block_bytes == 0) return text;
  const nlohmann::json bytes = capacity_bytes(row.cache.capacity_blocks, result.block_bytes);
  return text + ("," + (bytes.is_string() ? bytes.get<std::string>() : bytes.dump()));
}

}  // namespace

std::string capacity_text(std::uint64_t blocks) {
  return blocks == cache_sim::kUnlimitedBlocks ? "inf" : std::to_string(blocks);
}

void print_table(std::FILE* out, const HitRateResult& result) {
  print_trace(out, result);
  print_head(out, result);
  print_rate(out, *result.rate);
  print_column_names(out, result);
  for (const HitRateRow& row : result.rows) print_row(out, result, row);
  print_bad_lines(out, result);
}

void print_sizes(std::FILE* out, std::span<const HitRateResult> results) {
  print_trace(out, results.front());
  for (const HitRateResult& result : results) print_head(out, result);
  std::fprintf(out, "%12s ", "block_tokens");
  print_column_names(out, results.front());
  for (const HitRateResult& result : results) {
    for (const HitRateRow& row : result.rows) {
      std::fprintf(out, "%12" PRIu64 " ", result.block_tokens);
      print_row(out, result, row);
    }
  }
  print_bad_lines(out, results.front());
}

std::string csv_of(const HitRateResult& result) {
  std::string csv = csv_head(result) + "\n";
  for (const HitRateRow& row : result.rows) csv += csv_row(result, row) + "\n";
  return csv;
}

std::string csv_of_sizes(std::span<const HitRateResult> results) {
  std::string csv = csv_head(results.front()) + ",block_tokens\n";
  for (const HitRateResult& result : results) {
    for (const HitRateRow& row : result.rows)
      csv += csv_row(result, row) + "," + std::to_string(result.block_tokens) + "\n";
  }
  return csv;
}

nlohmann::json json_of_sizes(std::span<const HitRateResult> results) {
  nlohmann::json all = nlohmann::json::array();
  for (const HitRateResult& result : results) all.push_back(json_of(result));
  return all;
}

nlohmann::json json_of(const HitRateResult& result) {
  const cache_sim::HitRate& rate = *result.rate;
  nlohmann::json rows = nlohmann::json::array();
  for (const HitRateRow& row : result.rows) {
    nlohmann::json capacity = row.cache.capacity_blocks;
    if (row.cache.capacity_blocks == cache_sim::kUnlimitedBlocks) capacity = "inf";
    rows.push_back({{"policy", eviction::policy_name(row.cache.policy)},
                    {"mode", eviction::cache_mode_name(row.cache.mode)},
                    {"capacity_blocks", capacity},
                    {"hit_blocks", row.hit_blocks},
                    {"prefix_blocks", row.prefix_blocks},
                    {"hit_rate", row.hit_rate},
                    {"prefix_hit_rate", row.prefix_hit_rate},
                    {"token_hit_rate", row.token_hit_rate},
                    {"hit_tokens", row.hit_tokens},
                    {"tokens", row.tokens}});
    if (result.block_bytes != 0) {
      rows.back()["capacity_bytes"] = capacity_bytes(row.cache.capacity_blocks, result.block_bytes);
    }
  }
  nlohmann::json json = {{"trace", result.trace},
                         {"flags", *result.flags},
                         {"requests", rate.requests()},
                         {"skipped_lines", result.skipped_lines},
                         {"warmup_requests", result.warmup_requests},
                         {"block_tokens", result.block_tokens},
                         {"blocks_total", rate.blocks_total()},
                         {"blocks_unique", rate.blocks_unique()},
                         {"rows", rows},
                         {"wall_s", result.wall_s}};
  if (result.block_bytes != 0) json["block_bytes"] = result.block_bytes;
  if (rate.reuse() != nullptr) json["summary"] = summary_of(rate);
  return json;
}

std::string plot_subtitle(const HitRateResult& result, const std::string& mode,
                          const std::string& model) {
  const std::string text = trace_text(*result.rate, result.block_tokens) + "; " + mode + " mode";
  return model.empty() ? text : text + "; KV of " + model;
}

}  // namespace cachalot::apps
