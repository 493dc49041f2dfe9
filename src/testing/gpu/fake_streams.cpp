// The fake machine's memory, streams and launches (fake_gpu.h).
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "testing/gpu/fake_gpu.h"

namespace cachalot::gpu {

extern FakeMachine* machine;

namespace {

constexpr int kNotFound = 500;
constexpr int kIllegalAddress = 700;
// From registered host memory to the device's address of it.
constexpr DevicePointer kHostBias = DevicePointer{1} << 52;

}  // namespace

struct FakeStreamCalls {
  using Lock = std::lock_guard<std::mutex>;

  static int allocate(DevicePointer* at, std::size_t bytes, bool is_host) {
    if (bytes == 0) return machine->invalid();
    constexpr std::size_t kAlignment = 256;
    auto* const host = static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
    if (host == nullptr) return kOutOfMemory;
    // Not zero, so that unwritten memory shows; of gigabytes the beginning has to do.
    std::memset(host, 0xa5, std::min<std::size_t>(bytes, std::size_t{64} << 20));
    *at = reinterpret_cast<DevicePointer>(host);
    machine->memory_[*at] = {bytes, host, is_host, machine->current_device()};
    return kSuccess;
  }
  static int free(DevicePointer at, bool is_host) {
    const auto found = machine->memory_.find(at);
    if (found == machine->memory_.end() || found->second.is_host != is_host) {
      return machine->invalid();
    }
    std::free(found->second.host);
    machine->memory_.erase(found);
    return kSuccess;
  }

