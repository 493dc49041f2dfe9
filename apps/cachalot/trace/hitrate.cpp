// `cachalot hitrate`: what a cache would have hit, for policies and capacities.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cache_sim/hit_rate.h"
#include "command.h"
#include "geometry/model.h"
#include "given_flags.h"
#include "hitrate_output.h"
#include "model_flag.h"
#include "output.h"
#include "plot.h"
#include "plot_hit_rate.h"
#include "trace/request/request_trace.h"
#include "trace/request/trace_merge.h"
#include "trace_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct HitrateOptions {
  TraceFlags trace;
  std::vector<std::string> policies = {"lru"};
  std::vector<std::string> capacities = {"inf"};
  std::vector<std::string> page_tokens;  // none: the trace's blocks
  std::string mode = "leaf";
  std::string model;
  std::string bytes_per_token;
  std::string temp_dir;
  bool no_summary = false;
  double warmup = 0;
  std::string count = "blocks";
  std::string csv, plot, json;
};

// "100..100000": eight to a power of ten, of two digits each. One number, or "inf", stands for itself.
Result<std::vector<std::uint64_t>> parse_capacities(const std::string& text) {
  constexpr const char* kFlag = "--capacity-blocks";
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t blocks, parse_blocks_or_inf(kFlag, text));
    return std::vector<std::uint64_t>{blocks};
  }
  CACHALOT_TRY_ASSIGN(const std::uint64_t low, parse_blocks(kFlag, text.substr(0, dots)));
  CACHALOT_TRY_ASSIGN(const std::uint64_t high, parse_blocks(kFlag, text.substr(dots + 2)));
  if (low == 0 || high < low) {
    return Error::make(Code::kInvalidArgument,
                       "--capacity-blocks: \"%.60s\", expected LOW..HIGH with 1 <= LOW <= HIGH",
                       text.c_str());
  }
  std::vector<std::uint64_t> capacities = {low};
  constexpr double kSteps[] = {1.0, 1.3, 1.8, 2.4, 3.2, 4.2, 5.6, 7.5};
  for (double decade = 1; decade <= 1e19; decade *= 10) {
    for (const double step : kSteps) {
      const double value = std::round(step * decade);
      if (value >= 1.8e19) break;
      const auto blocks = static_cast<std::uint64_t>(value);
      if (blocks > capacities.back() && blocks < high) capacities.push_back(blocks);
    }
  }
  if (high > low) capacities.push_back(high);
  return capacities;
}

// "lru|…|all,…": those of leaf mode, then those of stream mode alone.
std::string policy_choices() {
  std::string names = eviction::policy_names(eviction::CacheMode::kLeaf, "|");
  for (const eviction::PolicyKind kind : eviction::online_policies()) {
    if (!eviction::has_mode(kind, eviction::CacheMode::kLeaf))
      names += "|" + std::string(eviction::policy_name(kind));
  }
  return names + "|all,…";
}

Result<std::vector<cache_sim::CacheSpec>> caches_of(const HitrateOptions& options) {
  CACHALOT_TRY_ASSIGN(const eviction::CacheMode mode, eviction::parse_cache_mode(options.mode));
  CACHALOT_TRY_ASSIGN(auto policies, split_list("--policy", options.policies));
  CACHALOT_TRY_ASSIGN(const auto texts, split_list("--capacity-blocks", options.capacities));
  if (std::find(policies.begin(), policies.end(), "all") != policies.end()) {
    CACHALOT_TRY(check_all_is_alone("--policy", policies));
    CACHALOT_TRY_ASSIGN(policies, split_list("--policy", {eviction::policy_names(mode, ",")}));
  }
  std::vector<std::uint64_t> capacities;
  for (const std::string& text : texts) {
    CACHALOT_TRY_ASSIGN(const std::vector<std::uint64_t> some, parse_capacities(text));
    capacities.insert(capacities.end(), some.begin(), some.end());
  }
  std::vector<cache_sim::CacheSpec> caches;
  for (const std::string& name : policies) {
    CACHALOT_TRY_ASSIGN(const eviction::PolicyKind policy,
                        named("--policy", eviction::parse_policy(name)));
    for (const std::uint64_t blocks : capacities) {
      const cache_sim::CacheSpec spec{policy, mode, blocks};
      CACHALOT_TRY(cache_sim::check_cache(spec));
      caches.push_back(spec);
    }
  }
  return caches;
}

