#include "storage/open_kinds.h"
namespace cachalot::storage {
OpenedBackend open_s3(const StorageUri&, const BackendSecrets&) {
  return Error::make(Code::kUnsupported, "later");
}
}  // namespace cachalot::storage
