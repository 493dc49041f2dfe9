#include "gpu/pool_registration.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::gpu {

Result<std::shared_ptr<const PoolRegistration>> PoolRegistration::make(
    std::shared_ptr<const PrimaryContext> context, std::byte* at, std::uint64_t bytes,
    std::uint64_t most_bytes) {
  const ContextScope scope(*context);
  CACHALOT_TRY(scope.status());
  const Driver& driver = context->driver();
  // Goes with what it has, if a later part is refused.
  std::shared_ptr<PoolRegistration> made(new PoolRegistration(std::move(context), at));
  for (std::uint64_t done = 0; done < bytes || done == 0; done += most_bytes) {
    const Part part{at + done, std::min(most_bytes, bytes - done)};
    const int result = driver.host_register(part.at, part.bytes, kHostPortable | kHostDeviceMap);
    if (result == kAlreadyRegistered) {
      return Error::make(Code::kInvalidArgument, "cuda: pool memory at %p is registered already",
                         static_cast<void*>(part.at));
    }
    if (result != kSuccess) {
      const Error said = driver_error(driver, result, "cuMemHostRegister");
      Error error = Error::make(said.code,
                                "the pool's %" PRIu64
                                " bytes cannot be page-locked for the GPU (ulimit -l, a "
                                "container's --ulimit memlock): %s",
                                bytes, said.message);
      error.detail = said.detail;
      return error;
    }
    made->parts_.push_back(part);
  }
  return std::shared_ptr<const PoolRegistration>(std::move(made));
}

// What fails here fails because the context is gone already.
PoolRegistration::~PoolRegistration() {
  const ContextScope scope(*context_, ContextScope::Leave::kOutside);
  for (const Part& part : parts_) context_->driver().host_unregister(part.at);
}

}  // namespace cachalot::gpu
