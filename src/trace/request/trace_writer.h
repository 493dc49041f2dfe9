// Writes requests as Mooncake's JSON lines. How the file comes into being: ByteSink.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <utility>

#include "trace/file/byte_sink.h"
#include "trace/request/request.h"

namespace cachalot::trace {

// One line with its line feed, appended.
void append_request(const Request& request, std::string& to);

// @threads one at a time
class TraceWriter {
 public:
  // @errors as ByteSink::open
  static Result<TraceWriter> open(const std::string& path);

  // @errors as open(); after one all calls fail alike
  Status write(const Request& request);
  // Once, at the end; without it no file appears.
  Status finish() { return file_.finish(); }

  std::uint64_t requests() const { return requests_; }
  std::uint64_t blocks() const { return blocks_; }

 private:
  explicit TraceWriter(ByteSink file) : file_(std::move(file)) {}

  ByteSink file_;
  std::string line_;
  std::uint64_t requests_ = 0;
  std::uint64_t blocks_ = 0;
};

}  // namespace cachalot::trace
