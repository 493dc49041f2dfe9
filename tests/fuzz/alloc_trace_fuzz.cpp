// Allocation traces. First byte: even, the lines of a trace; odd, a pickle of PyTorch's allocator.
#include "base/check.h"
#include "input.h"
#include "memory_file.h"
#include "trace/allocation/alloc_trace.h"
#include "trace/allocation/pickle_reader.h"
#include "trace/allocation/snapshot_converter.h"

namespace cachalot::trace {
namespace {

void try_lines(const std::string& text) {
  const fuzz::MemoryFile file(text);
  Result<AllocTrace> trace = AllocTrace::open(file.path());
  if (!trace) return;
  AllocEvent event;
  std::uint64_t live = 0;
  for (;;) {
    const Result<bool> more = trace->next(event);
    if (!more || !*more) break;
    if (event.kind == AllocKind::kAllocate) ++live;
    if (event.kind == AllocKind::kFree) CACHALOT_CHECK(live-- != 0);
    CACHALOT_CHECK(trace->live_blocks() == live);
  }
}

void try_pickle(const std::string& text, std::uint32_t flags) {
  const Result<PickleDocument> document = parse_pickle({text.begin(), text.end()});
  if (!document) return;
  SnapshotOptions options;
  options.device = flags >> 2 & 1;
  options.free = (flags & 2) != 0 ? SnapshotFree::kRequested : SnapshotFree::kCompleted;
  const Result<ConvertedSnapshot> snapshot = convert_snapshot(*document, options);
  CACHALOT_CHECK(snapshot.ok() || snapshot.error().message[0] != '\0');
}

void try_input(fuzz::Input input) {
  const std::uint32_t flags = input.take<std::uint8_t>();
  const std::string text = input.text();
  flags % 2 == 0 ? try_lines(text) : try_pickle(text, flags);
}

}  // namespace
}  // namespace cachalot::trace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::trace::try_input({data, bytes});
  return 0;
}
