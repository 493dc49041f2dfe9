#include "kv/cuda/pool_registration.h"

namespace cachalot::kv {

Result<std::shared_ptr<const PoolRegistration>> PoolRegistration::make(
    std::shared_ptr<const PrimaryContext> context, std::byte* at, std::uint64_t bytes) {
  const ContextScope scope(*context);
  CACHALOT_TRY(scope.status());
  const cuda::Driver& driver = context->driver();
  const int result = driver.host_register(at, bytes, cuda::kHostPortable | cuda::kHostDeviceMap);
  if (result == cuda::kAlreadyRegistered) {
    return Error::make(Code::kInvalidArgument, "cuda: pool memory at %p is registered already",
                       static_cast<void*>(at));
  }
  if (result != cuda::kSuccess) return cuda::driver_error(driver, result, "cuMemHostRegister");
  return std::shared_ptr<const PoolRegistration>(
      new PoolRegistration(std::move(context), at, bytes));
}

// What fails here fails because the context is gone already.
PoolRegistration::~PoolRegistration() {
  const ContextScope scope(*context_);
  context_->driver().host_unregister(at_);
}

}  // namespace cachalot::kv
