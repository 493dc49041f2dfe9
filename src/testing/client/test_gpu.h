// For tests: an engine with caches on a fake GPU, in a cluster.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "client/attach.h"
#include "testing/client/test_cluster.h"
#include "testing/kv/fake_kernels.h"

namespace cachalot::client {

inline std::vector<PageId> pages_from(PageId first, std::size_t count) {
  std::vector<PageId> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

// A machine with fake GPUs, and driver calls as a program makes them. It outlives its clients.
class GpuMachine {
 public:
  GpuMachine() { kv::add_kernels(fake); }

  kv::Gpus::Open opener() {
    return [this](int ordinal) {
      return kv::CudaDevice::open(fake.driver(), kv::kFakeImage, ordinal);
    };
  }
  Client attach(const ClientOptions& options) {
    Result<Client> client = client::attach(options, opener());
    EXPECT_TRUE(client) << (client ? "" : client.error().message);
    return *std::move(client);
  }
  // Makes the device's context current for this thread.
  void enter(int device = 0) {
    gpu::Context context = nullptr;
    driver.primary_context_retain(&context, device);
    driver.primary_context_release(device);
    driver.context_set_current(context);
  }
  // Device memory; with the fake GPU the host can read and write it.
  std::byte* allocate(std::uint64_t bytes, int device = 0) {
    enter(device);
    gpu::DevicePointer at = 0;
    EXPECT_EQ(driver.memory_allocate(&at, bytes), gpu::kSuccess);
    return reinterpret_cast<std::byte*>(at);
  }
  void free(std::byte* at) {
    EXPECT_EQ(driver.memory_free(reinterpret_cast<gpu::DevicePointer>(at)), gpu::kSuccess);
  }
  // A cache in device memory with a tensor per layer, on the default stream.
  PagedCache cache_on(int device, const KvGeometry& geometry, std::uint32_t pages) {
    PagedCache cache{.layout = "vllm_bknhc", .pages = pages, .cuda_device = device};
    const std::uint64_t bytes = pages * geometry.layer_bytes();
    for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
      cache.tensors.push_back({allocate(bytes, device), bytes});
    }
    return cache;
  }
  void free(const PagedCache& cache) {
    enter();
    for (const auto& tensor : cache.tensors) free(static_cast<std::byte*>(tensor.data));
  }
  gpu::Stream make_stream() {
    enter();
    gpu::Stream stream = nullptr;
    EXPECT_EQ(driver.stream_create(&stream, gpu::kStreamNonBlocking), gpu::kSuccess);
    return stream;
  }
  void finish(gpu::Stream stream) { EXPECT_EQ(driver.stream_synchronize(stream), gpu::kSuccess); }

  gpu::FakeMachine fake;
  const gpu::Driver driver = fake.driver();
};

// As Engine, in GPU memory.
struct GpuEngine {
  GpuEngine(GpuMachine& gpus, const ClientOptions& options, std::uint32_t pages = 16)
      : machine(gpus), client(gpus.attach(options)), page_count(pages) {
    page_bytes = options.geometry.layer_bytes();
    for (std::uint32_t layer = 0; layer < options.geometry.layers; ++layer) {
      tensors.push_back(machine.allocate(pages * page_bytes));
    }
    stream = machine.make_stream();
    stage = machine.allocate(tensors.size() * page_bytes);
    const Result<CacheId> registered = client.register_cache(description());
    EXPECT_TRUE(registered) << (registered ? "" : registered.error().message);
    if (registered) cache = *registered;
    clear();
  }
  ~GpuEngine() {
    (void)client.detach();
    machine.enter();
    machine.driver.stream_destroy(stream);
    for (std::byte* const tensor : tensors) machine.free(tensor);
    machine.free(stage);
  }
  GpuEngine(const GpuEngine&) = delete;
  GpuEngine& operator=(const GpuEngine&) = delete;

