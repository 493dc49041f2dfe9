#include "simulate_output.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "output.h"

namespace cachalot::apps {
namespace {

nlohmann::json in_ms(const sim::Distribution& d) {
  return {{"mean", d.mean * 1e3}, {"p50", d.p50 * 1e3}, {"p90", d.p90 * 1e3}, {"p99", d.p99 * 1e3}};
}

// Null: nothing was measured.
nlohmann::json in_ms_of(const sim::Distribution& d, std::uint64_t requests) {
  return requests == 0 ? nlohmann::json() : in_ms(d);
}

// "-": there is none.
std::string figure_text(const char* format, double value, bool is_there) {
  if (!is_there) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

nlohmann::json json_of_instance(const sim::InstanceReport& instance, double sim_s) {
  const char* const role = instance.is_colocated ? "colocated"
                           : instance.is_decode  ? "decode"
                                                 : "prefill";
  nlohmann::json json = {{"role", role},
                         {"instance", instance.instance},
                         {"requests", instance.requests},
                         {"busy_s", instance.busy_s},
                         {"utilization", sim_s == 0 ? 0 : instance.busy_s / sim_s},
                         {"received_bytes", instance.received_bytes},
                         {"load", instance.load}};
  if (instance.is_decode || instance.is_colocated) {
    json["steps"] = instance.steps;
    json["tokens"] = instance.tokens;
    json["most_reserved_tokens"] = instance.most_reserved_tokens;
  }
  if (instance.is_decode) {
    json["sequences"] = instance.queue;
  } else {
    json["token_hit_rate"] = ratio(instance.hit_tokens, instance.input_tokens);
    json["cached_blocks"] = instance.cached_blocks;
    json["most_cached_blocks"] = instance.most_cached_blocks;
    json["evictions"] = instance.evictions;
    json["sent_bytes"] = instance.sent_bytes;
    json["queue"] = instance.queue;
  }
  return json;
}

nlohmann::json json_of_passes(const sim::ClusterReport& report) {
  nlohmann::json passes = nlohmann::json::array();
  for (const sim::PassReport& pass : report.passes) {
    passes.push_back({{"requests", pass.requests},
                      {"completed", pass.completed},
                      {"seconds", pass.seconds},
                      {"completed_rps", pass.completed_rps},
                      {"token_hit_rate", ratio(pass.hit_tokens, pass.input_tokens)},
                      {"ttft_ms", in_ms(pass.ttft_s)},
                      {"tpot_ms", in_ms(pass.tpot_s)},
                      {"e2e_ms", in_ms(pass.e2e_s)}});
  }
  return passes;
}

nlohmann::json json_of_price(const std::optional<double>& usd) {
  return usd ? nlohmann::json(*usd) : nlohmann::json();
}

nlohmann::json json_of_cost(const RunCost& cost) {
  const ClusterPrice& price = cost.price;
  return {{"network", price.network},
          {"gpus", price.gpus},
          {"servers", price.servers},
          {"cards", price.cards},
          {"switches", price.switches},
          {"gpu_usd_per_hour", price.gpu_usd_per_hour},
          {"network_usd_per_hour", price.network_usd_per_hour},
          {"usd", cost.usd},
          {"usd_per_million_tokens", json_of_price(cost.usd_per_million_tokens)},
          {"usd_per_million_good_tokens", json_of_price(cost.usd_per_million_good_tokens)}};
}

std::string price_text(const std::optional<double>& usd) {
  if (!usd) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", *usd);
  return text;
}

const char* plural(double count, const char* ending) {
  return count == 1 ? "" : ending;
}

// A line for each price of each cluster.
void print_costs(std::FILE* out, std::span<const SimulateRow> rows) {
  const auto is_same = [](const SimulateRow& a, const SimulateRow& b) {
    return a.cluster == b.cluster && a.cost.price == b.cost.price;
  };
  const bool is_one =
      std::ranges::all_of(rows, [&](const SimulateRow& row) { return is_same(row, rows.front()); });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto known = rows.first(i);
    if (std::ranges::any_of(known, [&](const SimulateRow& k) { return is_same(k, rows[i]); })) {
      continue;
    }
    const bool has_own_price = std::ranges::any_of(rows, [&](const SimulateRow& row) {
      return row.cluster == rows[i].cluster && !is_same(row, rows[i]);
    });
    const std::string name =
        rows[i].names_cluster && !has_own_price ? rows[i].cluster : name_of(rows[i]);
    const ClusterPrice& price = rows[i].cost.price;
    std::fprintf(out,
                 "cost%s%s: $%.2f an hour for %g GPU%s, $%.2f for the network (%s: %" PRIu64
                 " card%s, %" PRIu64 " switch%s)\n",
                 is_one ? "" : " of ", is_one ? "" : name.c_str(), price.gpu_usd_per_hour,
                 price.gpus, plural(price.gpus, "s"), price.network_usd_per_hour,
                 price.network.c_str(), price.cards, plural(static_cast<double>(price.cards), "s"),
                 price.switches, plural(static_cast<double>(price.switches), "es"));
  }
}

double cache_bytes(const SimulateRow& row, std::uint64_t blocks) {
  return static_cast<double>(blocks) * static_cast<double>(row.block_tokens) *
         row.options.kv_bytes_per_token;
}

// A whole number as long as it fits 64 bits.
nlohmann::json json_of_bytes(double bytes) {
  return bytes < 0x1p63 ? nlohmann::json(static_cast<std::uint64_t>(bytes)) : nlohmann::json(bytes);
}

nlohmann::json json_of_caches(const SimulateRow& row) {
  nlohmann::json json = {{"block_tokens", row.block_tokens},
                         {"block_bytes", json_of_bytes(cache_bytes(row, 1))}};
  const auto add = [&](const std::string& name, std::uint64_t blocks) {
    const bool is_unlimited = blocks == sim::kUnlimited;
    json[name + "_blocks"] = is_unlimited ? nlohmann::json("inf") : nlohmann::json(blocks);
    json[name + "_bytes"] =
        is_unlimited ? nlohmann::json("inf") : json_of_bytes(cache_bytes(row, blocks));
  };
  add("node", row.options.node_capacity_blocks);
  add("pool", row.options.pool_capacity_blocks);
  add("storage", row.options.storage_capacity_blocks);
  return json;
}

// "5,859 blocks (983.0 GB) an instance; a pool of unlimited blocks".
std::string caches_text(const SimulateRow& row) {
  std::string caches;
  const auto add = [&](std::uint64_t blocks, const char* before, const char* after) {
    if (blocks == 0) return;
    caches += (caches.empty() ? "" : "; ") + std::string(before);
    if (blocks == sim::kUnlimited) {
      caches += "unlimited blocks";
    } else {
      char bytes[32];
      std::snprintf(bytes, sizeof bytes, " (%.1f GB)", cache_bytes(row, blocks) / 1e9);
      caches += base::counted(blocks, "block") + bytes;
    }
    caches += after;
  };
  add(row.options.node_capacity_blocks, "", " an instance");
  add(row.options.pool_capacity_blocks, "a pool of ", "");
  add(row.options.storage_capacity_blocks, "storage of ", "");
  return caches.empty() ? "none" : caches;
}

// A line if the text is the same for all rows, else one for each text.
void print_distinct(std::FILE* out, const char* what, std::span<const SimulateRow> rows,
                    std::string (*text_of)(const SimulateRow&)) {
  std::vector<std::string> texts;
  for (const SimulateRow& row : rows) {
    const std::string text = text_of(row);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
  }
  for (const std::string& text : texts) {
    const auto first =
        std::ranges::find_if(rows, [&](const SimulateRow& row) { return text_of(row) == text; });
    const std::string of = texts.size() == 1 ? "" : " of " + name_of(*first);
    std::fprintf(out, "%s%s: %s\n", what, of.c_str(), text.c_str());
  }
}

// Where blocks hit, for a table in which hosts are peers.
void print_block_hits(std::FILE* out, const sim::ClusterReport& r) {
  const std::uint64_t own =
      r.hit_blocks - r.hit_blocks_peer - r.hit_blocks_pool - r.hit_blocks_storage;
  std::fprintf(
      out,
      "  hits of all blocks: own caches %.2f%%, peers %.2f%%, pool %.2f%%, storage %.2f%%, "
      "together %.2f%%\n",
      ratio(own, r.blocks) * 100, ratio(r.hit_blocks_peer, r.blocks) * 100,
      ratio(r.hit_blocks_pool, r.blocks) * 100, ratio(r.hit_blocks_storage, r.blocks) * 100,
      r.block_hit_rate() * 100);
  if (!r.has_peers) return;
  std::fprintf(out,
               "  peers: %.1f GB; %" PRIu64 " blocks were gone, %" PRIu64
               " prompts waited as long as they may\n",
               r.peer_bytes / 1e9, r.peer_gone_blocks, r.peer_waits_ended);
}

}  // namespace

std::string name_of(const SimulateRow& row) {
  std::string name = row.names_cluster ? row.cluster + " " + row.policy : row.policy;
  if (row.admission != "none") name += "/" + row.admission;
  if (row.layerwise != "off") name += "/" + row.layerwise;
  return name;
}

bool has_goals(const SimulateRow& row) {
  return std::isfinite(row.options.admission.ttft_slo_s) ||
         std::isfinite(row.options.admission.tbt_slo_s);
}

void print_times(std::FILE* out, std::span<const SimulateRow> rows) {
  print_distinct(out, "times", rows, [](const SimulateRow& row) {
    return row.timing->model + " on " + row.timing->hardware + ", " + row.timing->source;
  });
}

void print_simulation(std::FILE* out, const sim::Workload& workload,
                      std::span<const SimulateRow> rows) {
  std::fprintf(out, "%zu requests in %.0f s, %u distinct blocks of %" PRIu64 " tokens\n",
               workload.jobs().size(), workload.jobs().back().arrival_s, workload.distinct_blocks(),
               workload.block_tokens());
  print_distinct(out, "caches", rows, caches_text);
  const bool has_rates = std::ranges::any_of(
      rows, [&](const SimulateRow& row) { return row.rate_scale != rows[0].rate_scale; });
  const bool has_peers =
      std::ranges::any_of(rows, [](const SimulateRow& row) { return row.report.has_peers; });
  int width = 24;
  for (const SimulateRow& row : rows) {
    width = std::max(width, static_cast<int>(name_of(row).size()));
  }
  if (has_rates) std::fprintf(out, "%6s ", "rate");
  std::fprintf(out, "%-*s %9s %9s %9s %9s %9s %9s %8s %8s %8s %8s %9s %8s %8s\n", width, "policy",
               "completed", "rejected", "TTFT s", "p99", "TBT ms", "p99", "good/s", "in SLO", "hit",
               "prefill", "moved GB", "$/Mtoken", "$/M good");
  for (const SimulateRow& row : rows) {
    const sim::ClusterReport& r = row.report;
    const double computed = static_cast<double>(r.completed + r.wasted);
    const bool has_gaps = r.tbt_s.mean != 0;  // between tokens
    if (has_rates) std::fprintf(out, "%6g ", row.rate_scale);
    std::fprintf(out,
                 "%-*s %9" PRIu64 " %9" PRIu64
                 " %9s %9s %9s %9s %8.3f %8s %7.2f%% %7.3fs %9.1f %8s %8s\n",
                 width, name_of(row).c_str(), r.completed, r.rejected(),
                 figure_text("%.3f", r.ttft_s.mean, r.completed != 0).c_str(),
                 figure_text("%.3f", r.ttft_s.p99, r.completed != 0).c_str(),
                 figure_text("%.2f", r.tbt_s.mean * 1e3, has_gaps).c_str(),
                 figure_text("%.2f", r.tbt_s.p99 * 1e3, has_gaps).c_str(), r.goodput_rps,
                 figure_text("%.2f%%", r.slo_attainment * 100, has_goals(row)).c_str(),
                 r.token_hit_rate() * 100, computed == 0 ? 0 : r.prefill_s / computed,
                 r.bytes_transferred / 1e9, price_text(row.cost.usd_per_million_tokens).c_str(),
                 price_text(row.cost.usd_per_million_good_tokens).c_str());
    if (has_peers) print_block_hits(out, r);
    if ((r.storage_blocks != 0 || r.storage_write_bytes != 0) && r.input_tokens != 0) {
      std::fprintf(out,
                   "  hits by tier, of all tokens: pool %.2f%%, storage %.2f%%; storage read %.1f "
                   "GB, written %.1f GB\n",
                   ratio(r.hit_tokens_pool, r.input_tokens) * 100,
                   ratio(r.hit_tokens_storage, r.input_tokens) * 100, r.storage_read_bytes / 1e9,
                   r.storage_write_bytes / 1e9);
    }
    for (std::size_t i = 0; i < r.passes.size(); ++i) {
      const sim::PassReport& pass = r.passes[i];
      std::fprintf(
          out,
          "  pass %zu: %" PRIu64
          " completed in %.1f s, %.3f/s, TTFT %.3f s (p99 %.3f), TPOT %.1f ms, hit %.2f%%\n",
          i + 1, pass.completed, pass.seconds, pass.completed_rps, pass.ttft_s.mean,
          pass.ttft_s.p99, pass.tpot_s.mean * 1e3, ratio(pass.hit_tokens, pass.input_tokens) * 100);
    }
  }
  print_costs(out, rows);
}

nlohmann::json json_of_row(const SimulateRow& row) {
  const sim::ClusterReport& r = row.report;
  nlohmann::json instances = nlohmann::json::array();
  for (const sim::InstanceReport& instance : r.instances) {
    instances.push_back(json_of_instance(instance, r.sim_s));
  }
  const double computed = static_cast<double>(r.completed + r.wasted);
  return {
      {"policy", row.policy},
      {"admission", row.admission},
      {"requests", r.requests},
      {"completed", r.completed},
      {"rejected", r.rejected()},
      {"rejected_by",
       {{"prefill", r.rejected_prefill},
        {"decode", r.rejected_decode},
        {"after_prefill", r.wasted},
        {"no_instance", r.no_instance}}},
      {"restarts", r.restarts},
      {"preemptions", r.preemptions},
      {"cluster", row.cluster},
      {"layerwise", row.layerwise},
      {"host_bytes", {{"out", r.host_out_bytes}, {"in", r.host_in_bytes}}},
      {"rate_scale", row.rate_scale},
      {"goodput_rps", r.goodput_rps},
      {"ttft_ms", in_ms_of(r.ttft_s, r.completed)},
      {"tbt_ms", in_ms_of(r.tbt_s, r.completed)},
      {"tpot_ms", in_ms_of(r.tpot_s, r.completed)},
      {"e2e_ms", in_ms_of(r.e2e_s, r.completed)},
      {"slo_attainment", r.slo_attainment},
      {"token_hit_rate", r.token_hit_rate()},
      {"full_block_hit_rate", r.full_block_hit_rate()},
      {"prefill_s", r.prefill_s},
      {"prefill_mean_s", computed == 0 ? 0 : r.prefill_s / computed},
      {"prefill_reuse_ratio", r.prefill_cold_s == 0 ? 0 : r.prefill_s / r.prefill_cold_s},
      {"wasted_prefill_s", r.wasted_prefill_s},
      {"bytes_transferred", r.bytes_transferred},
      {"bytes_by_kind",
       {{"handover", r.handover_bytes},
        {"peer", r.peer_bytes},
        {"pool_read", r.pool_read_bytes},
        {"pool_write", r.pool_write_bytes},
        {"storage_read", r.storage_read_bytes},
        {"storage_write", r.storage_write_bytes}}},
      {"storage_skipped_bytes", r.storage_skipped_bytes},
      {"hit_tokens_by_tier",
       {{"instance", r.hit_tokens - r.hit_tokens_peer - r.hit_tokens_pool - r.hit_tokens_storage},
        {"peer", r.hit_tokens_peer},
        {"pool", r.hit_tokens_pool},
        {"storage", r.hit_tokens_storage}}},
      {"blocks", r.blocks},
      {"block_hit_rate", r.block_hit_rate()},
      {"hit_blocks_by_tier",
       {{"instance", r.hit_blocks - r.hit_blocks_peer - r.hit_blocks_pool - r.hit_blocks_storage},
        {"peer", r.hit_blocks_peer},
        {"pool", r.hit_blocks_pool},
        {"storage", r.hit_blocks_storage}}},
      {"peers", {{"gone_blocks", r.peer_gone_blocks}, {"ended_waits", r.peer_waits_ended}}},
      {"decode_load_deviation", r.decode_load_deviation},
      {"decode_load", r.decode_load},
      {"window_s", r.window_s},
      {"passes", json_of_passes(r)},
      {"per_instance", instances},
      {"sim_s", r.sim_s},
      {"wall_s", row.wall_s},
      {"cost", json_of_cost(row.cost)},
      {"model", row.timing->model},
      {"hardware", row.timing->hardware},
      {"times", row.timing->source},
      {"caches", json_of_caches(row)}};
}

nlohmann::json json_of_simulation(std::span<const SimulateRow> rows) {
  if (rows.size() == 1) return json_of_row(rows[0]);
  nlohmann::json all = nlohmann::json::array();
  for (const SimulateRow& row : rows) all.push_back(json_of_row(row));
  return {{"rows", all}};
}

std::string csv_of_simulation(const sim::Workload& workload, std::span<const SimulateRow> rows) {
  std::string csv =
      "policy,admission,request,arrival_s,input_tokens,output_tokens,outcome,prefill,decode,"
      "hit_tokens,transferred_tokens,restarts,predicted_ttft_s,ttft_s,e2e_s,cluster,layerwise,rate_"
      "scale,storage_tokens\n";
  const auto instance = [](std::uint32_t number) {
    return number == 0xffffffffu ? std::string() : std::to_string(number);
  };
  for (const SimulateRow& row : rows) {
    for (std::size_t i = 0; i < row.report.records.size(); ++i) {
      const sim::RequestRecord& r = row.report.records[i];
      const sim::Job& job = workload.jobs()[i];
      csv += row.policy + "," + row.admission;  // a policy with many flags is long
      char text[320];
      std::snprintf(text, sizeof text,
                    ",%zu,%.6f,%" PRIu64 ",%" PRIu64 ",%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%u,%.6f,",
                    i, r.arrival_s, job.input_tokens, job.output_tokens,
                    sim::outcome_name(r.outcome), instance(r.prefill).c_str(),
                    instance(r.decode).c_str(), r.hit_tokens, r.transferred_tokens, r.restarts,
                    r.predicted_ttft_s);
      csv += text;
      if (r.outcome == sim::Outcome::kCompleted) {
        std::snprintf(text, sizeof text, "%.6f,%.6f", r.first_token_s - r.arrival_s,
                      r.end_s - r.arrival_s);
        csv += text;
      } else {
        csv += ",";
      }
      std::snprintf(text, sizeof text, ",%s,%s,%g,%" PRIu64 "\n", row.cluster.c_str(),
                    row.layerwise.c_str(), row.rate_scale, r.storage_tokens);
      csv += text;
    }
  }
  return csv;
}

}  // namespace cachalot::apps
