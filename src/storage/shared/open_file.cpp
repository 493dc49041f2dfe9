#include "base/byte_size.h"
#include "storage/backends.h"
#include "storage/file/file_backend.h"
#include "storage/open_kinds.h"
#include "storage/shared/shared_directory.h"

namespace cachalot::storage {

namespace {

constexpr std::uint64_t kLeastLimitBytes = 1 << 20;

// A parameter that means nothing to this form.
Status refuse(const StorageUri& uri, const char* name, const char* instead) {
  if (uri.find(name) == nullptr) return {};
  return Error::make(Code::kInvalidArgument, "storage \"%s\": has %s=, expected %s",
                     uri.shown.c_str(), name, instead);
}

OpenedBackend open_shared(const StorageUri& uri, os::Owners owners, Opening how) {
  CACHALOT_TRY(refuse(uri, "sync", "none with shared=1: each host's file system decides"));
  CACHALOT_TRY(refuse(uri, "min_free_bytes", "limit= with shared=1"));
  SharedDirectoryOptions options;
  options.owners = owners;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  if (const std::string* const limit = uri.find("limit")) {
    CACHALOT_TRY_ASSIGN(options.limit_bytes, base::parse_byte_size("limit", *limit));
    if (options.limit_bytes < kLeastLimitBytes) {
      return Error::make(Code::kInvalidArgument,
                         "storage \"%s\": limit=%.20s, expected at least 1MiB", uri.shown.c_str(),
                         limit->c_str());
    }
  }
  if (how == Opening::kOnlyChecked) return std::unique_ptr<Backend>();
  return SharedDirectory::open(options);
}

}  // namespace

OpenedBackend open_file(const StorageUri& uri, const BackendSecrets&, Opening how) {
  CACHALOT_TRY_ASSIGN(const bool is_foreign, uri.flag("allow_foreign", false));
  const os::Owners owners = is_foreign ? os::Owners::kAny : os::Owners::kTrusted;
  CACHALOT_TRY_ASSIGN(const bool is_shared, uri.flag("shared", false));
  if (is_shared) return open_shared(uri, owners, how);
  CACHALOT_TRY(refuse(uri, "limit", "shared=1 beside it, or --storage-capacity"));
  FileOptions options;
  options.owners = owners;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  CACHALOT_TRY_ASSIGN(options.sync, uri.flag("sync", false));
  CACHALOT_TRY_ASSIGN(options.min_free_bytes,
                      uri.number("min_free_bytes", 0, 0, std::uint64_t{1} << 62));
  if (how == Opening::kOnlyChecked) return std::unique_ptr<Backend>();
  CACHALOT_TRY_ASSIGN(std::unique_ptr<FileBackend> backend, FileBackend::open(options));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace cachalot::storage
