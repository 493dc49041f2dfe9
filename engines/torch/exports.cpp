// libcachalot_torch.so: include/cachalot/torch.h over the devices of the process.
#include <cachalot/torch.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "base/c_boundary.h"
#include "devices.h"

namespace cachalot::torch {
namespace {

// Trouble of one kind, on stderr; after some lines it is known.
class Complaints {
 public:
  explicit Complaints(const char* kind) : kind_(kind) {}
  void say(int device, const char* message) {
    const int before = said_.fetch_add(1, std::memory_order_relaxed);
    if (before >= kMost) return;
    std::fprintf(stderr, "cachalot-torch: %s, device %d: %s%s\n", kind_, device, message,
                 before == kMost - 1 ? " (more of this kind is not shown)" : "");
  }

 private:
  static constexpr int kMost = 10;
  const char* kind_;
  std::atomic<int> said_ = 0;
};
Complaints out_of_memory{"out of memory"};
Complaints trouble{"trouble"};

// Never goes: PyTorch frees tensors until the very end of the process, when the driver has gone.
Devices& devices() {
  static Devices* const all = new Devices(
      [] { return gpu::load_driver(); },
      read_settings([](const char* name) -> const char* { return std::getenv(name); }),
      [](const Error& error) {
        std::fprintf(stderr, "cachalot-torch: no memory can be had: %s\n", error.message);
      });
  return *all;
}

template <class F>
void quietly(int device, F&& f) {
  try {
    const Status done = f();
    if (!done) trouble.say(device, done.error().message);
  } catch (const std::exception& error) {
    trouble.say(device, error.what());
  }
}

// Frees and words about memory: of a device that was not opened there is none.
template <class F>
void quietly_where_open(int device, const char* call, const void* pointer, F&& f) {
  quietly(device, [&]() -> Status {
    DeviceMemory* const memory = devices().opened(device);
    if (memory != nullptr) return f(*memory);
    return Error::make(Code::kInvalidArgument,
                       "%s: %p, expected an address that is allocated, and nothing is there", call,
                       pointer);
  });
}

device_memory::Address address_of(const void* pointer) {
  return reinterpret_cast<device_memory::Address>(pointer);
}
gpu::StreamId stream_of(const void* stream) {
  return reinterpret_cast<gpu::StreamId>(stream);
}

void say_out_of_memory(const DeviceMemory& memory, int device, intptr_t size, const Error& error) {
  const DeviceMemory::Stats stats = memory.stats();
  const std::uint64_t allowed = stats.limit_bytes == 0 ? stats.device_bytes : stats.limit_bytes;
  char text[2 * Error::kMessageBytes];
  std::snprintf(text, sizeof text,
                "%" PRIdPTR " bytes asked for, %" PRIu64 " live, %" PRIu64 " held, %" PRIu64
                " allowed, %" PRIu64 " on the device: %s",
                size, stats.allocator.live_bytes, stats.allocator.reserved_bytes, allowed,
                stats.device_bytes, error.message);
  out_of_memory.say(device, text);
}

void* allocate(intptr_t size, int device, const void* stream) {
  const Result<DeviceMemory*> memory = devices().at(device);
  if (!memory) return nullptr;  // that was said when it was tried first
  // A negative size would be a huge one.
  const Result<device_memory::Address> address =
      size < 0 ? Error::make(Code::kNoSpace, "a negative size, expected 0 or more")
               : (*memory)->allocate(static_cast<std::uint64_t>(size), stream_of(stream));
  if (address) return reinterpret_cast<void*>(*address);  // NOLINT(performance-no-int-to-ptr)
  if (address.error().code == Code::kNoSpace) {
    say_out_of_memory(**memory, device, size, address.error());
  } else {
    trouble.say(device, address.error().message);
  }
  return nullptr;
}

cachalot_torch_statistics statistics_of(const DeviceMemory& memory) {
  const DeviceMemory::Stats stats = memory.stats();
  cachalot_torch_statistics out{};
  out.is_open = 1;
  out.allocations = stats.allocator.allocations;
  out.frees = stats.allocator.frees;
  out.live_bytes = stats.allocator.live_bytes;
  out.peak_live_bytes = stats.allocator.peak_live_bytes;
  out.reserved_bytes = stats.allocator.reserved_bytes;
  out.peak_reserved_bytes = stats.allocator.peak_reserved_bytes;
  out.stitches = stats.allocator.stitches;
  out.stitched_range_bytes = stats.stitched_range_bytes;
  out.driver_allocations = stats.allocator.driver_allocations;
  out.refused = stats.refused;
  out.device_bytes = stats.device_bytes;
  out.limit_bytes = stats.limit_bytes;
  return out;
}

PoolId pool_of(cachalot_torch_pool_id id) {
  return {.first = id.first, .second = id.second};
}

}  // namespace
}  // namespace cachalot::torch

