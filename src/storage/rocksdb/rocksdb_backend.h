// Objects in a RocksDB of a local directory.
//
// Two column families: "values" has the whole value of each key, large ones in blob files, read past the page cache;
// "heads" has what list needs, so that it reads no bodies. Both change in one write, which is in the log before it
// is acknowledged: it survives the death of the process, with `sync` the loss of power, too.
//
// A key is the 32 bytes of ObjectKey. A value of "heads" is RocksDB's sequence number before the put (8 bytes,
// little-endian), then the head. The family "default" has the mark: "cachalot-storage" = "1".
//
// Removed objects leave their space when files are compacted: the directory may have twice the bytes of its objects.
//
// After a compaction met a damaged file RocksDB refuses all writes, and the storage is read-only until it is opened
// without that file. After a full disk writes work again when three memtables fit.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string>

#include "os/shared_file.h"
#include "storage/backend.h"

namespace cachalot::storage {

struct RocksdbOptions {
  std::string directory;
  bool sync = false;
  // Memory of each family before its entries go into files; the log grows to about this.
  std::uint64_t memtable_bytes = std::uint64_t{64} << 20;
  os::Owners owners = os::Owners::kTrusted;  // of the directory and the database's folder
};

// Makes the directory if only its last part is missing.
// @errors kBusy: another process uses it; kVersionMismatch; kInvalidArgument: it has other files, or a database of
//         another program; kCorrupt, kPermission, kNotFound, kIo
Result<std::unique_ptr<Backend>> open_rocksdb_backend(const RocksdbOptions& options);

}  // namespace cachalot::storage
