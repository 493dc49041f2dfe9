#include "storage/open_kinds.h"
namespace cachalot::storage {
OpenedBackend open_redis(const StorageUri&, const BackendSecrets&) {
  return Error::make(Code::kUnsupported, "later");
}
}  // namespace cachalot::storage