using namespace cachalot;         // NOLINT: what follows is nothing but a translation
using namespace cachalot::torch;  // NOLINT

extern "C" {

void* cachalot_torch_malloc(intptr_t size, int device, void* stream) {
  try {
    return allocate(size, device, stream);
  } catch (const std::exception& error) {
    trouble.say(device, error.what());
    return nullptr;
  }
}

void cachalot_torch_free(void* pointer, intptr_t, int device, void* stream) {
  if (pointer == nullptr) return;
  quietly_where_open(device, "free", pointer, [&](DeviceMemory& memory) {
    return memory.free(address_of(pointer), stream_of(stream));
  });
}

void cachalot_torch_free_segment(void* pointer, intptr_t, int device, void*) {
  if (pointer == nullptr) return;
  quietly_where_open(device, "free", pointer, [&](DeviceMemory& memory) {
    return memory.free_and_give_back(address_of(pointer));
  });
}

// PyTorch does not say which device; addresses of two devices are never the same.
void cachalot_torch_record_stream(void* pointer, void* stream) {
  if (pointer == nullptr) return;
  quietly(-1, [&]() -> Status {
    for (int device = 0; device < Devices::kMost; ++device) {
      DeviceMemory* const memory = devices().opened(device);
      if (memory != nullptr && memory->use_on(address_of(pointer), stream_of(stream))) return {};
    }
    return Error::make(Code::kInvalidArgument,
                       "record_stream: %p, expected an address that is allocated", pointer);
  });
}

void cachalot_torch_empty_cache(void) {
  for (int device = 0; device < Devices::kMost; ++device) {
    DeviceMemory* const memory = devices().opened(device);
    if (memory != nullptr) quietly(device, [&] { return memory->release_cached(); });
  }
}

void cachalot_torch_set_memory_fraction(double fraction, int device) {
  quietly(device, [&]() -> Status {
    const Result<DeviceMemory*> memory = devices().at(device);
    return memory ? (*memory)->limit_to(fraction) : Status(memory.error());
  });
}

void cachalot_torch_begin_pool(int device, cachalot_torch_pool_id id, void*) {
  quietly(device, [&]() -> Status {
    const Result<DeviceMemory*> memory = devices().at(device);
    if (memory) (*memory)->begin_pool(pool_of(id));
    return memory ? Status() : Status(memory.error());
  });
}

void cachalot_torch_end_pool(int device, cachalot_torch_pool_id id) {
  quietly(device, [&]() -> Status {
    DeviceMemory* const memory = devices().opened(device);
    return memory != nullptr ? memory->end_pool(pool_of(id)) : Status();
  });
}

void cachalot_torch_release_pool(int device, cachalot_torch_pool_id id) {
  quietly(device, [&]() -> Status {
    DeviceMemory* const memory = devices().opened(device);
    return memory != nullptr ? memory->release_pool(pool_of(id)) : Status();
  });
}

cachalot_code cachalot_torch_check(void) {
  return base::guarded([] { return base::code_of(devices().check()); });
}

const char* cachalot_torch_last_message(void) {
  return base::last_failure();
}

cachalot_code cachalot_torch_get_statistics(int device, cachalot_torch_statistics* statistics) {
  return base::guarded([&] {
    const auto known = base::read_struct(statistics, "statistics");
    if (!known) return base::fail(known.error());
    if (device < 0 || device >= Devices::kMost) {
      return base::fail(Error::make(Code::kInvalidArgument, "device %d, expected 0 to %d", device,
                                    Devices::kMost - 1));
    }
    const DeviceMemory* const memory = devices().opened(device);
    base::write_struct(memory == nullptr ? cachalot_torch_statistics{} : statistics_of(*memory),
                       statistics);
    return CACHALOT_OK;
  });
}

}  // extern "C"
