// `cachalot hitrate`: what a cache would have hit, for policies and capacities.

#include <unistd.h>

#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "index/hit_rate/hit_rate.h"
#include "output.h"
#include "plot_hit_rate.h"
#include "trace/request_trace.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Options {
  std::string trace;
  std::vector<std::string> policies = {"lru"};
  std::vector<std::string> capacities = {"inf"};
  std::string mode = "leaf";
  std::uint64_t block_tokens = 512;
  bool skip_bad_lines = false;
  std::string csv, plot, json;
};

Result<std::vector<index::CacheSpec>> caches_of(const Options& options) {
  CACHALOT_TRY_ASSIGN(const index::CacheMode mode, index::parse_cache_mode(options.mode));
  CACHALOT_TRY_ASSIGN(const auto policies, split_list("--policy", options.policies));
  CACHALOT_TRY_ASSIGN(const auto capacities, split_list("--capacity-blocks", options.capacities));
  std::vector<index::CacheSpec> caches;
  for (const std::string& name : policies) {
    CACHALOT_TRY_ASSIGN(const index::PolicyKind policy, index::parse_policy(name));
    for (const std::string& text : capacities) {
      CACHALOT_TRY_ASSIGN(const std::uint64_t blocks,
                          parse_blocks_or_inf("--capacity-blocks", text));
      caches.push_back({policy, mode, blocks});
    }
  }
  return caches;
}

// A line that is written over, for people who wait; nothing in a pipe.
void show_progress(std::uint64_t requests) {
  constexpr std::uint64_t kEvery = 4096;
  if (requests % kEvery != 0 || isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%" PRIu64 " requests", requests);
}

void clear_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

Status count(const Options& options, index::HitRate& rate, std::uint64_t& skipped_lines) {
  CACHALOT_TRY_ASSIGN(
      trace::RequestTrace reader,
      trace::RequestTrace::open(options.trace, {.block_tokens = options.block_tokens,
                                                .skip_bad_lines = options.skip_bad_lines}));
  trace::Request request;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
    CACHALOT_TRY(rate.add(request.hash_ids, request.input_tokens));
    show_progress(rate.requests());
  }
  skipped_lines = reader.skipped_lines();
  return {};
}

std::string capacity_text(std::uint64_t blocks) {
  return blocks == index::kUnlimitedBlocks ? "inf" : std::to_string(blocks);
}

void print_table(std::FILE* out, const index::HitRate& rate) {
  std::fprintf(out, "%" PRIu64 " requests, %" PRIu64 " blocks, %" PRIu64 " distinct\n",
               rate.requests(), rate.blocks_total(), rate.blocks_unique());
  std::fprintf(out, "%-13s %-6s %15s %12s %12s %8s %8s %8s\n", "policy", "mode", "capacity_blocks",
               "hit_blocks", "prefix", "hit", "prefix", "token");
  for (const index::HitRateRow& row : rate.rows()) {
    std::fprintf(out, "%-13s %-6s %15s %12" PRIu64 " %12" PRIu64 " %7.2f%% %7.2f%% %7.2f%%\n",
                 index::policy_name(row.cache.policy), index::cache_mode_name(row.cache.mode),
                 capacity_text(row.cache.capacity_blocks).c_str(), row.hit_blocks,
                 row.prefix_blocks, row.hit_rate * 100, row.prefix_hit_rate * 100,
                 row.token_hit_rate * 100);
  }
}

std::string csv_of(const index::HitRate& rate) {
  std::string csv =
      "policy,mode,capacity_blocks,hit_blocks,prefix_blocks,hit_rate,prefix_hit_rate,token_hit_"
      "rate\n";
  for (const index::HitRateRow& row : rate.rows()) {
    char line[256];
    std::snprintf(line, sizeof line, "%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%.6f,%.6f,%.6f\n",
                  index::policy_name(row.cache.policy), index::cache_mode_name(row.cache.mode),
                  capacity_text(row.cache.capacity_blocks).c_str(), row.hit_blocks,
                  row.prefix_blocks, row.hit_rate, row.prefix_hit_rate, row.token_hit_rate);
    csv += line;
  }
  return csv;
}

