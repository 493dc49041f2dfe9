// Pool memory that was page-locked for the GPUs of this process: by one of them, for all of them.
//
// CUDA takes memory once, whichever device asks. It then counts as page-locked for every context, and each
// device asks for its own address of it. So the devices of a client share the registration, and the last one
// that goes ends it: in the context that made it, which stays until then.
//
// @threads  any
// @source   CUDA driver API reference: cuMemHostRegister, CU_MEMHOSTREGISTER_PORTABLE
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kv/cuda/primary_context.h"

namespace cachalot::kv {

class PoolRegistration {
 public:
  // @errors as CudaDevice::register_pool
  static Result<std::shared_ptr<const PoolRegistration>> make(
      std::shared_ptr<const PrimaryContext> context, std::byte* at, std::uint64_t bytes);
  ~PoolRegistration();
  PoolRegistration(const PoolRegistration&) = delete;
  PoolRegistration& operator=(const PoolRegistration&) = delete;

  std::byte* at() const { return at_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  PoolRegistration(std::shared_ptr<const PrimaryContext> context, std::byte* at,
                   std::uint64_t bytes)
      : context_(std::move(context)), at_(at), bytes_(bytes) {}

  const std::shared_ptr<const PrimaryContext> context_;
  std::byte* const at_;
  const std::uint64_t bytes_;
};

}  // namespace cachalot::kv
