#include "storage/backends.h"
#include "storage/open_kinds.h"
#include "storage/rocksdb/rocksdb_backend.h"

namespace cachalot::storage {

OpenedBackend open_rocksdb(const StorageUri& uri, const BackendSecrets&, Opening how) {
  RocksdbOptions options;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  CACHALOT_TRY_ASSIGN(options.sync, uri.flag("sync", false));
  CACHALOT_TRY_ASSIGN(const bool allows_foreign, uri.flag("allow_foreign", false));
  if (allows_foreign) options.owners = os::Owners::kAny;
  if (how == Opening::kOnlyChecked) return std::unique_ptr<Backend>();
  return open_rocksdb_backend(options);
}

}  // namespace cachalot::storage
