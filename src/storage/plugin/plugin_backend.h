// Objects in a shared library that is loaded at run time (include/cachalot/storage_plugin.h).
//
// @threads any
// @cost    a put copies nothing here, a get once
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string>

#include "storage/backend.h"

namespace cachalot::storage {

// @param options  "name=value&name=value"
// @errors kNotFound, kPermission, kIo: the library; kVersionMismatch; kInvalidArgument: it is no plug-in, or refuses
//         the options; and what its open() says
Result<std::unique_ptr<Backend>> open_plugin_backend(const std::string& path,
                                                     const std::string& options);

}  // namespace cachalot::storage
