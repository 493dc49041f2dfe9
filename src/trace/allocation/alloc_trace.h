// The events of a recorded allocation trace, one at a time: plain or gzip (alloc_event.h has the lines).
//
//   Result<AllocTrace> trace = AllocTrace::open("finetune.trace.gz");
//   AllocEvent event;
//   for (;;) { CACHALOT_TRY_ASSIGN(const bool more, trace->next(event)); if (!more) break; … }
//
// 1. What comes out is consistent: an allocation's id does not live, a free's does, and the live bytes
//    are below 2^64. So a replay needs no checks of its own.
// 2. The first broken line ends the trace. None is passed over: the blocks behind it would lie in
//    other places, and every figure of a replay would be of another program.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "trace/allocation/alloc_event.h"
#include "trace/allocation/live_blocks.h"
#include "trace/file/line_reader.h"

namespace cachalot::trace {

// @threads one at a time
// @cost    memory by the live blocks; the speed is in docs/design/trace.md
class AllocTrace {
 public:
  // @errors as ByteSource::open
  static Result<AllocTrace> open(const std::string& path);

  // False at the end. A mark's text is valid until the next call.
  // @errors kBadInput: "file:line: what was found and expected"; damaged or cut gzip data; a file
  //         without events; kIo; after one all calls fail alike
  Result<bool> next(AllocEvent& event);

  std::uint64_t live_bytes() const { return live_bytes_; }
  std::uint64_t live_blocks() const { return live_.size(); }

 private:
  AllocTrace(LineReader lines, const std::string& path);

  Result<bool> next_line(AllocEvent& event);
  Status apply(AllocEvent& event);
  Status allocate(AllocEvent& event);
  Status free(AllocEvent& event);
  Error at_this_line(const Error& error) const;

  LineReader lines_;
  std::string shown_path_;
  LiveBlocks live_;
  std::uint64_t live_bytes_ = 0;
  bool has_events_ = false;
  std::optional<Error> error_;  // the one that ended the trace
};

}  // namespace cachalot::trace
