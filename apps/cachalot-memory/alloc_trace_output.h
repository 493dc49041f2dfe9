// Where `alloc-trace generate` and `convert` put the events that they make.
#pragma once

#include <cachalot/result.h>

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "trace/allocation/alloc_trace_summary.h"
#include "trace/allocation/alloc_trace_writer.h"

namespace cachalot::apps {

class AllocTraceOutput {
 public:
  // @errors kInvalidArgument: both results are to go to stdout; as AllocTraceWriter::open
  static Result<AllocTraceOutput> open(const std::string& out, const std::string& json);

  // Shows progress on a terminal.
  Status write(const trace::AllocEvent& event);
  // The file appears; one line about it goes where people look.
  Status finish();

  const trace::AllocTraceSummary& summary() const { return summary_; }
  std::FILE* people() const { return people_; }

 private:
  AllocTraceOutput(trace::AllocTraceWriter writer, std::FILE* people)
      : writer_(std::move(writer)), people_(people) {}

  trace::AllocTraceWriter writer_;
  trace::AllocTraceSummary summary_;
  std::FILE* people_;
};

// What info, generate and convert say of a trace.
nlohmann::json json_of(const trace::AllocTraceSummary& summary);

}  // namespace cachalot::apps
