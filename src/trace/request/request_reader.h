// What is behind RequestTrace: a reader for each format. Formats of one request a line give a
// LineParser alone; LineRequests makes a reader of it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "trace/file/byte_source.h"
#include "trace/request/request.h"
#include "trace/request/trace_format.h"

namespace cachalot::trace {

class RequestReader {
 public:
  virtual ~RequestReader() = default;
  // As RequestTrace::next(), but that a trace may end without a request.
  virtual Result<bool> next(Request& request) = 0;
  // Of formats whose trace states its block size: 0 tokens until the first request was read.
  virtual TraceProperties properties() const = 0;
  virtual std::uint64_t skipped_lines() const = 0;
  // What is assumed of the trace because it does not say it; empty: nothing. At its end.
  virtual std::string assumption() const { return ""; }
};

class LineParser {
 public:
  virtual ~LineParser() = default;
  // `line` is not blank, and LineReader::kPaddingBytes can be read behind it. False: it is right, but
  // no request (a header, another event).
  // @errors kBadInput: what was found and expected, without the place
  virtual Result<bool> parse(std::string_view line, Request& request) = 0;
  virtual TraceProperties properties() const = 0;
};

// What a parser is made from.
struct ParserOptions {
  std::uint64_t block_tokens = 0;          // as the user says; 0: did not
  std::uint64_t default_block_tokens = 0;  // of formats that do not state a size
  bool is_named = false;                   // the user named the format; else the content told it

  // By which the number of ids is checked; 0: it is not.
  std::uint64_t checked_tokens() const {
    return block_tokens != 0 ? block_tokens : default_block_tokens;
  }
};

std::unique_ptr<LineParser> make_mooncake_parser(const ParserOptions& options);
std::unique_ptr<LineParser> make_bailian_parser(const ParserOptions& options);
std::unique_ptr<LineParser> make_tair_parser(const ParserOptions& options);
std::unique_ptr<LineParser> make_dynamo_parser();
std::unique_ptr<LineParser> make_azure_parser();
std::unique_ptr<LineParser> make_burstgpt_parser();
// For what has not told its format yet: the first line that does, decides.
std::unique_ptr<LineParser> make_undecided_parser(const ParserOptions& options);
// Of a format that needs no more than its lines, one after another: all but kWeka and kAiperf.
std::unique_ptr<LineParser> make_line_parser(TraceFormat format, const ParserOptions& options);

// `is_array`: the lines are elements of a JSON array, as JsonArraySource has them.
std::unique_ptr<RequestReader> make_line_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path,
                                                std::unique_ptr<LineParser> parser,
                                                bool skip_bad_lines, bool is_array);

// Holds all lines in memory, and gives the requests by time. @see session_reader.cpp
std::unique_ptr<RequestReader> make_session_reader(std::unique_ptr<ByteSource> source,
                                                   const std::string& path,
                                                   const ParserOptions& options,
                                                   bool skip_bad_lines, bool is_array);

// Holds a whole session in memory: a file of at most kMaxWekaBytes.
inline constexpr std::size_t kMaxWekaBytes = std::size_t{1} << 30;
std::unique_ptr<RequestReader> make_weka_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path, bool skip_bad_lines);

}  // namespace cachalot::trace
