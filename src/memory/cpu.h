// What this machine's processor can do, asked once, and which of our instruction paths that opens.
//
// No code is compiled for more than x86-64 except in the files whose names say so (copy_avx2.cpp,
// copy_avx512.cpp); they are reached only through a choice made here.
#pragma once

#include <cstdint>

namespace cachalot::memory {

// The instruction paths of the copy loops; kAuto is the widest this machine has.
enum class Isa : std::uint32_t { kAuto, kSse2, kAvx2, kAvx512 };

// True if this processor and operating system run `isa`; kAuto and kSse2 always.
bool isa_available(Isa isa);

// The path that a request for `isa` gets: itself if available, else the widest below it.
Isa usable_isa(Isa isa);

// True if lines can be flushed without waiting for each other; false: CLFLUSH has to do.
bool has_clflushopt();

}  // namespace cachalot::memory
