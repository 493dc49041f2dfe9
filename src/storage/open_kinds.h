// The functions of the table in backends.cpp, one for each folder. A kind whose library the build did not find has
// the same function, which says so (absent.cpp.in). All of them return null for Opening::kOnlyChecked.
#pragma once

#include <memory>

#include "storage/backend.h"
#include "storage/uri.h"

namespace cachalot::storage {

struct BackendSecrets;  // backends.h
enum class Opening;     // backends.h

using OpenedBackend = Result<std::unique_ptr<Backend>>;

OpenedBackend open_file(const StorageUri& uri, const BackendSecrets& secrets, Opening how);
OpenedBackend open_rocksdb(const StorageUri& uri, const BackendSecrets& secrets, Opening how);
OpenedBackend open_redis(const StorageUri& uri, const BackendSecrets& secrets, Opening how);
OpenedBackend open_s3(const StorageUri& uri, const BackendSecrets& secrets, Opening how);
OpenedBackend open_plugin(const StorageUri& uri, const BackendSecrets& secrets, Opening how);
OpenedBackend open_null(const StorageUri& uri, const BackendSecrets& secrets, Opening how);

}  // namespace cachalot::storage
