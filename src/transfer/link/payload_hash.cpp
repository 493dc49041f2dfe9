#include "transfer/link/payload_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "memory/cpu.h"
#include "transfer/link/payload_hash_update.h"

namespace cachalot::transfer {
namespace {

HashUpdate fastest() {
  static const HashUpdate update =
      memory::isa_available(memory::Isa::kAvx2) ? update_hash_avx2 : update_hash_sse2;
  return update;
}

}  // namespace

struct PayloadHash::State {
  XXH3_state_t xxh;
};

PayloadHash::PayloadHash() : state_(new State) {
  reset();
}
PayloadHash::~PayloadHash() = default;
void PayloadHash::reset() {
  XXH3_64bits_reset(&state_->xxh);
}
void PayloadHash::add(const void* bytes, std::size_t count) {
  fastest()(&state_->xxh, bytes, count);
}
std::uint64_t PayloadHash::digest() const {
  return XXH3_64bits_digest(&state_->xxh);
}

void PayloadHash::add(const ByteStream& stream, std::uint64_t offset, std::uint64_t bytes) {
  ByteStreamCursor cursor(stream, offset);
  while (bytes > 0) {
    const Piece piece = cursor.next(bytes);
    if (piece.bytes == 0) break;
    add(reinterpret_cast<const void*>(piece.at), piece.bytes);
    bytes -= piece.bytes;
  }
}

std::uint64_t hash_of(const ByteStream& stream, std::uint64_t offset, std::uint64_t bytes) {
  PayloadHash hash;
  hash.add(stream, offset, bytes);
  return hash.digest();
}

}  // namespace cachalot::transfer
