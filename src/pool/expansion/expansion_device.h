// A device that a growable pool got after it was made: copies of the pool's header lines, its serial, and from 2 MiB on
// blocks.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
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

// The device that the table names so.
// @errors as open_expansion(); kStale: it has another serial, or other bytes
Result<ExpansionFile> open_named(const Access& access, const Expansion& named, os::Access may,
                                 os::Owners owners);

// Why the device is not the one that the table names: that is lost. Nothing: it is, or that cannot be told, as without
// the right to open it.
std::optional<Error> find_loss(const Access& access, const Expansion& named);

// Whether its serial is there, as the table says, and all its bytes, whatever its header lines say.
bool has_serial_of(const Access& access, const Expansion& named);
// Writes them again. Complete on return. @errors as os::SharedFile::open
Status write_expansion_header(const Access& access, const Expansion& named);

// Of a pool's paths.
Error is_no_first_device(const std::string& path);

// Gives the memory of a file back, although processes have it mapped, and removes its name; of a device that is taken
// as it is, its header becomes void. Only after the keeper said that no process stores into it.
Status dispose_of_expansion(const Access& access, const Expansion& expansion);

}  // namespace cachalot::pool
