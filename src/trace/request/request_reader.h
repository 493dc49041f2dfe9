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

// `block_tokens` checks the number of ids, 0: does not.
std::unique_ptr<LineParser> make_mooncake_parser(std::uint64_t block_tokens);
std::unique_ptr<LineParser> make_dynamo_parser();
std::unique_ptr<LineParser> make_azure_parser();
// For what has not told its format yet: the first line that does, decides.
std::unique_ptr<LineParser> make_undecided_parser(std::uint64_t block_tokens);
// Of kMooncake, kAzure or kDynamo, by whole lines.
std::unique_ptr<LineParser> make_line_parser(TraceFormat format, std::uint64_t block_tokens);

std::unique_ptr<RequestReader> make_line_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path,
                                                std::unique_ptr<LineParser> parser,
                                                bool skip_bad_lines);

// Holds a whole session in memory: a file of at most kMaxWekaBytes.
inline constexpr std::size_t kMaxWekaBytes = std::size_t{1} << 30;
std::unique_ptr<RequestReader> make_weka_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path, bool skip_bad_lines);

}  // namespace cachalot::trace
