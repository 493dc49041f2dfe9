// Which pools lie where a file or device is about to be written over: a part of one may lie in the middle of a pool.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <string>

#include "pool/format/access.h"

namespace cachalot::pool {

// A device of a pool, as its header says: a device that a pool was made with, or one that was added.
struct Occupant {
  std::string path;  // of the device, as a part of the file
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Header header;
  bool begins_here = false;  // where the range does
};

// Calls f for each device of a pool that has a byte in common with the first `bytes` bytes (0: all) of what `path` names.
// Nothing is there yet: no call. Ends at f's first error.
// @errors f's; as os::SharedFile::open
// @cost   192 bytes read for each 2 MiB from the file's beginning to the range's end
Status for_each_occupant(const std::string& path, std::uint64_t bytes,
                         const std::function<Status(const Occupant&)>& f);

// For what writes over a range that is not its own.
// @errors kBusy: a pool lies there, whether or not it is served
Status check_unoccupied(const std::string& path, std::uint64_t bytes);

}  // namespace cachalot::pool
