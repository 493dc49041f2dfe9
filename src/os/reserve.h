// Space for a new file, all of it, before any access: memory that is mapped and cannot be
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

// Gives all of a regular file its space, where it has holes: copies of pools may be sparse. What is
// in it stays. Nothing is done to other files, nor where the file system cannot do it.
// @errors kNoSpace: says how many bytes are available; kPermission: opened for reading
Status fill_holes(int fd, const char* path);
// Whether it is a regular file with less space than bytes.
bool has_holes(int fd);

}  // namespace cachalot::os
