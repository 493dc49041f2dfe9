// What of the stitching allocator can be set. The defaults are one set for all loads, measured over
// real and generated traces: docs/design/vmm.md.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::vmm {

struct StitchOptions {
  // The unit that is created, mapped and stitched; a multiple of the backend's granularity, and a
  // power of two.
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;
  // Requests below it are stitched only when memory cannot be had otherwise. (GMLake: fragLimit)
  std::uint64_t frag_limit_bytes = std::uint64_t{2} << 20;
  // Stitched blocks that nobody uses go, least recently used first, when the addresses of all of
  // them exceed this. (GMLake: autoGC)
  std::uint64_t stitched_limit_bytes = std::uint64_t{256} << 30;
  // At most that much is served from slabs of one chunk. What a slab cannot hold another one of is lost:
  // three per cent of the chunk at most.
  std::uint64_t small_request_bytes = std::uint64_t{64} << 10;
  // New memory for requests below it, and for those that are no whole chunks, is appended to one
  // range a stream, where they share chunks; others get a primitive block of their own.
  std::uint64_t medium_request_bytes = std::uint64_t{10} << 20;
  // New memory is stitched to free chunks if that saves more than a share of all that is held, one
  // over this. It bounds what lies free while memory is created: 0.4 %.
  std::uint64_t saving_divisor = 256;

  // @errors kInvalidArgument: names the option, its value, and what was expected
  Status check(std::uint64_t granularity_bytes) const;
};

}  // namespace cachalot::vmm
