#include "storage/file/file_backend.h"
#include "storage/open_kinds.h"

namespace cachalot::storage {

OpenedBackend open_file(const StorageUri& uri, const BackendSecrets&) {
  FileOptions options;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  CACHALOT_TRY_ASSIGN(options.sync, uri.flag("sync", false));
  CACHALOT_TRY_ASSIGN(std::unique_ptr<FileBackend> backend, FileBackend::open(options));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace cachalot::storage
