// The copy function that a caller of the C ABI gives, or the one that fits the device.
#pragma once

#include <cachalot/vmm.h>

#include <string_view>

#include "vtensor/tail_copy.h"

namespace cachalot::vtensor {

// @return nothing where the caller gave none and the device is neither memfd nor model
inline CopyBytes copy_of(cachalot_vmm_copy copy, void* context, std::string_view device) {
  if (copy != nullptr) {
    return [copy, context](device_memory::Address to, device_memory::Address from,
                           std::uint64_t bytes) -> Status {
      const cachalot_code code = copy(context, to, from, bytes);
      if (code == CACHALOT_OK) return {};
      return Error::make(static_cast<Code>(code), "copy: the caller's function returned %d", code);
    };
  }
  if (device == "memfd") return copy_by_processor;
  if (device == "model") {
    return [](device_memory::Address, device_memory::Address, std::uint64_t) { return Status(); };
  }
  return {};
}

}  // namespace cachalot::vtensor
