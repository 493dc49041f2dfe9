// The backend that a user names.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string_view>

#include "device_memory/backend.h"

namespace cachalot::device_memory {

// @param  name  "memfd", "cuda:N" or "model"
// @errors kInvalidArgument: another name; kUnsupported: no such device here
Result<std::unique_ptr<Backend>> open_backend(std::string_view name);

}  // namespace cachalot::device_memory
