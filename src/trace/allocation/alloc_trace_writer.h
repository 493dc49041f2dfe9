// Writes an allocation trace. How the file comes into being: ByteSink.
//
// It writes what it is told: that ids live when they are freed is for its caller to see to, and
// AllocTrace notices when it is read.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <utility>

#include "trace/allocation/alloc_event.h"
#include "trace/file/byte_sink.h"

namespace cachalot::trace {

// @threads one at a time
class AllocTraceWriter {
 public:
  // @errors as ByteSink::open
  static Result<AllocTraceWriter> open(const std::string& path) {
    CACHALOT_TRY_ASSIGN(ByteSink file, ByteSink::open(path));
    return AllocTraceWriter(std::move(file));
  }

  // @errors as open(); after one all calls fail alike
  Status write(const AllocEvent& event) {
    line_.clear();
    append_alloc_line(event, line_);
    ++events_;
    return file_.write(line_);
  }
  // Once, at the end; without it no file appears.
  Status finish() { return file_.finish(); }

  std::uint64_t events() const { return events_; }

 private:
  explicit AllocTraceWriter(ByteSink file) : file_(std::move(file)) {}

  ByteSink file_;
  std::string line_;
  std::uint64_t events_ = 0;
};

}  // namespace cachalot::trace
