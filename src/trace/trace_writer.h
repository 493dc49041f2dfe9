// Writes requests as Mooncake's JSON lines, gzip where the name ends in .gz.
//
// A file appears under its name when it is finished, and one that was there keeps its content until
// then; stdout ("-"), pipes and devices are written as it goes.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "trace/request.h"

namespace cachalot::trace {

// One line with its line feed, appended.
void append_request(const Request& request, std::string& to);

// @threads one at a time
class TraceWriter {
 public:
  // @param  path  "-": stdout
  // @errors kInvalidArgument, kPermission, kNoSpace, kIo: names the file
  static Result<TraceWriter> open(const std::string& path);
  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;
  ~TraceWriter();  // what was not finished is removed

  // @errors as open(); after one all calls fail alike
  Status write(const Request& request);
  // Once, at the end.
  Status finish();

  std::uint64_t requests() const;
  std::uint64_t blocks() const;

 private:
  class Impl;
  explicit TraceWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::trace
