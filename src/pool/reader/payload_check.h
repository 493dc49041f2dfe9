// Whether the bytes of a block are those that its entry was published with.
//
// @threads any
#pragma once

#include <cstdint>

#include "pool/format/access.h"

namespace cachalot::pool {

// @param length    of the payload, at most block_bytes
// @param checksum  as in Entry
// @cost  reads the payload once, in pieces: about 10 GB/s a thread
bool payload_matches(const Access& access, std::uint32_t block, std::uint32_t length,
                     std::uint64_t checksum);

}  // namespace cachalot::pool
