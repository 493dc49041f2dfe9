// A simulated host's copies in many pieces.
#include <cstdint>

#include "memory/line_runs.h"
#include "testing/memory/lossy_host.h"
#include "testing/memory/lossy_memory.h"

namespace cachalot::memory {
namespace {

const std::byte* line_of(const std::byte* at) {
  return at - reinterpret_cast<std::uintptr_t>(at) % kLineBytes;
}

}  // namespace

void LossyHost::write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  for (std::size_t i = 0; i < count; ++i) write_bulk(runs[i].to, runs[i].from, runs[i].bytes, hash);
}

void LossyHost::prepare_read(const Extent* extents, std::size_t count) {
  begin_read();
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const end = extents[i].at + extents[i].bytes;
    for (const std::byte* at = line_of(extents[i].at); at < end; at += kLineBytes) {
      invalidate(line_number(at, 1));
    }
  }
}

// Loads through the cache: a line that was not invalidated may be of any age.
void LossyHost::read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  read_runs_by_line(runs, count, hash, [this](const std::byte* at) {
    const std::uint64_t number = line_number(at, 1);
    Line line;
    load(number, line);
    flush_late(number);
    return line;
  });
}

}  // namespace cachalot::memory
