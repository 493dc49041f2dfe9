#include "storage/file/file_backend.h"
#include "storage/open_kinds.h"

namespace cachalot::storage {

OpenedBackend open_file(const StorageUri& uri, const BackendSecrets&) {
  FileOptions options;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  CACHALOT_TRY_ASSIGN(options.sync, uri.flag("sync", false));
  CACHALOT_TRY_ASSIGN(options.min_free_bytes,
                      uri.number("min_free_bytes", 0, 0, std::uint64_t{1} << 62));
  CACHALOT_TRY_ASSIGN(const bool allows_foreign, uri.flag("allow_foreign", false));
  if (allows_foreign) options.owners = os::Owners::kAny;
  CACHALOT_TRY_ASSIGN(std::unique_ptr<FileBackend> backend, FileBackend::open(options));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace cachalot::storage
