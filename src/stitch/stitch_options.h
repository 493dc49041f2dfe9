// What of the stitching allocator can be set. The defaults are one set for all loads, measured over
// real and generated traces: docs/design/stitch.md.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::stitch {

struct StitchOptions {
  // The unit that is created, mapped and stitched; a multiple of the backend's granularity, and a
  // power of two.
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;
  // Requests below it are stitched only when memory cannot be had otherwise. (GMLake: fragLimit)
  std::uint64_t frag_limit_bytes = std::uint64_t{2} << 20;
  // Unused stitched blocks are dropped, least recently used first, when the addresses of all of
  // them exceed this. (GMLake: autoGC) kFollowsHeap: eight times what is held, and 256 GiB at least.
  static constexpr std::uint64_t kFollowsHeap = ~std::uint64_t{0};
  std::uint64_t stitched_limit_bytes = kFollowsHeap;
  // At most that much is served from slabs of one chunk. What a slab cannot hold another one of is lost:
  // three per cent of the chunk at most.
  std::uint64_t small_request_bytes = std::uint64_t{64} << 10;
  // New memory for requests below it, and for those that are no whole chunks, is appended to one
  // range a stream, where they share chunks; others get a primitive block of their own.
  static constexpr std::uint64_t kMediumRequestBytes = std::uint64_t{10} << 20;
  // A share of all that is held, one over this, may lie free: up to it, new memory
  // is not stitched to free memory, nor a request to save a chunk, which takes three times as much. 0.26 %.
  static constexpr std::uint64_t kWasteDivisor = 384;
  // The budget for new memory (stitch_budget.h): one stitch for each so many requests is forgotten, …
  std::uint64_t free_stitch_requests = 200;
  // … each that is not allows to take one part in so many of all that is held as new memory, instead of stitching, …
  std::uint64_t growth_divisor = 4000;
  // … at most one part in so many at once.
  std::uint64_t growth_piece_divisor = 300;

  // @errors kInvalidArgument: names the option, its value, and what was expected
  Status check(std::uint64_t granularity_bytes) const;
};

}  // namespace cachalot::stitch
