#include "vtensor/tail_copy.h"

#include <cstring>

namespace cachalot::vtensor {
namespace {

Status map_and_copy(device_memory::Backend& backend, device_memory::Address window,
                    std::uint64_t chunk_bytes, std::span<const TailSource> sources,
                    const CopyBytes& copy, std::uint64_t& mapped_bytes) {
  for (const TailSource& source : sources) {
    CACHALOT_TRY(backend.map(window + mapped_bytes, source.handle));
    mapped_bytes += chunk_bytes;
  }
  CACHALOT_TRY(backend.set_access(window, mapped_bytes, device_memory::Access::kRead));
  device_memory::Address from = window;
  for (const TailSource& source : sources) {
    CACHALOT_TRY(copy(source.to, from, source.bytes));
    from += chunk_bytes;
  }
  return {};
}

}  // namespace

Status copy_by_processor(device_memory::Address to, device_memory::Address from,
                         std::uint64_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return {};
}

Status copy_tails(device_memory::Backend& backend, std::uint64_t chunk_bytes,
                  std::span<const TailSource> sources, const CopyBytes& copy, bool& is_stuck) {
  if (sources.empty()) return {};
  CACHALOT_TRY_ASSIGN(const device_memory::Address window,
                      backend.reserve(sources.size() * chunk_bytes));
  std::uint64_t mapped_bytes = 0;
  Status done = map_and_copy(backend, window, chunk_bytes, sources, copy, mapped_bytes);
  const Status unmapped = mapped_bytes == 0 ? Status() : backend.unmap(window, mapped_bytes);
  if (!unmapped) is_stuck = true;
  const Status freed = unmapped ? backend.free_range(window) : unmapped;
  if (done && !freed) return freed;
  return done;
}

}  // namespace cachalot::vtensor
