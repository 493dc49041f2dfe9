// Reads runs line by line, for domains that have nothing better.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "memory/coherence.h"

namespace cachalot::memory {

// `read_line` returns the Line that begins at the address given. Hashed runs are whole lines.
template <class ReadLine>
void read_runs_by_line(const CopyRun* runs, std::size_t count, FusedHash* hash,
                       ReadLine&& read_line) {
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
