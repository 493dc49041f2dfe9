// Requests of a recorded trace, one at a time, whatever format the file has: plain or gzip.
//
//   Result<RequestTrace> trace = RequestTrace::open("conversation_trace.jsonl.gz", {.default_block_tokens = 512});
//   Request request;
//   for (;;) { CACHALOT_TRY_ASSIGN(const bool more, trace->next(request)); if (!more) break; … }
//
// The formats: docs/guide/traces.md. Requests come in the order of the file, those of sessions (WEKA, AIPerf) by
// time. All formats but these two are read line by line, so that a trace may be larger than memory.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trace/request/request.h"
#include "trace/request/synthetic_prefix.h"
#include "trace/request/trace_format.h"

namespace cachalot::trace {

struct RequestTraceOptions {
  // The trace must have blocks of so many tokens: an error where it states another size, and the number
  // of ids is checked by it. 0: anything.
  std::uint64_t block_tokens = 0;
  bool skip_bad_lines = false;  // counts them and goes on
  TraceFormat format = TraceFormat::kAuto;
  // Where block_tokens is 0 and the trace states no size.
  std::uint64_t default_block_tokens = 0;
  // For a trace without ids. @see SyntheticPrefix
  std::optional<SyntheticPrefix> synthetic_prefix = {};
  // Milliseconds of a unit of the times of mooncake and aiperf traces. 0: they are milliseconds, and a warning says
  // where they seem to be seconds.
  double time_unit_ms = 0;
  // Gets what seems wrong in a right trace, or is assumed of it: a line of text, once for each. May be empty.
  std::function<void(const std::string&)> warn = {};
};

// @threads one at a time
class RequestTrace {
 public:
  // Opens the file; gzip is told by its content, not by its name. Reads its beginning, and where the
  // format states a block size or the beginning tells no format the first request; what is wrong there is said by the
  // first next().
  // @errors kInvalidArgument: no such file, or a directory; a synthetic prefix for a trace with ids, or
  //         without block size; kPermission; kIo
  static Result<RequestTrace> open(const std::string& path, const RequestTraceOptions& options);

  RequestTrace(RequestTrace&&) noexcept;
  RequestTrace& operator=(RequestTrace&&) noexcept;
  ~RequestTrace();

  // Reads the next request into `request`, whose memory is reused; false at the end. After an error
  // of a line the next call goes on behind it; after one of the file all calls fail alike.
  // @errors kBadInput: "file:line: what was found and expected"; damaged or cut gzip data; a trace
  //         that ends without a single request; kInvalidArgument: another block size; kIo
  Result<bool> next(Request& request);

  // The format as far as it is known: a broken beginning may leave it open until a line tells.
  TraceProperties properties() const;
  // Tokens of a block: stated by the trace, or as asked for, or the default; 0: unknown.
  std::uint64_t block_tokens() const;
  // Whether requests have ids, their own or synthetic ones.
  bool has_ids() const;
  // @errors kInvalidArgument: it has none, and which option makes some
  Status require_ids() const;
  // Whether equal ids in another file mean other blocks.
  bool ids_are_local() const;

  std::uint64_t requests() const;
  std::uint64_t skipped_lines() const;
  // Requests whose time is before that of the one in front of them.
  std::uint64_t unsorted_requests() const;

 private:
  class Reader;
  explicit RequestTrace(std::unique_ptr<Reader> reader);

  std::unique_ptr<Reader> reader_;
};

}  // namespace cachalot::trace
