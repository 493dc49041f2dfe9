// Many pieces in one call: what a copy engine hands to a domain.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot::memory {

// One piece: `bytes` that lie in one run on both sides.
struct CopyRun {
  void* to;
  const void* from;
  std::size_t bytes;
};

// A piece of a block that lies on one device without a gap.
struct Extent {
  std::byte* at;
  std::uint64_t bytes;
};

}  // namespace cachalot::memory
