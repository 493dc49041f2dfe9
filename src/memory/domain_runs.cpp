// Many pieces, for domains that have nothing better: line by line, each read with its own
// invalidation.
#include "memory/coherence.h"
#include "memory/line_runs.h"

namespace cachalot::memory {

void Domain::write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  for (std::size_t i = 0; i < count; ++i) write_bulk(runs[i].to, runs[i].from, runs[i].bytes, hash);
}

void Domain::prepare_read(const Extent*, std::size_t) {}

void Domain::read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  read_runs_by_line(runs, count, hash, [this](const std::byte* at) { return read_line(at); });
}

}  // namespace cachalot::memory
