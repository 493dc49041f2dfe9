// XXH3's loop over the bytes, for the instructions of this machine. Nothing but the two .cpp files of its name is
// compiled for more than x86-64.
#pragma once

#include <cstddef>

namespace cachalot::transfer {

// @param state  an XXH3_state_t
using HashUpdate = void (*)(void* state, const void* bytes, std::size_t count);
void update_hash_sse2(void* state, const void* bytes, std::size_t count);
void update_hash_avx2(void* state, const void* bytes, std::size_t count);  // twice as fast

}  // namespace cachalot::transfer
