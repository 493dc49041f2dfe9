#include "transfer/link/payload_copy.h"

#include <cstring>

namespace cachalot::transfer {

void gather(const ByteStream& from, std::uint64_t offset, std::span<std::byte> to) {
  ByteStreamCursor cursor(from, offset);
  while (!to.empty()) {
    const Piece piece = cursor.next(to.size());
    if (piece.bytes == 0) break;
    std::memcpy(to.data(), reinterpret_cast<const void*>(piece.at), piece.bytes);
    to = to.subspan(piece.bytes);
  }
  if (!to.empty()) std::memset(to.data(), 0, to.size());
}

void scatter(std::span<const std::byte> from, const ByteStream& to, std::uint64_t offset) {
  ByteStreamCursor cursor(to, offset);
  while (!from.empty()) {
    const Piece piece = cursor.next(from.size());
    if (piece.bytes == 0) break;
    std::memcpy(reinterpret_cast<void*>(piece.at), from.data(), piece.bytes);
    from = from.subspan(piece.bytes);
  }
}

}  // namespace cachalot::transfer
