// Notices that this process is the child of the one that attached: pool mappings do not go through a
// fork (MADV_DONTFORK), and the slot is the parent's.
#pragma once

#include <cstdint>

namespace cachalot::client {

// Counts the forks between the first process and this one. @cost a load
std::uint64_t fork_generation();

}  // namespace cachalot::client
