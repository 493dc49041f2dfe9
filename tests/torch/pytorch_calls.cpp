// What the real PyTorch hands to a pluggable allocator's functions, seen from both sides: calls of its
// CUDAPluggableAllocator on top, functions of torch.h's types that write down what arrives below. Compiled and
// driven by pytorch_test.py where PyTorch is; it needs no GPU, since none of these calls asks CUDA for anything.
#include <cachalot/torch.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdio>
#include <exception>
#include <string>

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

namespace {

// The one that PyTorch uses: what torch.cuda.memory.change_current_allocator() was given.
Pluggable& current() {
  static const std::shared_ptr<Allocator> allocator =
      torch::cuda::CUDAPluggableAllocator::getCurrentAllocator();
  return dynamic_cast<Pluggable&>(*allocator);
}

template <class F>
int said(F&& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& error) {
    const std::string words = error.what();
    std::fprintf(stderr, "pytorch_calls: %s\n", words.substr(0, words.find('\n')).c_str());
    return 1;
  }
}

}  // namespace

// --- PyTorch's side

extern "C" {

void* calls_malloc(uint64_t size, int device, void* stream) {
  void* pointer = nullptr;
  said([&] {
    pointer = current().malloc(size, static_cast<c10::DeviceIndex>(device),
                               static_cast<cudaStream_t>(stream));
  });
  return pointer;
}
int calls_free(void* pointer) {
  return said([&] { current().raw_delete(pointer); });
}
// The stream of a program of its own, as torch.cuda.ExternalStream has it.
int calls_record_stream(void* pointer, void* stream, int device) {
  return said([&] {
    const c10::DataPtr data(
        pointer, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
    current().recordStream(data,
                           c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream),
                                                            static_cast<c10::DeviceIndex>(device)));
  });
}
int calls_empty_cache() {
  return said([] { current().emptyCache(); });
}
int calls_begin_pool(int device, uint64_t first, uint64_t second) {
  return said([&] {
    // With something in it, so that it is no null.
    std::function<bool(cudaStream_t)> filter = [first](cudaStream_t stream) {
      return reinterpret_cast<uint64_t>(stream) == first;
    };
    current().beginAllocateToPool(static_cast<c10::DeviceIndex>(device), {first, second}, filter);
  });
}
int calls_end_pool(int device, uint64_t first, uint64_t second) {
  return said([&] {
    current().endAllocateToPool(static_cast<c10::DeviceIndex>(device), {first, second});
  });
}
int calls_release_pool(int device, uint64_t first, uint64_t second) {
  return said([&] {
    current().releasePool(static_cast<c10::DeviceIndex>(device), {first, second});
  });
}
int calls_set_fraction(double fraction, int device) {
  return said(
      [&] { current().setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device)); });
}

// --- The allocator's side: what came, in order

struct Seen {
  char function[24];
  int64_t number;  // a size
  int32_t device;
  uint64_t first, second;  // pointer and stream, or a pool's name
  double fraction;
  int32_t filter_works;
};
static Seen seen;
const Seen* seen_last() {
  return &seen;
}

static void see(const char* function) {
  seen = {};
  std::snprintf(seen.function, sizeof seen.function, "%s", function);
}

// Each has the type of the function of ours in whose place it stands.
decltype(cachalot_torch_malloc) seen_malloc;
decltype(cachalot_torch_free) seen_free;
decltype(cachalot_torch_record_stream) seen_record_stream;
decltype(cachalot_torch_empty_cache) seen_empty_cache;
decltype(cachalot_torch_set_memory_fraction) seen_set_memory_fraction;
decltype(cachalot_torch_begin_pool) seen_begin_pool;
decltype(cachalot_torch_end_pool) seen_end_pool;
decltype(cachalot_torch_release_pool) seen_release_pool;

void* seen_malloc(intptr_t size, int device, void* stream) {
  see("malloc");
  seen.number = size;
  seen.device = device;
  seen.second = reinterpret_cast<uint64_t>(stream);
  return reinterpret_cast<void*>(0x123456000);
}
void seen_free(void* pointer, intptr_t size, int device, void* stream) {
  see("free");
  seen.number = size;
  seen.device = device;
  seen.first = reinterpret_cast<uint64_t>(pointer);
  seen.second = reinterpret_cast<uint64_t>(stream);
}
void seen_record_stream(void* pointer, void* stream) {
  see("record_stream");
  seen.first = reinterpret_cast<uint64_t>(pointer);
  seen.second = reinterpret_cast<uint64_t>(stream);
}
void seen_empty_cache(void) {
  see("empty_cache");
}
void seen_set_memory_fraction(double fraction, int device) {
  see("set_memory_fraction");
  seen.fraction = fraction;
  seen.device = device;
}
static void see_pool(const char* function, int device, cachalot_torch_pool_id id) {
  see(function);
  seen.device = device;
  seen.first = id.first;
  seen.second = id.second;
}
void seen_begin_pool(int device, cachalot_torch_pool_id id, void* filter) {
  see_pool("begin_pool", device, id);
  const auto& asks = *static_cast<const std::function<bool(cudaStream_t)>*>(filter);
  seen.filter_works = asks(reinterpret_cast<cudaStream_t>(id.first)) && !asks(nullptr);
}
void seen_end_pool(int device, cachalot_torch_pool_id id) {
  see_pool("end_pool", device, id);
}
void seen_release_pool(int device, cachalot_torch_pool_id id) {
  see_pool("release_pool", device, id);
}

}  // extern "C"
