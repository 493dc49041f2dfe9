// Includes nothing else: an inline function of another header could be compiled for these instructions, and be taken for
// all files.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "transfer/link/payload_hash_update.h"

namespace cachalot::transfer {

void update_hash_sse2(void* state, const void* bytes, std::size_t count) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, count);
}

}  // namespace cachalot::transfer
