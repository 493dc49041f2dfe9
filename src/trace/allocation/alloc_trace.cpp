#include "trace/allocation/alloc_trace.h"

#include <cinttypes>

#include "trace/file/byte_source.h"

namespace cachalot::trace {

Result<AllocTrace> AllocTrace::open(const std::string& path) {
  CACHALOT_TRY_ASSIGN(LineReader lines, LineReader::open(path));
  return AllocTrace(std::move(lines), path);
}

AllocTrace::AllocTrace(LineReader lines, const std::string& path)
    : lines_(std::move(lines)), shown_path_(shown_path(path)) {}

Result<bool> AllocTrace::next(AllocEvent& event) {
  if (error_) return *error_;
  Result<bool> more = next_line(event);
  if (!more) {
    error_ = more.error();
  } else if (!*more && !has_events_) {
    error_ = Error::make(Code::kBadInput, "%s: no event in it, expected lines like \"a 1 4096\"",
                         shown_path_.c_str());
  }
  if (error_) return *error_;
  has_events_ = true;
  return more;
}

Result<bool> AllocTrace::next_line(AllocEvent& event) {
  for (;;) {
    CACHALOT_TRY_ASSIGN(const LineReader::Found found, lines_.next());
    if (found == LineReader::Found::kEnd) return false;
    if (found == LineReader::Found::kTooLong) {
      return at_this_line(Error::make(Code::kBadInput,
                                      "the line has over %zu bytes, expected at most %zu",
                                      LineReader::kMaxLineBytes, kMaxAllocLineBytes));
    }
    const Result<bool> is_event = parse_alloc_line(lines_.line(), event);
    if (!is_event) return at_this_line(is_event.error());
    if (!*is_event) continue;
    event.line = lines_.line_number();
    const Status applied = apply(event);
    if (!applied) return at_this_line(applied.error());
    return true;
  }
}

Status AllocTrace::apply(AllocEvent& event) {
  if (event.kind == AllocKind::kAllocate) return allocate(event);
  if (event.kind == AllocKind::kFree) return free(event);
  return {};
}

Status AllocTrace::allocate(AllocEvent& event) {
  std::uint64_t live_bytes = 0;
  if (__builtin_add_overflow(live_bytes_, event.bytes, &live_bytes)) {
    return Error::make(Code::kBadInput,
                       "BYTES: %" PRIu64 " beside %" PRIu64 " live ones, expected a sum below 2^64",
                       event.bytes, live_bytes_);
  }
  event.slot = live_.add({event.id, event.bytes, event.line, event.stream});
  if (event.slot == LiveBlocks::kNoSlot) {
    return Error::make(Code::kBadInput,
                       "ID: %" PRIu64 " lives since line %" PRIu64
                       ", expected one that is new or was freed",
                       event.id, live_.at(live_.find(event.id)).line);
  }
  live_bytes_ = live_bytes;
  return {};
}

Status AllocTrace::free(AllocEvent& event) {
  event.slot = live_.remove(event.id);
  if (event.slot == LiveBlocks::kNoSlot) {
    return Error::make(
        Code::kBadInput,
        "ID: %" PRIu64 " does not live, expected one that was allocated and not freed", event.id);
  }
  event.bytes = live_.at(event.slot).bytes;
  event.stream = live_.at(event.slot).stream;
  live_bytes_ -= event.bytes;
  return {};
}

Error AllocTrace::at_this_line(const Error& error) const {
  Error placed = Error::make(error.code, "%s:%" PRIu64 ": %s", shown_path_.c_str(),
                             lines_.line_number(), error.message);
  placed.detail = lines_.line_number();
  return placed;
}

}  // namespace cachalot::trace