// 0: neither --model nor --bytes-per-token was given.
Result<std::uint64_t> bytes_per_token(const HitrateOptions& options) {
  if (!options.model.empty() && !options.bytes_per_token.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "hitrate: --model and --bytes-per-token say the same, expected one of them");
  }
  if (!options.model.empty()) {
    CACHALOT_TRY_ASSIGN(const geometry::Model model, geometry::parse_model(options.model));
    return model.kv_bytes_per_token();
  }
  if (options.bytes_per_token.empty()) return std::uint64_t{0};
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes,
                      parse_bytes("--bytes-per-token", options.bytes_per_token));
  if (bytes != 0) return bytes;
  return Error::make(Code::kInvalidArgument, "--bytes-per-token: 0, expected at least 1");
}

Result<std::uint64_t> block_bytes(const HitrateOptions& options, std::uint64_t block_tokens) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, bytes_per_token(options));
  std::uint64_t product = 0;
  if (!__builtin_mul_overflow(bytes, block_tokens, &product)) return product;
  return Error::make(Code::kInvalidArgument,
                     "--bytes-per-token: %" PRIu64 " bytes times %" PRIu64
                     " tokens a block exceed 64 bits",
                     bytes, block_tokens);
}

// Where the log of references for opt goes.
std::string temp_dir(const HitrateOptions& options) {
  if (!options.temp_dir.empty()) return options.temp_dir;
  const char* const environment = std::getenv("TMPDIR");
  return environment != nullptr && *environment != '\0' ? environment : "/tmp";
}

// Progress lines on a terminal; nothing in a pipe.
void show_row(const cache_sim::CacheSpec& spec) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s at %s blocks", eviction::policy_name(spec.policy),
               capacity_text(spec.capacity_blocks).c_str());
}
void clear_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

// Caches of one block size.
struct Sized {
  std::uint64_t block_tokens;
  std::uint64_t joined;  // so many of the trace's blocks are one
  cache_sim::HitRate rate;
};

// floor(requests * the fraction of --warmup). Reads the trace to its end.
Result<std::uint64_t> warmup_requests(const HitrateOptions& options) {
  if (options.warmup == 0) return std::uint64_t{0};
  if (!std::filesystem::is_regular_file(options.trace.file)) {
    return Error::make(
        Code::kInvalidArgument,
        "--trace: \"%.200s\" is not a regular file, expected one: --warmup reads the "
        "trace twice",
        options.trace.file.c_str());
  }
  CACHALOT_TRY_ASSIGN(trace::RequestTrace reader, open_trace_with_ids(options.trace));
  trace::Request request;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
  }
  return static_cast<std::uint64_t>(static_cast<double>(reader.requests()) * options.warmup);
}

// One pass for all sizes.
Status count(trace::RequestTrace& reader, std::vector<Sized>& sizes) {
  trace::Request request;
  std::vector<std::uint64_t> ids;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
    for (Sized& size : sizes) {
      ids = request.hash_ids;
      trace::join_blocks(size.joined, ids);
      CACHALOT_TRY(size.rate.add(ids, request.input_tokens, request.timestamp_ms));
    }
    show_requests(sizes.front().rate.requests(), 4096);
  }
  for (Sized& size : sizes) CACHALOT_TRY(size.rate.finish(show_row));
  return {};
}

