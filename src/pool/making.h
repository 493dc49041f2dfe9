// A pool in the making: its first file is there, its header is not yet.
//
// The maker holds a lock on a byte of that file, from the moment in which the file has its name until
// the maker serves the pool or lets go of it. The kernel ends the lock of a process that dies: a file
// without a header that no process has locked was left by its maker.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "os/file_lock.h"
#include "os/shared_file.h"
#include "pool/format/format.h"

namespace cachalot::pool {

enum class Making {
  kAbsent,     // there is no file
  kUnderWay,   // a maker has it
  kAbandoned,  // no header and no maker; also for the moment in which a maker has not locked it yet
  kNone        // something is in it: a pool, or another thing
};

// Whether create() takes what is there as it is: a device, or a part of a file. An old pool in it is written over.
bool is_taken_as_it_is(const std::string& path);

// Looks at the file of a pool's first device.
Making look_for_maker(const std::string& path);

// The maker's lock. @errors kBusy: another process has it; kUnsupported: no such locks here
Result<os::FileLock> lock_as_maker(int fd);
// Whether a process has it.
bool has_maker(const os::SharedFile& file);

// Removes what the maker of such a pool left when it died: files that are empty or of a device's size, and begin with zeros.
// Any other file stays, as all do where one is in the way. It must have been kAbandoned for longer than a maker takes to lock.
// @errors kBusy: a process is making it; kNotAPool: something else is there; kPermission, kIo
Status remove_abandoned(const std::vector<std::string>& paths, Geometry geometry);

}  // namespace cachalot::pool
