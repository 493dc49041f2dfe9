#include "device_memory/cuda/cuda_backend.h"

#include <cinttypes>
#include <cstdio>

namespace cachalot::device_memory {
namespace {

using gpu::AllocationProperties;
using gpu::Driver;

AllocationProperties properties_of(const CudaOptions& options) {
  AllocationProperties properties;
  properties.location.id = options.device;
  properties.rdma_capable = options.rdma ? 1 : 0;
  return properties;
}

Status require_attribute(const Driver& driver, const CudaOptions& options, int attribute,
                         const char* what) {
  int value = 0;
  const int result = driver.device_attribute(&value, attribute, options.device);
  if (result != gpu::kSuccess) return gpu::driver_error(driver, result, "cuDeviceGetAttribute");
  if (value != 0) return {};
  return Error::make(Code::kUnsupported, "cuda: device %d cannot do it: %s", options.device, what);
}

Status require_peers(const Driver& driver, const CudaOptions& options) {
  for (const int peer : options.peers) {
    int can = 0;
    const int result = driver.device_can_access_peer(&can, peer, options.device);
    if (result != gpu::kSuccess) {
      return gpu::driver_error(driver, result, "cuDeviceCanAccessPeer");
    }
    if (can == 0) {
      return Error::make(Code::kUnsupported,
                         "cuda: device %d cannot reach the memory of device %d; expected peers",
                         peer, options.device);
    }
  }
  return {};
}

Status require_all(const Driver& driver, const CudaOptions& options) {
  CACHALOT_TRY(
      require_attribute(driver, options, gpu::kHasVirtualMemory, "virtual memory management"));
  if (options.rdma) {
    CACHALOT_TRY(require_attribute(driver, options, gpu::kHasRdmaWithVirtualMemory,
                                   "GPUDirect RDMA with virtual memory management"));
  }
  return require_peers(driver, options);
}

}  // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::open(const CudaOptions& options) {
  CACHALOT_TRY_ASSIGN(const Driver driver, gpu::load_driver());
  return open(driver, options);
}

Result<std::unique_ptr<CudaBackend>> CudaBackend::open(const Driver& driver,
                                                       const CudaOptions& options) {
  int result = driver.init(0);
  if (result != gpu::kSuccess) return gpu::driver_error(driver, result, "cuInit");
  // The driver's number of a device is its ordinal; asking for it finds out whether there is one.
  int device = 0;
  result = driver.device_get(&device, options.device);
  if (result != gpu::kSuccess) {
    char what[48];
    std::snprintf(what, sizeof what, "cuDeviceGet of device %d", options.device);
    return gpu::driver_error(driver, result, what);
  }
  CACHALOT_TRY(require_all(driver, options));
  const AllocationProperties properties = properties_of(options);
  std::size_t granularity = 0;
  result = driver.granularity(&granularity, &properties, /*minimum*/ 0);
  if (result != gpu::kSuccess) {
    return gpu::driver_error(driver, result, "cuMemGetAllocationGranularity");
  }
  if (granularity == 0)
    return Error::make(Code::kIo, "cuda: granularity of 0; expected 2 MiB or so");
  gpu::Context context = nullptr;
  result = driver.primary_context_retain(&context, options.device);
  if (result != gpu::kSuccess) {
    return gpu::driver_error(driver, result, "cuDevicePrimaryCtxRetain");
  }
  return std::unique_ptr<CudaBackend>(new CudaBackend(driver, options, granularity, context));
}

CudaBackend::CudaBackend(const Driver& driver, const CudaOptions& options,
                         std::uint64_t granularity, gpu::Context context)
    : Backend(granularity),
      driver_(driver),
      options_(options),
      properties_(properties_of(options)),
      context_(context) {}

CudaBackend::~CudaBackend() {
  undo_all();
  driver_.primary_context_release(options_.device);
}

std::string CudaBackend::description() const {
  char name[96] = "unknown device";
  driver_.device_name(name, sizeof name, options_.device);
  std::string text = std::string(name) + " (device " + std::to_string(options_.device) + ")";
  if (options_.rdma) text += ", RDMA";
  if (!options_.peers.empty()) text += "; peers";
  for (const int peer : options_.peers) text += " " + std::to_string(peer);
  return text;
}

Status CudaBackend::enter() {
  gpu::Context current = nullptr;
  int result = driver_.context_get_current(&current);
  if (result == gpu::kSuccess && current != nullptr) return {};
  result = driver_.context_set_current(context_);
  if (result == gpu::kSuccess) return {};
  return gpu::driver_error(driver_, result, "cuCtxSetCurrent");
}

Status CudaBackend::check(int result, const char* call, Address at, std::uint64_t bytes) const {
  if (result == gpu::kSuccess) return {};
  char what[96];
  std::snprintf(what, sizeof what, "%s of %" PRIu64 " bytes at 0x%" PRIx64 " on device %d", call,
                bytes, at, options_.device);
  return gpu::driver_error(driver_, result, what);
}

Result<Address> CudaBackend::do_reserve(std::uint64_t bytes) {
  CACHALOT_TRY(enter());
  gpu::DevicePointer range = 0;
  const int result = driver_.address_reserve(&range, bytes, granularity_bytes(), 0, 0);
  CACHALOT_TRY(check(result, "cuMemAddressReserve", 0, bytes));
  return Address{range};
}

Status CudaBackend::do_free(Address range, std::uint64_t bytes) {
  CACHALOT_TRY(enter());
  return check(driver_.address_free(range, bytes), "cuMemAddressFree", range, bytes);
}

Result<std::uint64_t> CudaBackend::do_create(std::uint64_t bytes) {
  CACHALOT_TRY(enter());
  gpu::AllocationHandle handle = 0;
  CACHALOT_TRY(check(driver_.create(&handle, bytes, &properties_, 0), "cuMemCreate", 0, bytes));
  return std::uint64_t{handle};
}

Status CudaBackend::do_release(const Memory& memory) {
  CACHALOT_TRY(enter());
  return check(driver_.release(memory.native), "cuMemRelease", 0, memory.bytes);
}

Status CudaBackend::do_map(Address at, const Memory& memory) {
  CACHALOT_TRY(enter());
  return check(driver_.map(at, memory.bytes, 0, memory.native, 0), "cuMemMap", at, memory.bytes);
}

Status CudaBackend::do_set_access(const Span& span, Access access) {
  CACHALOT_TRY(enter());
  const int flags = access == Access::kReadWrite ? 3 : access == Access::kRead ? 1 : 0;
  std::vector<gpu::AccessDescription> descriptions;
  descriptions.reserve(1 + options_.peers.size());
  descriptions.push_back({.location = {.id = options_.device}, .flags = flags});
  for (const int peer : options_.peers) {
    descriptions.push_back({.location = {.id = peer}, .flags = flags});
  }
  return check(driver_.set_access(span.at, span.bytes, descriptions.data(), descriptions.size()),
               "cuMemSetAccess", span.at, span.bytes);
}

Status CudaBackend::do_unmap(const Span& span) {
  CACHALOT_TRY(enter());
  return check(driver_.unmap(span.at, span.bytes), "cuMemUnmap", span.at, span.bytes);
}

}  // namespace cachalot::device_memory
