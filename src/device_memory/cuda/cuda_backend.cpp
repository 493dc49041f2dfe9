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
  if (options.export_fd) properties.export_types |= gpu::kExportFd;
  if (options.export_fabric) properties.export_types |= gpu::kExportFabric;
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
  if (options.export_fd) {
    CACHALOT_TRY(require_attribute(driver, options, gpu::kHasFdHandles,
                                   "handles exported as file descriptors"));
  }
  if (options.export_fabric) {
    CACHALOT_TRY(require_attribute(driver, options, gpu::kHasFabricHandles,
                                   "handles exported to other machines (fabric)"));
  }
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
  if (options_.export_fd) text += ", exportable as fd";
  if (options_.export_fabric) text += ", exportable to the fabric";
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

Status CudaBackend::export_to(Handle handle, int type, bool allowed, void* exported) {
  if (!allowed) {
    return Error::make(Code::kUnsupported,
                       "export: handle %" PRIu64
                       " was created without; expected the backend's "
                       "option for it when it was opened",
                       handle.value);
  }
  CACHALOT_TRY_ASSIGN(const Memory memory, memory_of("export", handle));
  CACHALOT_TRY(enter());
  return check(driver_.export_handle(exported, memory.native, type, 0),
               "cuMemExportToShareableHandle", 0, memory.bytes);
}

Result<os::FileDescriptor> CudaBackend::export_fd(Handle handle) {
  int fd = -1;
  CACHALOT_TRY(export_to(handle, gpu::kExportFd, options_.export_fd, &fd));
  return os::FileDescriptor(fd);
}

Result<CudaBackend::FabricHandle> CudaBackend::export_fabric(Handle handle) {
  FabricHandle exported{};
  CACHALOT_TRY(export_to(handle, gpu::kExportFabric, options_.export_fabric, exported.data()));
  return exported;
}

}  // namespace cachalot::device_memory
