#include <sys/mman.h>

#include <cerrno>
#include <filesystem>

#include "gpu/driver.h"
#include "gpu/primary_context.h"
#include "machine_checks.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using gpu::Driver;

constexpr std::size_t kLockedBytes = std::size_t{2} << 20;

Status lock_pages(const Driver& driver) {
  CACHALOT_TRY_ASSIGN(const auto context, gpu::PrimaryContext::retain(driver, 0));
  const gpu::ContextScope scope(*context, gpu::ContextScope::Leave::kOutside);
  CACHALOT_TRY(scope.status());
  void* const memory =
      mmap(nullptr, kLockedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return Error::from_errno(errno, "shared memory of %zu bytes", kLockedBytes);
  const int locked =
      driver.host_register(memory, kLockedBytes, gpu::kHostPortable | gpu::kHostDeviceMap);
  if (locked == gpu::kSuccess) (void)driver.host_unregister(memory);
  munmap(memory, kLockedBytes);
  return gpu::check_call(driver, locked, "cuMemHostRegister");
}

std::string name_of(const Driver& driver, int device) {
  char name[128] = {};
  std::size_t bytes = 0;
  if (driver.device_name(name, sizeof name, device) != gpu::kSuccess) return "a GPU without a name";
  if (driver.device_total_bytes(&bytes, device) != gpu::kSuccess) return name;
  return std::string(name) + ", " + bytes_text(bytes);
}

}  // namespace

Findings check_gpus(const std::string& root) {
  const bool has_device = std::filesystem::exists(root + "/proc/driver/nvidia/version");
  const Result<Driver> driver = gpu::load_driver();
  if (!driver && !has_device)
    return {{"gpu", Health::kOk, "none: KV caches lie in this machine's memory"}};
  if (!driver)
    return {{"gpu", Health::kFault, driver.error().message,
             "the kernel has NVIDIA's driver, this place not its library: run the container with "
             "--gpus all and the driver capability `compute`"}};
  if (const Status begun = gpu::check_call(*driver, driver->init(0), "cuInit"); !begun) {
    return {
        {"gpu", Health::kFault, begun.error().message,
         "nvidia-smi says more; a container needs --gpus all, and the driver's library has to be "
         "of the kernel module's version"}};
  }
  Findings findings;
  for (int ordinal = 0, device = 0; driver->device_get(&device, ordinal) == gpu::kSuccess;
       ++ordinal)
    findings.push_back(
        {"gpu", Health::kOk, std::to_string(ordinal) + ": " + name_of(*driver, device)});
  if (findings.empty())
    return {
        {"gpu", Health::kWarning, "the driver shows no device", "look at CUDA_VISIBLE_DEVICES"}};
  if (const Status locked = lock_pages(*driver); !locked) {
    findings.push_back(
        {"page_locks", Health::kFault, locked.error().message,
         "copies between this GPU and a pool need page-locked memory: raise ulimit -l, "
         "and see that the container may lock memory"});
  } else {
    findings.push_back({"page_locks", Health::kOk, "the driver locks shared memory"});
  }
  return findings;
}

}  // namespace cachalot::apps
