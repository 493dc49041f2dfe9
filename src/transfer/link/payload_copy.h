// Between a stream in this process's memory and a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

// Bytes beyond the end of the stream are zeros.
void gather(const ByteStream& from, std::uint64_t offset, std::span<std::byte> to);
// Bytes beyond the end of the stream are dropped.
void scatter(std::span<const std::byte> from, const ByteStream& to, std::uint64_t offset);

}  // namespace cachalot::transfer
