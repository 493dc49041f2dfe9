// `cachalot trace convert`: request traces of any format as one of Mooncake's.

#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/words.h"
#include "command.h"
#include "output.h"
#include "result_flags.h"
#include "trace/request/trace_merge.h"
#include "trace/request/trace_writer.h"
#include "trace_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct ConvertOptions {
  TraceFlags trace;
  std::vector<std::string> files;
  std::string out;
  std::string to = "mooncake";
  std::uint64_t block_tokens = 0;  // of what is written
  bool renumber = false;
  std::string json;
};

Result<trace::TraceMerge> open(const ConvertOptions& options) {
  std::vector<trace::RequestTrace> traces;
  for (const std::string& file : options.files) {
    CACHALOT_TRY_ASSIGN(trace::RequestTrace trace, open_trace(options.trace, file));
    traces.push_back(std::move(trace));
  }
  return trace::TraceMerge::make(
      std::move(traces), {.block_tokens = options.block_tokens, .renumber = options.renumber});
}

Status convert(const ConvertOptions& options) {
  CACHALOT_TRY(check_are_apart({{"--out", options.out}, {"--json", options.json}}));
  CACHALOT_TRY(check_is_no_input("--out", options.out, options.files));
  CACHALOT_TRY(check_is_no_input("--json", options.json, options.files));
  CACHALOT_TRY_ASSIGN(trace::TraceMerge merge, open(options));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(trace::TraceWriter writer, trace::TraceWriter::open(options.out));
  trace::Request request;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, merge.next(request));
    if (!more) break;
    CACHALOT_TRY(writer.write(request));
  }
  CACHALOT_TRY(writer.finish());
  std::fprintf(options.out == "-" ? stderr : human_output(options.json),
               "%s, %s of %" PRIu64 " tokens%s\n",
               base::counted(writer.requests(), "request").c_str(),
               base::counted(writer.blocks(), "block").c_str(), merge.block_tokens(),
               merge.renumbers() ? ", ids renumbered" : "");
  if (merge.block_tokens() != kDefaultBlockTokens) {
    std::fprintf(options.out == "-" ? stderr : human_output(options.json),
                 "to read it, give --block-tokens %" PRIu64 ": the format does not hold it\n",
                 merge.block_tokens());
  }
  if (merge.skipped_lines() != 0) {
    std::fprintf(options.out == "-" ? stderr : human_output(options.json), "%s left out\n",
                 base::counted(merge.skipped_lines(), "bad line").c_str());
  }
  return json.write_json({{"requests", writer.requests()},
                          {"skipped_lines", merge.skipped_lines()},
                          {"blocks_total", writer.blocks()},
                          {"block_tokens", merge.block_tokens()},
                          {"renumbered", merge.renumbers()}});
}

int run_convert(const ConvertOptions& options) {
  const Status status = convert(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_trace_convert(Command& trace, Chosen& chosen) {
  auto options = std::make_shared<ConvertOptions>();
  Command* const command = trace.add_subcommand(
      "convert",
      "merges request traces by time into one of Mooncake's format; renumbers local ids");
  command
      ->add_option("--trace", options->files,
                   "request trace; several traces, or a repeated flag, are merged by time")
      ->type_name("FILE")
      ->required();
  add_out_flag(*command, options->out);
  command->add_option("--to", options->to, "format to write")
      ->type_name("NAME")
      ->check(one_of({"mooncake"}))
      ->capture_default_str();
  command
      ->add_option("--block-tokens", options->block_tokens,
                   "tokens of a block of the output: a multiple of the traces' own")
      ->type_name("N")
      ->transform(number(1, 1u << 20));
  command
      ->add_option("--trace-block-tokens", options->trace.block_tokens,
                   "tokens of a block of the traces (default: as the traces state, else 512)")
      ->type_name("N")
      ->transform(number(1, 1u << 20));
  command->add_flag("--renumber", options->renumber,
                    "renumber all ids, in the order of their first use");
  add_trace_reading_flags(*command, options->trace);
  add_counts_flag(*command, options->json);
  command->footer(
      "Example: cachalot trace convert --trace session_1.json.gz --trace session_2.json.gz "
      "--block-tokens 512 --out sessions.jsonl.gz");
  command->callback(
      [options, &chosen] { chosen.run = [options] { return run_convert(*options); }; });
}

}  // namespace cachalot::apps