  PagedCache description() const {
    PagedCache description;
    description.layout = "vllm_bknhc";
    description.pages = page_count;
    for (std::byte* const tensor : tensors) {
      description.tensors.push_back({tensor, page_count * page_bytes});
    }
    description.cuda_device = 0;
    description.cuda_stream = stream;
    return description;
  }
  std::vector<std::byte> computed(const BlockHash& hash, std::size_t layer) const {
    base::Rng rng(hash.low + layer);
    std::vector<std::byte> bytes(page_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next());
    return bytes;
  }
  // "Computes" a block, immediately or on a stream. On streams: one block at a time, because `stage` is shared.
  void compute(const BlockHash& hash, PageId page) {
    for (std::size_t layer = 0; layer < tensors.size(); ++layer) {
      std::memcpy(tensors[layer] + page * page_bytes, computed(hash, layer).data(), page_bytes);
    }
  }
  void compute_on(gpu::Stream on, const BlockHash& hash, PageId page) {
    machine.enter();
    for (std::size_t layer = 0; layer < tensors.size(); ++layer) {
      std::byte* const staged = stage + layer * page_bytes;
      std::memcpy(staged, computed(hash, layer).data(), page_bytes);
      copy(tensors[layer] + page * page_bytes, staged, on);
    }
  }
  void copy(std::byte* to, const std::byte* from, gpu::Stream on) {
    EXPECT_EQ(machine.driver.copy(reinterpret_cast<gpu::DevicePointer>(to),
                                  reinterpret_cast<gpu::DevicePointer>(from), page_bytes, on),
              gpu::kSuccess);
  }
  bool holds(const BlockHash& hash, PageId page, std::size_t layer) const {
    return std::memcmp(tensors[layer] + page * page_bytes, computed(hash, layer).data(),
                       page_bytes) == 0;
  }
  bool holds(const BlockHash& hash, PageId page) const {
    for (std::size_t layer = 0; layer < tensors.size(); ++layer) {
      if (!holds(hash, page, layer)) return false;
    }
    return true;
  }
  void clear() {
    for (std::byte* const tensor : tensors) std::memset(tensor, 0, page_count * page_bytes);
  }
  // Computes and stores a prompt of `blocks` blocks, starting with page 0.
  std::vector<BlockHash> store(std::uint64_t prompt, std::size_t blocks) {
    const auto hashes = client.hash_tokens(tokens_of(prompt, blocks * 4));
    for (std::size_t i = 0; i < blocks; ++i) compute(hashes[i], static_cast<PageId>(i));
    const Result<Stored> stored = client.store(cache, nullptr, hashes, pages_from(0, blocks));
    EXPECT_TRUE(stored) << (stored ? "" : stored.error().message);
    EXPECT_EQ(stored ? stored->blocks : 0, blocks);
    return hashes;
  }

  GpuMachine& machine;
  Client client;
  std::uint32_t page_count;
  std::uint64_t page_bytes = 0;
  std::vector<std::byte*> tensors;
  std::byte* stage = nullptr;  // a page per tensor, the source of compute_on()
  gpu::Stream stream = nullptr;
  CacheId cache{};
};

// Runs in each domain. After each test the fake GPU holds no resources and has seen no error.
class GpuCacheTest : public ::testing::TestWithParam<const char*> {
 protected:
  GpuCacheTest() : cluster_(small_geometry().block_bytes(), 64, GetParam()) {}
  ~GpuCacheTest() override {
    EXPECT_EQ(machine_.fake.faults, 0u);
    EXPECT_EQ(machine_.fake.refused, 0u);
    EXPECT_EQ(machine_.fake.of_another_device, 0u);
    EXPECT_EQ(machine_.fake.without_context, 0u);
    EXPECT_EQ(machine_.fake.registrations(), 0u);
    EXPECT_EQ(machine_.fake.allocations() + machine_.fake.events(), 0u);
    EXPECT_EQ(machine_.fake.modules + machine_.fake.contexts + machine_.fake.streams, 0);
  }
  ClientOptions options() const { return cluster_.client_options(); }

  Cluster cluster_;
  GpuMachine machine_;
};

}  // namespace cachalot::client
