#include "trace_flags.h"

#include <cstdio>

#include "base/words.h"
#include "values.h"

namespace cachalot::apps {

void add_trace_file_flag(Command& command, TraceFlags& flags) {
  command.add_option("--trace", flags.file, "request trace, plain or gzip")
      ->type_name("FILE")
      ->required();
}

void add_trace_reading_flags(Command& command, TraceFlags& flags) {
  command
      .add_option("--trace-format", flags.format, "what the lines mean; auto: as the content tells")
      ->type_name("auto|" + trace::trace_format_names("|"))
      ->capture_default_str();
  command
      .add_option("--time-unit", flags.time_unit,
                  "of the times of a mooncake or aiperf trace; auto: ms, with a warning where they "
                  "seem to be seconds")
      ->type_name("auto|ms|s|us")
      ->check(one_of({"auto", "ms", "s", "us"}))
      ->capture_default_str();
  command
      .add_option(
          "--synthetic-prefix", flags.synthetic_prefix,
          "for a trace without block ids: assume that all requests begin with the same `shared` "
          "tokens, and that a request continues an earlier one with probability `continue`")
      ->type_name("shared=TOKENS,continue=P,seed=N");
  command.add_flag("--skip-bad-lines", flags.skip_bad_lines,
                   "skip and count broken lines of the trace");
}

void add_block_tokens_flag(Command& command, TraceFlags& flags) {
  command
      .add_option("--block-tokens", flags.block_tokens,
                  "tokens of a block of the trace (default: as the trace states, else 512)")
      ->type_name("N")
      ->transform(number(1, 1u << 20));
}

void add_trace_flags(Command& command, TraceFlags& flags) {
  add_trace_file_flag(command, flags);
  add_block_tokens_flag(command, flags);
  add_trace_reading_flags(command, flags);
}

Result<trace::RequestTraceOptions> trace_options(const TraceFlags& flags) {
  trace::RequestTraceOptions options{.block_tokens = flags.block_tokens,
                                     .skip_bad_lines = flags.skip_bad_lines,
                                     .default_block_tokens = kDefaultBlockTokens};
  CACHALOT_TRY_ASSIGN(options.format,
                      named("--trace-format", trace::parse_trace_format(flags.format)));
  if (flags.time_unit == "ms") options.time_unit_ms = 1;
  if (flags.time_unit == "s") options.time_unit_ms = 1000;
  if (flags.time_unit == "us") options.time_unit_ms = 1e-3;
  options.warn = [](const std::string& text) {
    std::fprintf(stderr, "cachalot: warning: %s\n", base::printable(text).c_str());
  };
  if (flags.synthetic_prefix.empty()) return options;
  CACHALOT_TRY_ASSIGN(options.synthetic_prefix,
                      trace::parse_synthetic_prefix(flags.synthetic_prefix));
  return options;
}

Result<trace::RequestTrace> open_trace(const TraceFlags& flags, const std::string& file) {
  CACHALOT_TRY_ASSIGN(const trace::RequestTraceOptions options, trace_options(flags));
  return trace::RequestTrace::open(file, options);
}

Result<trace::RequestTrace> open_trace_with_ids(const TraceFlags& flags) {
  CACHALOT_TRY_ASSIGN(trace::RequestTrace trace, open_trace(flags, flags.file));
  CACHALOT_TRY(trace.require_ids());
  return trace;
}

}  // namespace cachalot::apps