  static int memory_allocate(DevicePointer* at, std::size_t bytes) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("memory_allocate")) return failed;
    return allocate(at, bytes, false);
  }
  static int memory_free(DevicePointer at) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("memory_free")) return failed;
    return free(at, false);
  }
  // Of what was allocated on a device; other memory is nothing that the machine knows.
  static int pointer_attribute(void* value, int attribute, DevicePointer at) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("pointer_attribute")) return failed;
    auto found = machine->memory_.upper_bound(at);
    if (attribute != kPointerDevice || found == machine->memory_.begin()) return kInvalidValue;
    --found;
    if (found->second.is_host || at - found->first >= found->second.bytes) return kInvalidValue;
    std::memcpy(value, &found->second.device, sizeof found->second.device);
    return kSuccess;
  }
  static int host_allocate(void** at, std::size_t bytes, unsigned) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("host_allocate")) return failed;
    DevicePointer device = 0;
    const int result = allocate(&device, bytes, true);
    *at = reinterpret_cast<void*>(device);
    return result;
  }
  static int host_free(void* at) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("host_free")) return failed;
    return free(reinterpret_cast<DevicePointer>(at), true);
  }

  static int host_register(void* at, std::size_t bytes, unsigned flags) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("host_register")) return failed;
    const DevicePointer device = reinterpret_cast<DevicePointer>(at) + kHostBias;
    if (at == nullptr || bytes == 0 || (flags & kHostDeviceMap) == 0) return machine->invalid();
    for (const auto& [other, memory] : machine->registered_) {
      if (other < device + bytes && device < other + memory.bytes) return kAlreadyRegistered;
    }
    machine->registered_[device] = {bytes, static_cast<std::byte*>(at), true,
                                    machine->current_device(), (flags & kHostPortable) != 0};
    return kSuccess;
  }
  static int host_unregister(void* at) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("host_unregister")) return failed;
    const DevicePointer device = reinterpret_cast<DevicePointer>(at) + kHostBias;
    const auto found = machine->registered_.find(device);
    if (found == machine->registered_.end()) return machine->invalid();
    if (found->second.device != machine->current_device()) return machine->invalid();
    machine->registered_.erase(found);
    return kSuccess;
  }
  static int host_device_pointer(DevicePointer* at, void* host, unsigned flags) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("host_device_pointer")) return failed;
    // What the driver allocated has one address everywhere.
    const auto allocated = machine->memory_.find(reinterpret_cast<DevicePointer>(host));
    if (flags == 0 && allocated != machine->memory_.end() && allocated->second.is_host) {
      *at = allocated->first;
      return kSuccess;
    }
    *at = reinterpret_cast<DevicePointer>(host) + kHostBias;
    const auto found = machine->registered_.find(*at);
    if (flags != 0 || found == machine->registered_.end()) return machine->invalid();
    const bool is_ours = found->second.device == machine->current_device();
    return is_ours || found->second.is_portable ? kSuccess : machine->invalid();
  }

  static int stream_create(Stream* stream, unsigned) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("stream_create")) return failed;
    ++machine->streams;
    *stream = new char;
    machine->queues_[*stream];
    machine->destroyed_.erase(reinterpret_cast<std::uint64_t>(*stream));
    return kSuccess;
  }
  static int stream_create_with_priority(Stream* stream, unsigned flags, int priority) {
    machine->last_priority = priority;
    return stream_create(stream, flags);
  }
  static int stream_priorities(int* least, int* greatest) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("stream_priorities")) return failed;
    *least = 0;
    *greatest = FakeMachine::kGreatestPriority;
    return kSuccess;
  }
  static int stream_destroy(Stream stream) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("stream_destroy")) return failed;
    --machine->streams;
    machine->queues_.erase(stream);
    machine->destroyed_.insert(reinterpret_cast<std::uint64_t>(stream));
    delete static_cast<char*>(stream);
    return kSuccess;
  }
  static int stream_synchronize(Stream stream) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("stream_synchronize")) return failed;
    return machine->advance(stream, ~std::uint64_t{0});
  }

  static int module_load(Module* module, const void* image) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("module_load")) return failed;
    if (image == nullptr) return machine->invalid();
    ++machine->modules;
    *module = machine;
    return kSuccess;
  }
  static int module_unload(Module) {
    const Lock lock(machine->mutex_);
    --machine->modules;
    return machine->entered("module_unload");
  }
  static int module_function(Function* function, Module, const char* name) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("module_function")) return failed;
    const auto found = machine->kernels.find(name);
    if (found == machine->kernels.end()) return kNotFound;
    *function = &found->second;
    return kSuccess;
  }

  static int set_function_attribute(Function function, int attribute, int value) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("set_function_attribute")) return failed;
    if (attribute != kFunctionDynamicSharedBytes || value < 0 ||
        value > machine->most_shared_bytes) {
      return machine->invalid();
    }
    static_cast<FakeMachine::Kernel*>(function)->most_shared_bytes =
        static_cast<std::uint32_t>(value);
    return kSuccess;
  }

  // The arguments are taken at once, as CUDA does; the kernel runs when the stream gets there.
  static int launch(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                    Stream stream, void** parameters, void** extra) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("launch")) return failed;
    const auto* const kernel = static_cast<const FakeMachine::Kernel*>(function);
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 ||
        block_y != 1 || block_z != 1 || shared_bytes > kernel->most_shared_bytes ||
        extra != nullptr) {
      return machine->invalid();
    }
    const FakeMachine::Launch launch{grid_x, block_x, shared_bytes};
    machine->launches.push_back(launch);
    auto* const taken =
        static_cast<std::byte*>(std::aligned_alloc(64, (kernel->argument_bytes + 63) / 64 * 64));
    if (kernel->parameters.empty()) std::memcpy(taken, parameters[0], kernel->argument_bytes);
    for (std::size_t i = 0; i < kernel->parameters.size(); ++i) {
      const FakeMachine::Kernel::Parameter& parameter = kernel->parameters[i];
      std::memcpy(taken + parameter.offset, parameters[i], parameter.bytes);
    }
    const std::shared_ptr<std::byte> kept(taken, std::free);
    machine->queues_[stream].work.push_back([kernel, kept, launch] {
      const std::uint64_t before = machine->faults;
      kernel->run(kept.get(), launch);
      return machine->faults == before ? kSuccess : kIllegalAddress;
    });
    return kSuccess;
  }

  // Of bytes that are taken now.
  static std::function<int()> store_later(DevicePointer to, const std::byte* from,
                                          std::size_t bytes) {
    return [to, taken = std::vector(from, from + bytes)] {
      std::byte* const target = machine->reach(to, taken.size());
      if (target == nullptr) return kIllegalAddress;
      std::memcpy(target, taken.data(), taken.size());
      return kSuccess;
    };
  }

  static int enqueue_copy(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
    machine->queues_[stream].work.push_back(
        [to, from, bytes] { return machine->move(to, from, bytes); });
    return kSuccess;
  }
  static int copy(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("copy")) return failed;
    ++machine->copies;
    return enqueue_copy(to, from, bytes, stream);
  }
  // Copies run in any order: last to first. A source that may be read in any order is read before the stream's work
  // by every other copy. Copies that write the same bytes are a fault, for their order is unknown.
  static int copy_batch(DevicePointer* to, DevicePointer* from, std::size_t* bytes,
                        std::size_t count, CopyAttributes* attributes,
                        std::size_t* attribute_starts, std::size_t attribute_count,
                        std::size_t* failed, Stream stream) {
    const Lock lock(machine->mutex_);
    *failed = machine->failing_copy;
    if (const int result = machine->entered("copy_batch")) return result;
    const int order = attributes->order;
    if (count == 0 || attribute_count != 1 || attribute_starts[0] != 0 || is_legacy(stream) ||
        (order != kSourceStreamOrder && order != kSourceAnyOrder)) {
      *failed = 0;
      return machine->invalid();
    }
    std::map<DevicePointer, std::size_t> targets;
    std::vector<std::function<int()>> copies;
    for (std::size_t i = count; i-- > 0;) {
      const auto next = targets.lower_bound(to[i]);
      const bool meets_next = next != targets.end() && next->first < to[i] + bytes[i];
      const bool meets_previous =
          next != targets.begin() && std::prev(next)->first + std::prev(next)->second > to[i];
      if (meets_next || meets_previous) ++machine->faults;
      targets[to[i]] = bytes[i];
      if (order == kSourceAnyOrder && i % 2 == 0) {
        const std::byte* const source = machine->reach(from[i], bytes[i]);
        if (source == nullptr) return kIllegalAddress;
        copies.push_back(store_later(to[i], source, bytes[i]));
      } else {
        copies.push_back([to = to[i], from = from[i], bytes = bytes[i]] {
          return machine->move(to, from, bytes);
        });
      }
    }
    machine->batches.push_back(count);
    machine->queues_[stream].work.push_back([copies = std::move(copies)] {
      for (const auto& copy : copies) {
        if (const int result = copy()) return result;
      }
      return kSuccess;
    });
    return kSuccess;
  }
  // From page-locked memory when the stream gets there; other memory is taken at once.
  static int copy_to_device(DevicePointer to, const void* from, std::size_t bytes, Stream stream) {
    const Lock lock(machine->mutex_);
    if (const int failed = machine->entered("copy_to_device")) return failed;
    const auto source = reinterpret_cast<DevicePointer>(from);
    const std::uint64_t faults = machine->faults;
    if (machine->reach(source, bytes) != nullptr) return enqueue_copy(to, source, bytes, stream);
    machine->faults = faults;
    ++machine->pageable_copies;
    machine->queues_[stream].work.push_back(
        store_later(to, static_cast<const std::byte*>(from), bytes));
    return kSuccess;
  }
};

