// `cachalot tiers`: a trace through the device and host memory of one engine, exclusive against inclusive.

#include <unistd.h>

#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "cache_sim/hit_rate.h"
#include "command.h"
#include "output.h"
#include "replay/tiers/tier_replay.h"
#include "trace/request/request_trace.h"
#include "trace_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct TiersOptions {
  TraceFlags trace;
  std::uint32_t device_blocks = 0, host_blocks = 0;
  std::string inclusion = "both";
  std::string writes = "through";
  std::string order = "lru";
  std::string block_bytes = "16KiB";
  std::string json;
};

struct Row {
  std::string inclusion;
  std::unique_ptr<replay::TierReplay> replay;
};

struct Outcome {
  std::vector<Row> rows;
  std::vector<cache_sim::HitRateRow> bounds;  // of one cache of L1's size, and of both tiers'
};

Result<TierWrites> parse_writes(const std::string& text) {
  if (text == "through") return TierWrites::kThrough;
  if (text == "selective") return TierWrites::kSelective;
  return TierWrites::kBack;
}

Result<std::vector<Row>> make_rows(const TiersOptions& options, std::uint64_t block_tokens) {
  std::vector<Row> rows;
  CACHALOT_TRY_ASSIGN(const std::uint64_t block_bytes,
                      parse_bytes("--block-bytes", options.block_bytes));
  CACHALOT_TRY_ASSIGN(const TierWrites writes, parse_writes(options.writes));
  for (const char* const inclusion : {"exclusive", "inclusive"}) {
    if (options.inclusion != "both" && options.inclusion != inclusion) continue;
    CACHALOT_TRY_ASSIGN(replay::TierReplay made,
                        replay::TierReplay::make({.block_bytes = block_bytes,
                                                  .device_blocks = options.device_blocks,
                                                  .host_blocks = options.host_blocks,
                                                  .exclusive = inclusion[0] == 'e',
                                                  .writes = writes,
                                                  .order = options.order,
                                                  .block_tokens = block_tokens}));
    rows.push_back({inclusion, std::make_unique<replay::TierReplay>(std::move(made))});
  }
  return rows;
}

Status replay_all(trace::RequestTrace& reader, Outcome& result, cache_sim::HitRate& rate) {
  trace::Request request;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
    CACHALOT_TRY(rate.add(request.hash_ids, request.input_tokens, request.timestamp_ms));
    for (Row& row : result.rows)
      CACHALOT_TRY(row.replay->add(request.hash_ids, request.input_tokens));
    show_requests(rate.requests(), 256);
  }
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
  CACHALOT_TRY(rate.finish());
  result.bounds = rate.rows();
  return {};
}

void print_rows(std::FILE* out, const TiersOptions& options, const Outcome& result) {
  const replay::TierReplayCounts first = result.rows.front().replay->counts();
  std::fprintf(out, "%" PRIu64 " requests, %" PRIu64 " blocks; L1 %u blocks, L2 %u blocks\n",
               first.requests, first.blocks, options.device_blocks, options.host_blocks);
  std::fprintf(out, "%-28s %10s %10s %8s %12s %12s %12s\n", "tiers", "L1 hits", "L2 hits", "token",
               "L1 to L2 MB", "L2 to L1 MB", "verified MB");
  const auto mb = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  for (const Row& row : result.rows) {
    const replay::TierReplayCounts c = row.replay->counts();
    std::fprintf(out, "%-28s %10" PRIu64 " %10" PRIu64 " %7.2f%% %12.1f %12.1f %12.1f\n",
                 row.inclusion.c_str(), c.device_hits, c.host_hits, c.token_hit_rate() * 100,
                 mb(c.tiers.backed_up_bytes), mb(c.tiers.loaded_bytes), mb(c.verified_bytes));
    if (c.wrong_words != 0)
      std::fprintf(out, "WRONG BYTES: %" PRIu64 " words of 8\n", c.wrong_words);
    if (c.skipped_requests != 0)
      std::fprintf(out, "%" PRIu64 " requests are larger than L1 and were left out\n",
                   c.skipped_requests);
  }
  for (const cache_sim::HitRateRow& row : result.bounds) {
    const std::string name = "one cache of " + std::to_string(row.cache.capacity_blocks);
    std::fprintf(out, "%-28s %10" PRIu64 " %10s %7.2f%%\n", name.c_str(), row.prefix_blocks, "",
                 row.token_hit_rate * 100);
  }
}