// The sizes of --page-tokens, else `trace_tokens`.
Result<std::vector<std::uint64_t>> sizes_of(const HitrateOptions& options,
                                            std::uint64_t trace_tokens) {
  if (options.page_tokens.empty()) return std::vector<std::uint64_t>{trace_tokens};
  CACHALOT_TRY_ASSIGN(const auto texts, split_list("--page-tokens", options.page_tokens));
  std::vector<std::uint64_t> sizes;
  for (const std::string& text : texts) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t tokens, parse_blocks("--page-tokens", text));
    if (tokens == 0 || tokens % trace_tokens != 0) {
      return Error::make(Code::kInvalidArgument,
                         "--page-tokens: %" PRIu64 ", expected multiples of %" PRIu64
                         ": the trace has one id for so many tokens",
                         tokens, trace_tokens);
    }
    sizes.push_back(tokens);
  }
  return sizes;
}

// As many tokens in fewer, larger blocks.
Result<std::vector<cache_sim::CacheSpec>> joined_caches(std::vector<cache_sim::CacheSpec> caches,
                                                        std::uint64_t joined) {
  for (cache_sim::CacheSpec& cache : caches) {
    if (cache.capacity_blocks == cache_sim::kUnlimitedBlocks) continue;
    if (cache.capacity_blocks < joined) {
      return Error::make(Code::kInvalidArgument,
                         "--capacity-blocks: %" PRIu64
                         " blocks of the trace, expected at least the %" PRIu64
                         " of the largest block of --page-tokens",
                         cache.capacity_blocks, joined);
    }
    cache.capacity_blocks /= joined;
  }
  return caches;
}

struct Outputs {
  Output csv, plot, json;
  std::FILE* people;  // stderr where one of the three is stdout
};

Result<Outputs> open_outputs(const HitrateOptions& options) {
  CACHALOT_TRY(check_plot_file(options.plot));
  CACHALOT_TRY(check_are_apart(
      {{"--csv", options.csv}, {"--plot", options.plot}, {"--json", options.json}}));
  CACHALOT_TRY_ASSIGN(Output csv, Output::open(options.csv));
  CACHALOT_TRY_ASSIGN(Output plot, Output::open(options.plot));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  const bool uses_stdout = options.csv == "-" || options.plot == "-" || options.json == "-";
  return Outputs{std::move(csv), std::move(plot), std::move(json), uses_stdout ? stderr : stdout};
}

HitRatePlot plot_of(const HitrateOptions& options, const HitRateResult& result) {
  return {.title = "Hit rate of " + name_in_title(options.trace.file),
          .subtitle = plot_subtitle(result, options.mode, options.model),
          .block_bytes = result.block_bytes};
}

Status hit_rate(const HitrateOptions& options, const nlohmann::json& flags) {
  if (!options.page_tokens.empty() && !options.plot.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "hitrate: --plot draws one block size, expected no --page-tokens");
  }
  CACHALOT_TRY_ASSIGN(const std::vector<cache_sim::CacheSpec> caches, caches_of(options));
  CACHALOT_TRY(bytes_per_token(options));
  const std::string* const input = &options.trace.file;
  CACHALOT_TRY(check_is_no_input("--csv", options.csv, {input, 1}));
  CACHALOT_TRY(check_is_no_input("--plot", options.plot, {input, 1}));
  CACHALOT_TRY(check_is_no_input("--json", options.json, {input, 1}));
  CACHALOT_TRY_ASSIGN(Outputs outputs, open_outputs(options));
  CACHALOT_TRY_ASSIGN(const std::uint64_t warmup, warmup_requests(options));
  CACHALOT_TRY_ASSIGN(trace::RequestTrace reader, open_trace_with_ids(options.trace));
  CACHALOT_TRY_ASSIGN(const auto tokens, sizes_of(options, reader.block_tokens()));
  std::vector<Sized> sizes;
  for (const std::uint64_t block_tokens : tokens) {
    const std::uint64_t joined = block_tokens / reader.block_tokens();
    CACHALOT_TRY_ASSIGN(const auto joined_specs, joined_caches(caches, joined));
    const cache_sim::HitRateOptions how{.block_tokens = block_tokens,
                                        .warmup_requests = warmup,
                                        .with_reuse = !options.no_summary,
                                        .spill_directory = temp_dir(options)};
    CACHALOT_TRY_ASSIGN(cache_sim::HitRate rate, cache_sim::HitRate::make(joined_specs, how));
    sizes.push_back({block_tokens, joined, std::move(rate)});
  }
  const auto begin = std::chrono::steady_clock::now();
  const Status counted = count(reader, sizes);
  clear_progress();
  CACHALOT_TRY(counted);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  std::vector<HitRateResult> results;
  for (const Sized& size : sizes) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, block_bytes(options, size.block_tokens));
    results.push_back({.trace = options.trace.file,
                       .flags = &flags,
                       .rate = &size.rate,
                       .rows = size.rate.rows(),
                       .block_tokens = size.block_tokens,
                       .block_bytes = bytes,
                       .warmup_requests = warmup,
                       .counts_tokens = options.count == "tokens",
                       .skipped_lines = reader.skipped_lines(),
                       .wall_s = wall.count()});
  }
  if (!options.page_tokens.empty()) {
    print_sizes(outputs.people, results);
    CACHALOT_TRY(outputs.csv.write(csv_of_sizes(results)));
    return outputs.json.write_json(json_of_sizes(results));
  }
  const HitRateResult& result = results.front();
  print_table(outputs.people, result);
  CACHALOT_TRY(outputs.csv.write(csv_of(result)));
  CACHALOT_TRY(outputs.plot.write(plot_hit_rate(result.rows, plot_of(options, result))));
  return outputs.json.write_json(json_of(result));
}