void FakeMachine::adopt(void* memory, std::uint64_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  memory_[reinterpret_cast<DevicePointer>(memory)] = {.bytes = bytes,
                                                      .host = static_cast<std::byte*>(memory),
                                                      .device = device,
                                                      .is_adopted = true};
}

void FakeMachine::add_streams(Driver& driver) const {
  driver.memory_allocate = FakeStreamCalls::memory_allocate;
  driver.memory_free = FakeStreamCalls::memory_free;
  driver.pointer_attribute = FakeStreamCalls::pointer_attribute;
  driver.host_allocate = FakeStreamCalls::host_allocate;
  driver.host_free = FakeStreamCalls::host_free;
  driver.host_register = FakeStreamCalls::host_register;
  driver.host_unregister = FakeStreamCalls::host_unregister;
  driver.host_device_pointer = FakeStreamCalls::host_device_pointer;
  driver.stream_create = FakeStreamCalls::stream_create;
  driver.stream_create_with_priority = FakeStreamCalls::stream_create_with_priority;
  driver.stream_priorities = FakeStreamCalls::stream_priorities;
  driver.stream_destroy = FakeStreamCalls::stream_destroy;
  driver.stream_synchronize = FakeStreamCalls::stream_synchronize;
  driver.module_load = FakeStreamCalls::module_load;
  driver.module_unload = FakeStreamCalls::module_unload;
  driver.module_function = FakeStreamCalls::module_function;
  driver.set_function_attribute = FakeStreamCalls::set_function_attribute;
  driver.launch = FakeStreamCalls::launch;
  driver.copy = FakeStreamCalls::copy;
  driver.copy_to_device = FakeStreamCalls::copy_to_device;
  if (has_batches) driver.copy_batch = FakeStreamCalls::copy_batch;
}

