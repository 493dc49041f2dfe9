// Files of request traces. First byte: the format, or none; second: options; then the file, plain or gzip.
#include "base/check.h"
#include "input.h"
#include "memory_file.h"
#include "trace/request/request_trace.h"
#include "trace/request/trace_summary.h"

namespace cachalot::trace {
namespace {

void try_input(fuzz::Input input) {
  RequestTraceOptions options;
  options.format = static_cast<TraceFormat>(input.below(9));
  const std::uint32_t flags = input.take<std::uint8_t>();
  options.skip_bad_lines = (flags & 1) != 0;
  if ((flags & 2) != 0) options.block_tokens = 16;
  if ((flags & 4) != 0) options.default_block_tokens = 512;
  if ((flags & 8) != 0) options.synthetic_prefix = SyntheticPrefix{1024, 0.5, 7};
  options.warn = [](const std::string& text) { CACHALOT_CHECK(!text.empty()); };
  const std::string text = input.text();
  (void)detect_format(text);
  (void)detect_format_of_lines(text);
  const fuzz::MemoryFile file(text);
  Result<RequestTrace> trace = RequestTrace::open(file.path(), options);
  if (!trace) return;
  TraceSummary summary(trace->block_tokens() == 0 ? 512 : trace->block_tokens());
  Request request;
  std::uint64_t requests = 0;
  // An error of a line costs this line: there are no more of them than bytes.
  for (std::size_t errors = 0; errors <= text.size() + 1;) {
    const Result<bool> more = trace->next(request);
    if (!more) {
      CACHALOT_CHECK(more.error().message[0] != '\0');
      ++errors;
      continue;
    }
    if (!*more) break;
    CACHALOT_CHECK(!options.synthetic_prefix || trace->has_ids());
    if (!summary.add(request)) break;
    ++requests;
  }
  CACHALOT_CHECK(trace->requests() >= requests);
  (void)summary.ideal();
  (void)summary.inconsistent_ids();
}

}  // namespace
}  // namespace cachalot::trace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::trace::try_input({data, bytes});
  return 0;
}
