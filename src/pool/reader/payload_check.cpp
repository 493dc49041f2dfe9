#include "pool/reader/payload_check.h"

#include <algorithm>
#include <vector>

#include "memory/fused_hash.h"

namespace cachalot::pool {

bool payload_matches(const Access& access, std::uint32_t block, std::uint32_t length,
                     std::uint64_t checksum) {
  constexpr std::uint64_t kPieceBytes = 64 << 10;
  const std::uint64_t bytes = padded_bytes(length);
  std::vector<std::byte> piece(std::min(bytes, kPieceBytes));
  memory::FusedHash hash(bytes);
  access.for_each_extent(block, bytes, [&](const std::byte* from, std::uint64_t extent) {
    for (std::uint64_t at = 0; at < extent; at += kPieceBytes) {
      access.domain().read_bulk(piece.data(), from + at, std::min(kPieceBytes, extent - at), &hash);
    }
  });
  return hash.finish() == checksum;
}

}  // namespace cachalot::pool