int FakeMachine::advance(Stream stream, std::uint64_t until) {
  Queue& queue = queues_[stream];
  while (!queue.work.empty() && queue.done < until) {
    const std::function<int()> work = std::move(queue.work.front());
    queue.work.pop_front();
    ++queue.done;
    if (failed_ == kSuccess) failed_ = work();
  }
  return failed_;
}

int FakeMachine::move(DevicePointer to, DevicePointer from, std::uint64_t bytes) {
  // Mapped memory lies together in whole granules.
  const auto left_of = [](DevicePointer at) -> std::uint64_t {
    return kGranularity - at % kGranularity;
  };
  while (bytes > 0) {
    const std::uint64_t piece = std::min({bytes, left_of(to), left_of(from)});
    std::byte* const target = reach(to, piece);
    const std::byte* const source = reach(from, piece);
    if (target == nullptr || source == nullptr) return kIllegalAddress;
    std::memcpy(target, source, piece);
    to += piece;
    from += piece;
    bytes -= piece;
  }
  return kSuccess;
}

std::byte* FakeMachine::reach_mapped(DevicePointer at, std::uint64_t bytes) {
  auto mapping = mappings_.upper_bound(at);
  if (mapping == mappings_.begin()) return nullptr;
  --mapping;
  const std::uint64_t skipped = at - mapping->first;
  const Mapping& found = mapping->second;
  if (found.access == 0 || skipped > found.bytes || bytes > found.bytes - skipped) return nullptr;
  Allocation& allocation = handles_.at(found.handle);
  if (allocation.host == nullptr) {
    allocation.host = static_cast<std::byte*>(std::aligned_alloc(kGranularity, allocation.bytes));
    if (allocation.host == nullptr) return nullptr;
  }
  return allocation.host + skipped;
}

std::byte* FakeMachine::reach(DevicePointer at, std::uint64_t bytes) {
  for (const std::map<DevicePointer, Memory>* const table : {&memory_, &registered_}) {
    auto found = table->upper_bound(at);
    if (found == table->begin()) continue;
    --found;
    const std::uint64_t skipped = at - found->first;
    if (skipped <= found->second.bytes && bytes <= found->second.bytes - skipped) {
      return found->second.host + skipped;
    }
  }
  if (std::byte* const mapped = reach_mapped(at, bytes)) return mapped;
  ++faults;
  return nullptr;
}

}  // namespace cachalot::gpu
