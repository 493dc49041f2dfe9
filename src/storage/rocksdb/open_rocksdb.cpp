#include "storage/open_kinds.h"
#include "storage/rocksdb/rocksdb_backend.h"

namespace cachalot::storage {

OpenedBackend open_rocksdb(const StorageUri& uri, const BackendSecrets&) {
  RocksdbOptions options;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  CACHALOT_TRY_ASSIGN(options.sync, uri.flag("sync", false));
  return open_rocksdb_backend(options);
}

}  // namespace cachalot::storage
