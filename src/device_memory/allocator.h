// Device memory for tensors: what a framework asks for at every operation, so that it keeps what was
// freed instead of giving it back to the driver.
//
//   allocator  | keeps                                        | after
//   caching    | segments, split and merged inside            | PyTorch's default
//   expandable | one growing range a stream and size class    | PyTorch's expandable segments
//   stitch     | primitive blocks, and stitched blocks that   | GMLake
//              | map their chunks side by side                |
//
// Memory is stream-ordered: what was freed on a stream may be handed to the same stream at once, since
// its work is done in order; another stream gets it only when an event says that the first one has
// come that far.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

#include "device_memory/backend.h"
#include "gpu/stream_events.h"

namespace cachalot::device_memory {

struct AllocatorStats {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t live_bytes = 0;  // asked for and not freed
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // physical memory that the allocator holds
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t stitches = 0;            // stitched blocks that were built
  std::uint64_t driver_allocations = 0;  // allocations that made any call of the driver
  std::uint64_t out_of_memory = 0;       // requests that were refused

  // Peak of what was asked for over peak of what was held: GMLake §5.1, active over reserved memory.
  double utilization() const {
    return peak_reserved_bytes == 0
               ? (out_of_memory == 0 ? 1.0 : 0.0)
               : static_cast<double>(peak_live_bytes) / static_cast<double>(peak_reserved_bytes);
  }
};

class Allocator {
 public:
  virtual ~Allocator() = default;

  virtual const char* name() const = 0;

  // Memory of at least `bytes`, aligned to 512, that the stream may use at once; 0 bytes get an
  // address of their own.
  // @errors kNoSpace: out of memory, after everything that could be given back was; nothing changed
  virtual Result<Address> allocate(std::uint64_t bytes, gpu::StreamId stream) = 0;
  // The work on it that was started by now may still run: on its own stream, and on those of use_on().
  // @errors kInvalidArgument: not an address that allocate() returned, or freed already
  virtual Status free(Address address) = 0;
  // Another stream uses it, too. (PyTorch: record_stream)
  virtual Status use_on(Address address, gpu::StreamId stream) = 0;
  // Releases unused memory to the device. (PyTorch: empty_cache)
  virtual Status release_cached() = 0;

  virtual AllocatorStats stats() const = 0;
  // The first invariant that does not hold; for tests. @cost all blocks
  virtual Status check() const = 0;
  bool is_valid() const { return check().ok(); }
};

}  // namespace cachalot::device_memory
