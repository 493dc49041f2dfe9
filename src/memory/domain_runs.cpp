// Many pieces, for domains that have nothing better: line by line, each read with its own
// invalidation.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "memory/coherence.h"

namespace cachalot::memory {

void Domain::write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  for (std::size_t i = 0; i < count; ++i) write_bulk(runs[i].to, runs[i].from, runs[i].bytes, hash);
}

void Domain::prepare_read(const Extent*, std::size_t) {}

void Domain::read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  for (std::size_t i = 0; i < count; ++i) {
    auto* to = static_cast<std::byte*>(runs[i].to);
    const auto* from = static_cast<const std::byte*>(runs[i].from);
    for (std::size_t left = runs[i].bytes; left != 0;) {
      const std::size_t skipped = reinterpret_cast<std::uintptr_t>(from) % kLineBytes;
      const std::size_t bytes = std::min(left, kLineBytes - skipped);
      const Line line = read_line(from - skipped);
      std::memcpy(to, reinterpret_cast<const std::byte*>(&line) + skipped, bytes);
      if (hash != nullptr) {
        CACHALOT_CHECK(bytes == kLineBytes);
        hash->update(&line, kLineBytes);
      }
      to += bytes;
      from += bytes;
      left -= bytes;
    }
  }
}

}  // namespace cachalot::memory
