// Copies the beginning of chunks that are mapped nowhere: what a new request takes over of a prefix
// that ends inside a chunk.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <span>

#include "device_memory/backend.h"

namespace cachalot::vtensor {

// Copies on the device, and returns when it is done: a memcpy on memfd, a copy and its
// synchronisation on a GPU. @threads any, several at once
using CopyBytes = std::function<Status(device_memory::Address to, device_memory::Address from,
                                       std::uint64_t bytes)>;

// For memory that the processor reaches.
Status copy_by_processor(device_memory::Address to, device_memory::Address from,
                         std::uint64_t bytes);

struct TailSource {
  device_memory::Handle handle;
  device_memory::Address to = 0;
  std::uint64_t bytes = 0;  // from the chunk's beginning
};

// @param  is_stuck  becomes true when the device does not unmap the sources again
// @errors of the backend, or of `copy`: what was copied is not known
// @cost   maps all sources side by side for a moment: a call for each, and four
Status copy_tails(device_memory::Backend& backend, std::uint64_t chunk_bytes,
                  std::span<const TailSource> sources, const CopyBytes& copy, bool& is_stuck);

}  // namespace cachalot::vtensor
