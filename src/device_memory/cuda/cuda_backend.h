// A GPU's memory, by NVIDIA's driver.
//
// What others may do with the memory is said when it is created and cannot be changed later: let a network
// card reach it, let other GPUs reach it. So it is an option of the backend, and a device that cannot do it
// is refused when the backend is opened, not in the middle of a transfer.
//
// 1. set_access() is one call of the driver for a span: setting access is 84 % of what mapping costs
//    (GMLake, Table 1), and sets it for the device and all its peers together.
// 2. unmap() does not wait for kernels: unmapping memory in use ends the kernel with an error.
//    The caller waits for its events first.
// 3. Every call works on any thread: one without a context gets the device's primary one.
//
// What is assumed of the driver and not confirmed on a GPU yet: docs/design/device_memory.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_memory/backend.h"
#include "gpu/driver.h"

namespace cachalot::device_memory {

struct CudaOptions {
  int device = 0;               // the ordinal
  std::vector<int> peers = {};  // ordinals of other devices that get the same access
  bool rdma = false;            // a network card reads and writes it (GPUDirect RDMA)
};

class CudaBackend final : public Backend {
 public:
  // @errors kUnsupported: no driver, no device, or the device cannot do what the options say;
  //         kInvalidArgument: there is no such device
  static Result<std::unique_ptr<CudaBackend>> open(const CudaOptions& options = {});
  // The same with this driver.
  static Result<std::unique_ptr<CudaBackend>> open(const gpu::Driver& driver,
                                                   const CudaOptions& options);
  ~CudaBackend() override;

  const char* name() const override { return "cuda"; }
  // "NVIDIA H200 (device 0), RDMA; peers 1 2"
  std::string description() const override;

 private:
  CudaBackend(const gpu::Driver& driver, const CudaOptions& options, std::uint64_t granularity,
              gpu::Context context);

  Result<Address> do_reserve(std::uint64_t bytes) override;
  Status do_free(Address range, std::uint64_t bytes) override;
  Result<std::uint64_t> do_create(std::uint64_t bytes) override;
  Status do_release(const Memory& memory) override;
  Status do_map(Address at, const Memory& memory) override;
  Status do_set_access(const Span& span, Access access) override;
  Status do_unmap(const Span& span) override;

  Status enter();
  Status check(int result, const char* call, Address at, std::uint64_t bytes) const;

  const gpu::Driver driver_;
  const CudaOptions options_;
  const gpu::AllocationProperties properties_;
  const gpu::Context context_;
};

}  // namespace cachalot::device_memory
