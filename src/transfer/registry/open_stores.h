// The functions of the table in open_registry.cpp. A kind whose library the build did not find has the same function,
// which says so (absent.cpp.in).
#pragma once

#include <memory>

#include "base/uri.h"
#include "transfer/registry/record_store.h"

namespace cachalot::transfer {

using OpenedStore = Result<std::unique_ptr<RecordStore>>;

OpenedStore open_file_store(const base::Uri& uri);
OpenedStore open_etcd_store(const base::Uri& uri);

}  // namespace cachalot::transfer
