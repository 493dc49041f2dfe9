#include "testing/gpu/fake_gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cachalot::gpu {

FakeMachine* machine = nullptr;

namespace {

thread_local Context current_context = nullptr;
thread_local std::vector<Context> pushed_contexts;  // what was current before each push
thread_local int capture_mode = 0;
constexpr int kUnsupportedInCapture = 900;

}  // namespace

// The functions of the table, with the machine's lock held.
struct FakeCalls {
  static bool in_one_range(DevicePointer at, std::uint64_t bytes) {
    auto range = machine->ranges_.upper_bound(at);
    if (range == machine->ranges_.begin()) return false;
    --range;
    return at + bytes <= range->first + range->second;
  }

  static int init(unsigned flags) { return flags == 0 ? machine->failing["init"] : kInvalidValue; }

  static int error_name(int result, const char** name) {
    *name = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SOMETHING";
    return kSuccess;
  }

  static int device_get(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= machine->devices) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
  }

  static int device_name(char* name, int bytes, int) {
    std::strncpy(name, "Fake GPU", static_cast<std::size_t>(bytes));
    return kSuccess;
  }

  static int device_attribute(int* value, int attribute, int device) {
    if (device < 0 || device >= machine->devices) return kInvalidDevice;
    *value = machine->missing_attributes.contains(attribute) ? 0 : 1;
    if (attribute == kMultiprocessors) *value = machine->multiprocessors;
    if (attribute == kComputeMajor) *value = machine->compute_major;
    if (attribute == kMostSharedBytes) *value = machine->most_shared_bytes;
    return kSuccess;
  }

  static int device_can_access_peer(int* can, int device, int peer) {
    if (device < 0 || device >= machine->devices) return kInvalidDevice;
    *can = device != peer && !machine->strangers.contains({device, peer}) ? 1 : 0;
    return kSuccess;
  }

  static int primary_context_retain(Context* context, int device) {
    const std::lock_guard lock(machine->mutex_);
    ++machine->contexts;
    ++machine->retained_.at(static_cast<std::size_t>(device));
    *context = &machine->context_of_.at(static_cast<std::size_t>(device));
    return machine->failing["primary_context_retain"];
  }
  // What was registered in it has to be gone by then.
  static int primary_context_release(int device) {
    const std::lock_guard lock(machine->mutex_);
    --machine->contexts;
    if (--machine->retained_.at(static_cast<std::size_t>(device)) != 0) return kSuccess;
    for (const auto& [at, memory] : machine->registered_) {
      if (memory.device == device) return machine->invalid();
    }
    return kSuccess;
  }
  static int context_get_current(Context* context) {
    const std::lock_guard lock(machine->mutex_);
    if (machine->ended_) return kDeinitialized;
    *context = current_context;
    return kSuccess;
  }
  static int context_push(Context context) {
    pushed_contexts.push_back(current_context);
    current_context = context;
    return kSuccess;
  }
  static int context_pop(Context* context) {
    if (pushed_contexts.empty()) return kInvalidContext;
    *context = current_context;
    current_context = pushed_contexts.back();
    pushed_contexts.pop_back();
    return kSuccess;
  }
  static int context_synchronize() {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("context_synchronize")) return failed;
    // It would end the capture, whatever the mode.
    for (const auto& [stream, work] : machine->streams_) {
      if (!work.capturing) continue;
      machine->invalid();
      return kUnsupportedInCapture;
    }
    for (auto& [stream, work] : machine->streams_) work.finished = work.launched;
    for (auto& [stream, queue] : machine->queues_) machine->advance(stream, ~std::uint64_t{0});
    return machine->failed_;
  }
  static int device_total_bytes(std::size_t* bytes, int device) {
    if (device < 0 || device >= machine->devices) return kInvalidDevice;
    *bytes = machine->memory_bytes;
    return kSuccess;
  }
  static int context_set_current(Context context) {
    current_context = context;
    return machine->failing["context_set_current"];
  }

  static int granularity(std::size_t* bytes, const AllocationProperties*, int which) {
    if (which != 0) return machine->invalid();
    *bytes = FakeMachine::kGranularity;
    return machine->failing["granularity"];
  }

  static int address_reserve(DevicePointer* at, std::size_t bytes, std::size_t alignment,
                             DevicePointer wanted, unsigned long long flags) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("address_reserve")) return failed;
    const std::uint64_t granularity = FakeMachine::kGranularity;
    if (bytes == 0 || bytes % granularity != 0 || alignment % granularity != 0 || wanted != 0 ||
        flags != 0) {
      return machine->invalid();
    }
    // Without a gap, so that a mistake at the border of two ranges is not hidden.
    *at = machine->next_range_;
    machine->next_range_ += bytes;
    machine->ranges_[*at] = bytes;
    return kSuccess;
  }

  static int address_free(DevicePointer at, std::size_t bytes) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("address_free")) return failed;
    const auto range = machine->ranges_.find(at);
    if (range == machine->ranges_.end() || range->second != bytes) return machine->invalid();
    const auto mapping = machine->mappings_.lower_bound(at);
    if (mapping != machine->mappings_.end() && mapping->first < at + bytes) {
      return machine->invalid();
    }
    machine->ranges_.erase(range);
    return kSuccess;
  }

  static int create(AllocationHandle* handle, std::size_t bytes,
                    const AllocationProperties* properties, unsigned long long flags) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("create")) return failed;
    const int device = properties->location.id;
    if (bytes == 0 || bytes % FakeMachine::kGranularity != 0 || flags != 0 ||
        properties->type != 1 || properties->location.type != 1 || device < 0 ||
        device >= machine->devices) {
      return machine->invalid();
    }
    if (bytes > machine->memory_bytes - machine->used_bytes_) return kOutOfMemory;
    machine->used_bytes_ += bytes;
    machine->last_properties = *properties;
    *handle = machine->next_handle_++;
    machine->handles_[*handle].bytes = bytes;
    return kSuccess;
  }

  static int release(AllocationHandle handle) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("release")) return failed;
    const auto found = machine->handles_.find(handle);
    if (found == machine->handles_.end() || found->second.released) return machine->invalid();
    found->second.released = true;
    machine->drop(found);
    return kSuccess;
  }

  static int map(DevicePointer at, std::size_t bytes, std::size_t offset, AllocationHandle handle,
                 unsigned long long flags) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("map")) return failed;
    const auto found = machine->handles_.find(handle);
    if (found == machine->handles_.end() || found->second.released) return machine->invalid();
    if (bytes != found->second.bytes || offset != 0 || flags != 0) return machine->invalid();
    if (at % FakeMachine::kGranularity != 0 || !in_one_range(at, bytes)) return machine->invalid();
    for (const auto& [other, mapping] : machine->mappings_) {
      if (other < at + bytes && at < other + mapping.bytes) return machine->invalid();
    }
    machine->mappings_[at] = {.bytes = bytes, .handle = handle, .access = 0};
    ++found->second.mappings;
    return kSuccess;
  }

  static int unmap(DevicePointer at, std::size_t bytes) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("unmap")) return failed;
    if (!in_one_range(at, bytes) || !machine->is_mapped(at, bytes)) return machine->invalid();
    auto mapping = machine->mappings_.find(at);
    while (mapping != machine->mappings_.end() && mapping->first < at + bytes) {
      const auto allocation = machine->handles_.find(mapping->second.handle);
      --allocation->second.mappings;
      machine->drop(allocation);
      mapping = machine->mappings_.erase(mapping);
    }
    return kSuccess;
  }

  static int set_access(DevicePointer at, std::size_t bytes, const AccessDescription* access,
                        std::size_t count) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("set_access")) return failed;
    if (!in_one_range(at, bytes) || !machine->is_mapped(at, bytes)) return machine->invalid();
    ++machine->access_calls;
    machine->last_access.assign(access, access + count);
    auto mapping = machine->mappings_.find(at);
    for (; mapping != machine->mappings_.end() && mapping->first < at + bytes; ++mapping) {
      mapping->second.access = access[0].flags;
    }
    return kSuccess;
  }

  static int event_create(Event* event, unsigned flags) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("event_create")) return failed;
    if ((flags & ~kEventBlockingSync) != kEventNoTiming) return machine->invalid();
    const std::uint64_t number = machine->next_event_++;
    machine->events_[number].device = machine->current_device();
    *event = reinterpret_cast<Event>(number);
    return kSuccess;
  }
  static int event_destroy(Event event) {
    const std::lock_guard lock(machine->mutex_);
    if (machine->ended_) return kDeinitialized;
    return machine->events_.erase(reinterpret_cast<std::uint64_t>(event)) == 1 ? kSuccess
                                                                               : machine->invalid();
  }
  static int event_record(Event event, Stream stream) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("event_record")) return failed;
    FakeMachine::Recorded* const recorded = machine->find_event(event);
    if (recorded == nullptr) return machine->invalid();
    if (machine->destroyed_.contains(reinterpret_cast<std::uint64_t>(stream)))
      return kContextIsDestroyed;
    recorded->stream = reinterpret_cast<std::uint64_t>(stream);
    FakeMachine::Work& work = machine->streams_[recorded->stream];
    if (work.capturing) ++machine->recorded_in_capture;
    recorded->launched = work.launched;
    const FakeMachine::Queue& queue = machine->queues_[stream];
    recorded->at = queue.done + queue.work.size();
    return kSuccess;
  }
  static int event_query(Event event) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("event_query")) return failed;
    const FakeMachine::Recorded* const recorded = machine->find_event(event);
    if (recorded == nullptr) return machine->invalid();
    if (!machine->is_done(*recorded)) return kNotReady;
    auto* const stream = reinterpret_cast<Stream>(recorded->stream);
    const FakeMachine::Queue& queue = machine->queues_[stream];
    if (queue.done >= recorded->at) return machine->failed_;
    const int failed = machine->advance(stream, queue.done + 1);
    return failed != kSuccess ? failed : kNotReady;
  }
  static int event_synchronize(Event event) {
    std::unique_lock lock(machine->mutex_);
    if (const int failed = machine->entered("event_synchronize")) return failed;
    const FakeMachine::Recorded* const found = machine->find_event(event);
    if (found == nullptr) return machine->invalid();
    const FakeMachine::Recorded recorded = *found;
    auto* const stream = reinterpret_cast<Stream>(recorded.stream);
    if (machine->is_done(recorded)) return machine->advance(stream, recorded.at);
    ++machine->waits;
    if (machine->on_wait) {
      lock.unlock();
      machine->on_wait();
      lock.lock();
    }
    FakeMachine::Work& work = machine->streams_[recorded.stream];
    work.finished = std::max(work.finished, recorded.launched);
    return machine->advance(stream, recorded.at);
  }
  // What the event stood for then has to be done first, whatever the event is used for afterwards.
  static int stream_wait_event(Stream stream, Event event, unsigned flags) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("stream_wait_event")) return failed;
    const FakeMachine::Recorded* const found = machine->find_event(event);
    if (found == nullptr || flags != 0) return machine->invalid();
    machine->queues_[stream].work.push_back([recorded = *found] {
      FakeMachine::Work& work = machine->streams_[recorded.stream];
      work.finished = std::max(work.finished, recorded.launched);
      return machine->advance(reinterpret_cast<Stream>(recorded.stream), recorded.at);
    });
    return kSuccess;
  }
  static int stream_is_capturing(Stream stream, int* state) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("stream_is_capturing")) return failed;
    const bool others = std::any_of(machine->streams_.begin(), machine->streams_.end(),
                                    [](const auto& each) { return each.second.capturing; });
    if (stream == nullptr && others) return kCaptureImplicit;
    if (machine->destroyed_.contains(reinterpret_cast<std::uint64_t>(stream)))
      return machine->of_destroyed_streams;
    *state = machine->streams_[reinterpret_cast<std::uint64_t>(stream)].capturing ? 1 : 0;
    return kSuccess;
  }
  static int stream_context(Stream stream, Context* context) {
    const std::lock_guard lock(machine->mutex_);
    if (const int failed = machine->entered("stream_context")) return failed;
    if (machine->destroyed_.contains(reinterpret_cast<std::uint64_t>(stream)) &&
        !machine->knows_destroyed_streams)
      return machine->of_destroyed_streams;
    *context = current_context;
    return kSuccess;
  }
  static int exchange_capture_mode(int* mode) {
    std::swap(*mode, capture_mode);
    return kSuccess;
  }
};

