// Detects that this process is a forked child of the one that attached. A child has no pool mapping
// (MADV_DONTFORK), and the slot belongs to the parent.
#pragma once

#include <cstdint>

namespace cachalot::client {

// Number of forks between the first process and this one. @cost a load
std::uint64_t fork_generation();

}  // namespace cachalot::client