nlohmann::json tiers_json(const TiersOptions& options, const Outcome& result) {
  nlohmann::json rows = nlohmann::json::array(), bounds = nlohmann::json::array();
  for (const Row& row : result.rows) {
    const replay::TierReplayCounts c = row.replay->counts();
    rows.push_back({{"tiers", row.inclusion},
                    {"device_hit_blocks", c.device_hits},
                    {"host_hit_blocks", c.host_hits},
                    {"token_hit_rate", c.token_hit_rate()},
                    {"backed_up_bytes", c.tiers.backed_up_bytes},
                    {"loaded_bytes", c.tiers.loaded_bytes},
                    {"evicted_device_blocks", c.tiers.evicted_device_blocks},
                    {"evicted_host_blocks", c.tiers.evicted_host_blocks},
                    {"verified_bytes", c.verified_bytes},
                    {"wrong_words", c.wrong_words},
                    {"skipped_requests", c.skipped_requests}});
  }
  for (const cache_sim::HitRateRow& row : result.bounds) {
    bounds.push_back({{"capacity_blocks", row.cache.capacity_blocks},
                      {"prefix_blocks", row.prefix_blocks},
                      {"token_hit_rate", row.token_hit_rate}});
  }
  const replay::TierReplayCounts first = result.rows.front().replay->counts();
  return {{"requests", first.requests},
          {"blocks", first.blocks},
          {"device_blocks", options.device_blocks},
          {"host_blocks", options.host_blocks},
          {"rows", rows},
          {"one_cache", bounds}};
}

Result<bool> replay_tiers(const TiersOptions& options) {
  CACHALOT_TRY(check_is_no_input("--json", options.json, {&options.trace.file, 1}));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(trace::RequestTrace reader, open_trace_with_ids(options.trace));
  Outcome result;
  CACHALOT_TRY_ASSIGN(result.rows, make_rows(options, reader.block_tokens()));
  const cache_sim::CacheSpec bounds[] = {
      {.capacity_blocks = options.device_blocks},
      {.capacity_blocks = std::uint64_t{options.device_blocks} + options.host_blocks}};
  CACHALOT_TRY_ASSIGN(cache_sim::HitRate rate,
                      cache_sim::HitRate::make(bounds, {.block_tokens = reader.block_tokens()}));
  CACHALOT_TRY(replay_all(reader, result, rate));
  print_rows(human_output(options.json), options, result);
  CACHALOT_TRY(json.write_json(tiers_json(options, result)));
  for (const Row& row : result.rows) {
    if (row.replay->counts().wrong_words != 0) return false;
  }
  return true;
}

int run_tiers(const TiersOptions& options) {
  const Result<bool> is_right = replay_tiers(options);
  if (!is_right) return fail(is_right.error());
  return *is_right ? kExitDone : kExitFault;
}

}  // namespace

void add_tiers(Command& app, Chosen& chosen) {
  auto options = std::make_shared<TiersOptions>();
  Command* const command = app.add_subcommand(
      "tiers", "replay a trace through an engine's device and host memory, every byte checked");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add_trace_file_flag(*command, options->trace);
  add("--device-blocks", options->device_blocks, "N", "L1: blocks of device memory")
      ->required()
      ->transform(number(2, 100'000'000));
  add("--host-blocks", options->host_blocks, "N", "L2: blocks of host memory")
      ->required()
      ->transform(number(1, 100'000'000));
  add("--inclusion", options->inclusion, "both|exclusive|inclusive",
      "exclusive: L2 has what L1 has evicted; inclusive: copies of L1's blocks")
      ->check(one_of({"both", "exclusive", "inclusive"}))
      ->capture_default_str();
  add("--write-policy", options->writes, "through|selective|back",
      "when inclusive tiers copy to L2: at once, at the second use, at eviction")
      ->check(one_of({"through", "selective", "back"}))
      ->capture_default_str();
  add("--order", options->order, "ORDER", "of eviction: lru, lfu, fifo, slru, …")
      ->capture_default_str();
  add("--block-bytes", options->block_bytes, "SIZE", "of a block of the trace")
      ->capture_default_str();
  add_block_tokens_flag(*command, options->trace);
  add_trace_reading_flags(*command, options->trace);
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  command->footer(
      "Example: cachalot tiers --trace conversation_trace.jsonl.gz --device-blocks 5000 "
      "--host-blocks 2500");
  command->callback([options, &chosen] { chosen.run = [options] { return run_tiers(*options); }; });
}

}  // namespace cachalot::apps
