#include "storage/backends.h"
#include "storage/open_kinds.h"
#include "storage/plugin/plugin_backend.h"

namespace cachalot::storage {

OpenedBackend open_plugin(const StorageUri& uri, const BackendSecrets&, Opening how) {
  CACHALOT_TRY_ASSIGN(const std::string path, uri.path());
  if (how == Opening::kOnlyChecked) return std::unique_ptr<Backend>();  // to load it is to run it
  std::string options;
  for (const auto& [name, value] : uri.parameters)
    options += (options.empty() ? "" : "&") + name + "=" + value;
  return open_plugin_backend(path, options);
}

}  // namespace cachalot::storage
