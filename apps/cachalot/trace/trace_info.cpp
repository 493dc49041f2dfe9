// `cachalot trace info`: what a request trace has in it.

#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "command.h"
#include "result_flags.h"
#include "trace/request/trace_summary.h"
#include "trace_flags.h"

namespace cachalot::apps {
namespace {

constexpr double kMsPerSecond = 1000;

struct InfoOptions {
  TraceFlags trace;
  std::vector<std::string> files;
  std::string json;
};

struct Info {
  std::string file;
  trace::TraceProperties properties;
  std::uint64_t block_tokens = 0;
  bool has_ids = false;
  bool ids_are_synthetic = false;
  std::uint64_t skipped_lines = 0, unsorted_requests = 0;
  trace::TraceSummary summary;

  double span_s() const { return (summary.last_ms() - summary.first_ms()) / kMsPerSecond; }
  // Of the requests behind the first.
  double arrival_rps() const {
    return span_s() > 0 ? static_cast<double>(summary.requests() - 1) / span_s() : 0;
  }
};

Result<Info> read(const InfoOptions& options, const std::string& file) {
  CACHALOT_TRY_ASSIGN(trace::RequestTrace reader, open_trace(options.trace, file));
  Info info{.file = file, .properties = {}, .summary = trace::TraceSummary(reader.block_tokens())};
  trace::Request request;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
    const Status added = info.summary.add(request);
    if (!added) {
      return Error::make(added.error().code, "%.120s: %s", file.c_str(), added.error().message);
    }
  }
  info.properties = reader.properties();
  info.block_tokens = reader.block_tokens();
  info.has_ids = reader.has_ids();
  info.ids_are_synthetic = !info.properties.has_ids && info.has_ids;
  info.skipped_lines = reader.skipped_lines();
  info.unsorted_requests = reader.unsorted_requests();
  return info;
}

void print_lengths(std::FILE* out, const char* name, const trace::Lengths& lengths) {
  std::fprintf(out,
               "%-16s mean %.1f  p50 %" PRIu64 "  p90 %" PRIu64 "  p99 %" PRIu64 "  max %" PRIu64
               "  total %" PRIu64 "\n",
               name, lengths.mean, lengths.p50, lengths.p90, lengths.p99, lengths.max,
               lengths.total);
}

void print_blocks(std::FILE* out, const Info& info) {
  const trace::TraceSummary& summary = info.summary;
  if (!info.has_ids) {
    std::fprintf(out, "%-16s none: arrivals and lengths only\n", "block ids");
    return;
  }
  const trace::IdealRates ideal = summary.ideal();
  std::fprintf(out, "%-16s %" PRIu64 " tokens%s%s\n", "block", info.block_tokens,
               info.properties.block_tokens == 0 ? ", as assumed" : ", as stated",
               info.ids_are_synthetic ? "; ids are synthetic" : "");
  std::fprintf(out, "%-16s %" PRIu64 ", %" PRIu64 " distinct\n", "blocks", summary.blocks_total(),
               summary.blocks_unique());
  std::fprintf(out,
               "%-16s blocks %.4f (%" PRIu64
               ")  tokens %.4f  full blocks %.4f  tokens of the "
               "mean request %.4f\n",
               "ideal hit rate", ideal.block, ideal.hit_blocks, ideal.token, ideal.full_block,
               ideal.mean_token);
  const std::uint64_t inconsistent = summary.inconsistent_ids();
  if (inconsistent == 0) {
    std::fprintf(out, "%-16s every id has one parent\n", "prefixes");
  } else {
    std::fprintf(out, "%-16s %s below several parents\n", "prefixes",
                 base::counted(inconsistent, "id").c_str());
  }
}

void print(std::FILE* out, const Info& info) {
  std::fprintf(out, "%-16s %s\n", "trace", base::printable(info.file).c_str());
  std::fprintf(out, "%-16s %s\n", "format", trace::trace_format_name(info.properties.format));
  std::fprintf(out, "%-16s %" PRIu64 " in %.1f s, %.3f a second\n", "requests",
               info.summary.requests(), info.span_s(), info.arrival_rps());
  if (info.unsorted_requests != 0) {
    std::fprintf(out, "%-16s %s earlier than the one in front\n", "not sorted",
                 base::counted(info.unsorted_requests, "request").c_str());
  }
  if (info.skipped_lines != 0) {
    std::fprintf(out, "%-16s %s left out\n", "skipped",
                 base::counted(info.skipped_lines, "bad line").c_str());
  }
  print_lengths(out, "input tokens", info.summary.input_tokens());
  print_lengths(out, "output tokens", info.summary.output_tokens());
  print_blocks(out, info);
}

nlohmann::json info_json(const trace::Lengths& lengths) {
  return {{"total", lengths.total}, {"mean", lengths.mean}, {"p50", lengths.p50},
          {"p90", lengths.p90},     {"p99", lengths.p99},   {"max", lengths.max}};
}

nlohmann::json info_json(const Info& info) {
  const trace::TraceSummary& summary = info.summary;
  nlohmann::json json = {{"trace", info.file},
                         {"format", trace::trace_format_name(info.properties.format)},
                         {"requests", summary.requests()},
                         {"skipped_lines", info.skipped_lines},
                         {"unsorted_requests", info.unsorted_requests},
                         {"first_ms", summary.first_ms()},
                         {"span_s", info.span_s()},
                         {"arrival_rps", info.arrival_rps()},
                         {"input_tokens", info_json(summary.input_tokens())},
                         {"output_tokens", info_json(summary.output_tokens())},
                         {"has_ids", info.has_ids},
                         {"ids_are_synthetic", info.ids_are_synthetic}};
  if (!info.has_ids) return json;
  const trace::IdealRates ideal = summary.ideal();
  json.update({{"block_tokens", info.block_tokens},
               {"block_tokens_stated", info.properties.block_tokens != 0},
               {"blocks_total", summary.blocks_total()},
               {"blocks_unique", summary.blocks_unique()},
               {"inconsistent_ids", summary.inconsistent_ids()},
               {"ideal",
                {{"hit_blocks", ideal.hit_blocks},
                 {"block_hit_rate", ideal.block},
                 {"token_hit_rate", ideal.token},
                 {"full_block_hit_rate", ideal.full_block},
                 {"mean_request_token_hit_rate", ideal.mean_token}}}});
  return json;
}

Status show(const InfoOptions& options) {
  return describe_files(
      options.files, options.json, [&](const std::string& file) { return read(options, file); },
      print, [](const Info& info) { return info_json(info); });
}

int run_info(const InfoOptions& options) {
  const Status status = show(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_trace_info(Command& trace, Chosen& chosen) {
  auto options = std::make_shared<InfoOptions>();
  Command* const command = trace.add_subcommand(
      "info", "shows requests, times, lengths, blocks, and the hit rate of an unlimited cache");
  command->add_option("trace", options->files, "request traces, plain or gzip")
      ->type_name("FILE")
      ->required();
  add_block_tokens_flag(*command, options->trace);
  add_trace_reading_flags(*command, options->trace);
  add_figures_flag(*command, options->json);
  command->footer("Example: cachalot trace info conversation_trace.jsonl.gz --json -");
  command->callback([options, &chosen] { chosen.run = [options] { return run_info(*options); }; });
}

}  // namespace cachalot::apps
