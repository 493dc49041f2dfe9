// Space for a new file, all of it, before anybody touches it: memory that is mapped and cannot be
// had when it is touched kills the process (SIGBUS, or the kernel's out-of-memory killer).
#pragma once

#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::os {

// Gives the empty file `fd` a size of `bytes` and all the space for it.
// @param  path        for messages
// @param  huge_pages  tmpfs and memfd: allocate 2 MiB pages where the kernel has some
// @errors kNoSpace: says how many bytes are available; kInvalidArgument: not a multiple of the
//         file system's huge page
Status reserve_space(int fd, const char* path, std::uint64_t bytes, bool huge_pages);

}  // namespace cachalot::os