int run_hitrate(const HitrateOptions& options, const nlohmann::json& flags) {
  const Status status = hit_rate(options, flags);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_hitrate(Command& app, Chosen& chosen) {
  auto options = std::make_shared<HitrateOptions>();
  Command* const command =
      app.add_subcommand("hitrate", "cache hit rate of a trace for policies and capacities");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add_trace_file_flag(*command, options->trace);
  add("--policy", options->policies, policy_choices(),
      "in leaf mode " + eviction::policy_names(eviction::CacheMode::kLeaf) + "; in stream mode " +
          eviction::policy_names(eviction::CacheMode::kStream) + "; all: all of the mode")
      ->capture_default_str();
  add("--capacity-blocks", options->capacities, "N,…",
      "capacities in blocks, inf, or LOW..HIGH: eight points per power of ten")
      ->capture_default_str();
  add("--mode", options->mode, "leaf|stream",
      "leaf: as the pool, only blocks without cached children are evicted; stream: any block may "
      "be evicted")
      ->capture_default_str();
  add_block_tokens_flag(*command, options->trace);
  add("--page-tokens", options->page_tokens, "N,…",
      "block sizes to simulate, multiples of the trace's; capacities stay as many tokens");
  add_model_flag(*command, options->model, LayersOf::kModel,
                 "model of the KV: adds capacities in bytes");
  add("--bytes-per-token", options->bytes_per_token, "SIZE",
      "instead: KV bytes of a token over all layers and ranks");
  add_trace_reading_flags(*command, options->trace);
  add("--warmup", options->warmup, "FRACTION",
      "the first floor(requests x FRACTION) requests only warm the caches; rows count the others")
      ->transform(decimal(0, 0.999999));
  add("--count", options->count, "blocks|tokens", "what the table and the CSV show")
      ->check(one_of({"blocks", "tokens"}))
      ->capture_default_str();
  command->add_flag("--no-summary", options->no_summary,
                    "no reuse distances and working sets; saves a third of the time");
  add("--temp-dir", options->temp_dir, "FOLDER",
      "for a file of opt, which looks ahead: 8 bytes per reference (default: $TMPDIR, else /tmp)");
  add("--csv", options->csv, "FILE", "write the rows as CSV to FILE, or to stdout for -");
  add("--plot", options->plot, "FILE.svg",
      "draw hit rate over capacity to FILE.svg, or to stdout for -");
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  command->footer(
      "Example: cachalot hitrate --trace conversation_trace.jsonl.gz --policy lru,lfu,opt "
      "--capacity-blocks 1000..200000,inf --model Llama-3-70B --plot hit_rate.svg");
  command->callback([command, options, &chosen] {
    chosen.run = [command, options] { return run_hitrate(*options, json_of_flags(*command)); };
  });
}

}  // namespace cachalot::apps
