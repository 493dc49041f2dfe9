// Counts calls of operator new, which a hot path must not make.
#pragma once

#include <cstdint>

namespace cachalot::apps::bench {

// How often this thread has allocated so far. Always 0 in a build with sanitizers, which bring an
// operator new of their own.
std::uint64_t allocations();

}  // namespace cachalot::apps::bench
