#include "device_memory/open/open_backend.h"

#include <algorithm>
#include <charconv>

#include "device_memory/cuda/cuda_backend.h"
#include "device_memory/memfd/memfd_backend.h"
#include "device_memory/model/model_backend.h"

namespace cachalot::device_memory {

Result<std::unique_ptr<Backend>> open_backend(std::string_view name) {
  constexpr std::string_view kCuda = "cuda:";
  if (name == "memfd") {
    CACHALOT_TRY_ASSIGN(auto memfd, MemfdBackend::open());
    return std::unique_ptr<Backend>(std::move(memfd));
  }
  if (name == "model") {
    CACHALOT_TRY_ASSIGN(auto model, ModelBackend::open());
    return std::unique_ptr<Backend>(std::move(model));
  }
  CudaOptions options;
  if (name.starts_with(kCuda)) {
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kCuda.size(), end, options.device);
    if (parsed.ec == std::errc() && parsed.ptr == end) {
      CACHALOT_TRY_ASSIGN(auto cuda, CudaBackend::open(options));
      return std::unique_ptr<Backend>(std::move(cuda));
    }
  }
  return Error::make(Code::kInvalidArgument, "device \"%.*s\", expected memfd, cuda:N or model",
                     static_cast<int>(name.substr(0, 60).size()), name.data());
}

}  // namespace cachalot::device_memory
