#include "storage/backends.h"

#include "storage/file/file_backend.h"

namespace cachalot::storage {
namespace {

Result<std::unique_ptr<Backend>> open_file(const StorageUri& uri, const BackendSecrets&) {
  FileOptions options;
  CACHALOT_TRY_ASSIGN(options.directory, uri.path());
  CACHALOT_TRY_ASSIGN(options.sync, uri.flag("sync", false));
  CACHALOT_TRY_ASSIGN(std::unique_ptr<FileBackend> backend, FileBackend::open(options));
  return std::unique_ptr<Backend>(std::move(backend));
}

constexpr BackendKind kKinds[] = {{"file", "file:DIR[?sync=1]", "sync", open_file}};

}  // namespace

std::span<const BackendKind> backend_kinds() {
  return kKinds;
}

Result<std::unique_ptr<Backend>> open_backend(std::string_view text, const BackendSecrets& secrets) {
  CACHALOT_TRY_ASSIGN(const StorageUri uri, StorageUri::parse(text));
  for (const BackendKind& kind : kKinds) {
    if (uri.scheme == kind.scheme) return kind.open(uri, secrets);
  }
  return Error::make(Code::kInvalidArgument, "storage: unknown kind in \"%.120s\"",
                     uri.shown.c_str());
}

}  // namespace cachalot::storage
