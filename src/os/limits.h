// What the operating system allows this process.
#pragma once

#include <cstdint>

namespace cachalot::os {

// Raises the soft limit of this process's descriptors to the hard one, at most to 2^20: there are programs that close
// all that could be open. Children inherit it. @return the soft limit now
std::uint64_t raise_descriptor_limit();

}  // namespace cachalot::os