nlohmann::json json_of(const index::HitRate& rate, std::uint64_t skipped_lines) {
  nlohmann::json rows = nlohmann::json::array();
  for (const index::HitRateRow& row : rate.rows()) {
    nlohmann::json capacity = row.cache.capacity_blocks;
    if (row.cache.capacity_blocks == index::kUnlimitedBlocks) capacity = "inf";
    rows.push_back({{"policy", index::policy_name(row.cache.policy)},
                    {"mode", index::cache_mode_name(row.cache.mode)},
                    {"capacity_blocks", capacity},
                    {"hit_blocks", row.hit_blocks},
                    {"prefix_blocks", row.prefix_blocks},
                    {"hit_rate", row.hit_rate},
                    {"prefix_hit_rate", row.prefix_hit_rate},
                    {"token_hit_rate", row.token_hit_rate}});
  }
  return {{"requests", rate.requests()},
          {"skipped_lines", skipped_lines},
          {"blocks_total", rate.blocks_total()},
          {"blocks_unique", rate.blocks_unique()},
          {"rows", rows}};
}

std::string plot_title(const Options& options) {
  const std::string name = options.trace.substr(options.trace.rfind('/') + 1);
  return "Hit rate of " + name + " (" + options.mode + ")";
}

struct Outputs {
  Output csv, plot, json;
  std::FILE* people;  // stderr where one of the three is stdout
};

Result<Outputs> open_outputs(const Options& options) {
  const auto to_stdout = (options.csv == "-") + (options.plot == "-") + (options.json == "-");
  if (to_stdout > 1) {
    return Error::make(Code::kInvalidArgument,
                       "hitrate: only one of --csv, --plot and --json can go to stdout");
  }
  if (!options.plot.empty() && options.plot != "-" && !options.plot.ends_with(".svg")) {
    return Error::make(Code::kInvalidArgument,
                       "--plot: \"%.120s\" does not end with .svg: drawings are SVG",
                       options.plot.c_str());
  }
  CACHALOT_TRY_ASSIGN(Output csv, Output::open(options.csv));
  CACHALOT_TRY_ASSIGN(Output plot, Output::open(options.plot));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  return Outputs{std::move(csv), std::move(plot), std::move(json),
                 to_stdout != 0 ? stderr : stdout};
}

Status hit_rate(const Options& options) {
  CACHALOT_TRY_ASSIGN(const std::vector<index::CacheSpec> caches, caches_of(options));
  CACHALOT_TRY_ASSIGN(Outputs outputs, open_outputs(options));
  CACHALOT_TRY_ASSIGN(index::HitRate rate, index::HitRate::make(caches, {.block_tokens = options.block_tokens}));
  std::uint64_t skipped_lines = 0;
  const Status counted = count(options, rate, skipped_lines);
  clear_progress();
  CACHALOT_TRY(counted);
  CACHALOT_TRY(rate.finish());
  print_table(outputs.people, rate);
  if (skipped_lines != 0) {
    std::fprintf(outputs.people, "%" PRIu64 " bad lines left out\n", skipped_lines);
  }
  CACHALOT_TRY(outputs.csv.write(csv_of(rate)));
  CACHALOT_TRY(outputs.plot.write(plot_hit_rate(rate.rows(), plot_title(options))));
  return outputs.json.write_json(json_of(rate, skipped_lines));
}

int run(const Options& options) {
  const Status status = hit_rate(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_hitrate(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* const command =
      app.add_subcommand("hitrate", "cache hit rate of a trace for policies and capacities");
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add("--trace", options->trace, "FILE", "request trace, JSON lines, plain or gzip")->required();
  add("--policy", options->policies, "NAME,…", "eviction policies")->capture_default_str();
  add("--capacity-blocks", options->capacities, "N,…", "capacities in blocks, or inf")
      ->capture_default_str();
  add("--mode", options->mode, "NAME",
      "leaf: as the pool does, a block never outlives its parent; stream: any block may go")
      ->capture_default_str();
  add("--block-tokens", options->block_tokens, "N", "tokens of a block of the trace")
      ->transform(number(1, 1u << 20))
      ->capture_default_str();
  command->add_flag("--skip-bad-lines", options->skip_bad_lines, "count them and go on");
  add("--csv", options->csv, "FILE", "write the rows as CSV to FILE, or to stdout for -");
  add("--plot", options->plot, "FILE.svg", "draw hit rate over capacity, or to stdout for -");
  add("--json", options->json, "FILE", "write the rows to FILE, or to stdout for -");
  command->footer(
      "Example: cachalot hitrate --trace conversation_trace.jsonl.gz --policy lru "
      "--capacity-blocks 1000,10000,inf --plot hit_rate.svg");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