FakeMachine::FakeMachine() {
  CACHALOT_CHECK(machine == nullptr);
  machine = this;
  current_context = nullptr;
  pushed_contexts.clear();
  capture_mode = 0;
}

FakeMachine::~FakeMachine() {
  for (const auto& [at, memory] : memory_) {
    if (!memory.is_adopted) std::free(memory.host);
  }
  for (const auto& [handle, allocation] : handles_) std::free(allocation.host);
  machine = nullptr;
}

Driver FakeMachine::driver() const {
  Driver driver{};
  driver.init = FakeCalls::init;
  driver.error_name = FakeCalls::error_name;
  driver.device_get = FakeCalls::device_get;
  driver.device_name = FakeCalls::device_name;
  driver.device_attribute = FakeCalls::device_attribute;
  driver.device_can_access_peer = FakeCalls::device_can_access_peer;
  driver.primary_context_retain = FakeCalls::primary_context_retain;
  driver.primary_context_release = FakeCalls::primary_context_release;
  driver.context_get_current = FakeCalls::context_get_current;
  driver.context_set_current = FakeCalls::context_set_current;
  driver.granularity = FakeCalls::granularity;
  driver.address_reserve = FakeCalls::address_reserve;
  driver.address_free = FakeCalls::address_free;
  driver.create = FakeCalls::create;
  driver.release = FakeCalls::release;
  driver.map = FakeCalls::map;
  driver.unmap = FakeCalls::unmap;
  driver.set_access = FakeCalls::set_access;
  driver.device_total_bytes = FakeCalls::device_total_bytes;
  driver.context_push = FakeCalls::context_push;
  driver.context_pop = FakeCalls::context_pop;
  driver.context_synchronize = FakeCalls::context_synchronize;
  driver.event_create = FakeCalls::event_create;
  driver.event_destroy = FakeCalls::event_destroy;
  driver.event_record = FakeCalls::event_record;
  driver.event_query = FakeCalls::event_query;
  driver.event_synchronize = FakeCalls::event_synchronize;
  driver.stream_wait_event = FakeCalls::stream_wait_event;
  driver.stream_context = FakeCalls::stream_context;
  driver.stream_is_capturing = FakeCalls::stream_is_capturing;
  driver.exchange_capture_mode = FakeCalls::exchange_capture_mode;
  add_streams(driver);
  return driver;
}

