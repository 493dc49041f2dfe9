// A device that a growable pool got after it was made: copies of the pool's header lines, its serial, and from 2 MiB on
// blocks.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

#include "os/shared_file.h"
#include "pool/expansion/expansion_header.h"
#include "pool/expansion/expansion_table.h"
#include "pool/format/access.h"

namespace cachalot::pool {

// Makes the file, or takes the device as it is, and writes its header, complete on return. What a failure leaves is
// no file of this pool.
// @param  bytes  of blocks, a multiple of 2 MiB; 0: as many as a device has that is there
// @errors as os::SharedFile::create; kInvalidArgument: a path that the pool has no room for; kBusy: a pool lies there
Result<Expansion> make_expansion(const Access& access, const std::string& path,
                                 std::uint64_t bytes);

struct ExpansionFile {
  os::SharedFile file;
  Expansion expansion;
};
// @errors as os::SharedFile::open; kNotAPool; kInvalidArgument: it was not prepared for this pool
Result<ExpansionFile> open_expansion(const Access& access, const std::string& path, os::Access may,
                                     os::Owners owners);

// Gives the memory of a file back, although processes have it mapped, and removes its name; of a device that is taken
// as it is, its header becomes void. Only after the keeper said that no process stores into it.
Status dispose_of_expansion(const Access& access, const Expansion& expansion);

}  // namespace cachalot::pool
