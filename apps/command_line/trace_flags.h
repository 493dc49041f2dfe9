// How a request trace is named on the command line, and opened: shared by all commands that read one.
//
//   TraceFlags flags;
//   add_trace_flags(*command, flags);
//   …
//   CACHALOT_TRY_ASSIGN(trace::RequestTrace trace, open_trace_with_ids(flags));
//   trace.block_tokens(), trace.next(request) …
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flags.h"
#include "trace/request/request_trace.h"

namespace cachalot::apps {

inline constexpr std::uint64_t kDefaultBlockTokens = 512;

struct TraceFlags {
  std::string file;
  std::string format = "auto";
  std::string synthetic_prefix;
  std::uint64_t block_tokens = 0;  // 0: what the trace states, else kDefaultBlockTokens
  std::string time_unit = "auto";
  bool skip_bad_lines = false;
};

// --trace FILE, which goes to `flags.file`.
void add_trace_file_flag(Command& command, TraceFlags& flags);
// --trace-format, --time-unit, --synthetic-prefix, --skip-bad-lines.
void add_trace_reading_flags(Command& command, TraceFlags& flags);
// --block-tokens of the trace.
void add_block_tokens_flag(Command& command, TraceFlags& flags);
// All of the above.
void add_trace_flags(Command& command, TraceFlags& flags);

// @errors kInvalidArgument: a flag's value
Result<trace::RequestTraceOptions> trace_options(const TraceFlags& flags);

// The trace whether it has block ids or not. @errors as RequestTrace::open; kInvalidArgument: a flag
Result<trace::RequestTrace> open_trace(const TraceFlags& flags, const std::string& file);
// One that has ids, its own or synthetic ones.
// @errors likewise; kInvalidArgument: it has none, and which flag assumes some
Result<trace::RequestTrace> open_trace_with_ids(const TraceFlags& flags);

}  // namespace cachalot::apps