int FakeMachine::invalid() {
  ++refused;
  return kInvalidValue;
}

// As the driver: while a stream is captured, a thread in another mode than the relaxed one may not do
// what could disturb it.
int FakeMachine::entered(const char* function) {
  if (ended_) return kDeinitialized;
  const bool is_captured = std::any_of(streams_.begin(), streams_.end(),
                                       [](const auto& each) { return each.second.capturing; });
  if (is_captured && capture_mode != kCaptureRelaxed) {
    ++refused;
    return kUnsupportedInCapture;
  }
  if (current_context == nullptr) {
    ++without_context;
    return kInvalidContext;
  }
  const auto found = failing.find(function);
  if (found == failing.end()) return kSuccess;
  int& left = passing[function];
  if (left == 0) return found->second;
  --left;
  return kSuccess;
}

void FakeMachine::drop(std::map<AllocationHandle, Allocation>::iterator allocation) {
  if (!allocation->second.released || allocation->second.mappings != 0) return;
  used_bytes_ -= allocation->second.bytes;
  std::free(allocation->second.host);
  handles_.erase(allocation);
}

int FakeMachine::current_device() const {
  return static_cast<int>(static_cast<const char*>(current_context) - context_of_.data());
}

FakeMachine::Recorded* FakeMachine::find_event(Event event) {
  const auto found = events_.find(reinterpret_cast<std::uint64_t>(event));
  if (found == events_.end()) return nullptr;
  if (found->second.device == current_device()) return &found->second;
  ++of_another_device;
  return nullptr;
}

bool FakeMachine::is_done(const Recorded& event) const {
  const auto work = streams_.find(event.stream);
  return work == streams_.end() || work->second.finished >= event.launched;
}

void FakeMachine::begin(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  ++streams_[stream].launched;
}

void FakeMachine::finish(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  streams_[stream].finished = streams_[stream].launched;
}

bool FakeMachine::is_idle(std::uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  const auto work = streams_.find(stream);
  return work == streams_.end() || work->second.finished == work->second.launched;
}

void FakeMachine::set_capturing(std::uint64_t stream, bool capturing) {
  const std::lock_guard lock(mutex_);
  streams_[stream].capturing = capturing;
}

void FakeMachine::destroy(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  destroyed_.insert(stream);
}

void FakeMachine::deinitialize() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

bool FakeMachine::is_mapped(DevicePointer at, std::uint64_t bytes) const {
  std::uint64_t found = 0;
  for (auto mapping = mappings_.find(at);
       mapping != mappings_.end() && mapping->first == at + found && found < bytes; ++mapping) {
    found += mapping->second.bytes;
  }
  return bytes != 0 && found == bytes;
}

}  // namespace cachalot::gpu
