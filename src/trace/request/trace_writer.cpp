#include "trace/request/trace_writer.h"

#include <charconv>

namespace cachalot::trace {
namespace {

template <class Number>
void append_number(Number number, std::string& to) {
  char text[32];
  const auto [end, problem] = std::to_chars(text, text + sizeof text, number);
  to.append(text, problem == std::errc() ? end : text);
}

// Whole milliseconds as such, others with as many digits as tell them apart.
void append_time(double time_ms, std::string& to) {
  if (time_ms >= 0 && time_ms < 0x1p53 &&
      time_ms == static_cast<double>(static_cast<std::uint64_t>(time_ms))) {
    append_number(static_cast<std::uint64_t>(time_ms), to);
  } else {
    append_number(time_ms, to);
  }
}

}  // namespace

void append_request(const Request& request, std::string& to) {
  to += "{\"timestamp\": ";
  append_time(request.timestamp_ms, to);
  to += ", \"input_length\": ";
  append_number(request.input_tokens, to);
  to += ", \"output_length\": ";
  append_number(request.output_tokens, to);
  to += ", \"hash_ids\": [";
  for (std::size_t i = 0; i < request.hash_ids.size(); ++i) {
    if (i != 0) to += ", ";
    append_number(request.hash_ids[i], to);
  }
  to += "]}\n";
}

Result<TraceWriter> TraceWriter::open(const std::string& path) {
  CACHALOT_TRY_ASSIGN(ByteSink file, ByteSink::open(path));
  return TraceWriter(std::move(file));
}

Status TraceWriter::write(const Request& request) {
  line_.clear();
  append_request(request, line_);
  ++requests_;
  blocks_ += request.hash_ids.size();
  return file_.write(line_);
}

}  // namespace cachalot::trace
