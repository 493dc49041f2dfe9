// Pool memory that was page-locked for the GPUs of this process: by one of them, for all of them.
//
// CUDA takes memory once, whichever device asks. It then counts as page-locked for every context, and each
// device asks for its own address of it. So the devices of a client share the registration, and the last one
// that goes ends it: in the context that made it, which stays until then.
//
// It is one piece of memory in several registrations: drivers from 580 on refuse one of 512 GiB or more, for
// their table of its pages is one allocation of the kernel's. Copies do not cross from one to the next.
//
// @threads  any
// @source   CUDA driver API reference: cuMemHostRegister, CU_MEMHOSTREGISTER_PORTABLE; vLLM issue 51080 and
//           NVIDIA/open-gpu-kernel-modules pull request 1234: the limit
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/primary_context.h"

namespace cachalot::gpu {

class PoolRegistration {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 30;  // of one; whole pages
  // @errors as CudaDevice::register_pool
  static Result<std::shared_ptr<const PoolRegistration>> make(
      std::shared_ptr<const PrimaryContext> context, std::byte* at, std::uint64_t bytes,
      std::uint64_t most_bytes);
  ~PoolRegistration();
  PoolRegistration(const PoolRegistration&) = delete;
  PoolRegistration& operator=(const PoolRegistration&) = delete;

  std::byte* at() const { return at_; }
  struct Part {
    std::byte* at;
    std::uint64_t bytes;
  };
  const std::vector<Part>& parts() const { return parts_; }

 private:
  PoolRegistration(std::shared_ptr<const PrimaryContext> context, std::byte* at)
      : context_(std::move(context)), at_(at) {}

  const std::shared_ptr<const PrimaryContext> context_;
  std::byte* const at_;
  std::vector<Part> parts_;
};

}  // namespace cachalot::gpu
