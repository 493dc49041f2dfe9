// The C ABI with caches on a GPU: libcachalot.so opens libcuda.so.1, and finds emulated GPUs behind it.
#include <cachalot/c.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "fake_libcuda.h"
#include "testing/client/c_cache.h"
#include "testing/kv/fake_kernels.h"

namespace gpu = cachalot::gpu;

namespace {

constexpr std::size_t kTensorBytes = 4 * 1024;  // 4 pages of 2 parts, 4 tokens, 64 numbers

class CApiGpuTest : public ::testing::Test {
 protected:
  CApiGpuTest() : driver_(fake_machine().driver()) {
    cachalot::kv::add_kernels(fake_machine());
    path_ = "/dev/shm/cachalot_c_api_gpu_test." + std::to_string(getpid());
    cachalot_keeper_options serve{};
    serve.struct_size = sizeof serve;
    serve.pool = path_.c_str();
    serve.block_bytes = 2048;
    serve.capacity_blocks = 16;
    EXPECT_EQ(cachalot_keeper_start(&serve, &keeper_), CACHALOT_OK) << cachalot_last_message();
    const cachalot_client_options options = cachalot::client::small_c_options(path_.c_str());
    EXPECT_EQ(cachalot_attach(&options, &client_), CACHALOT_OK) << cachalot_last_message();
    gpu::Context context = nullptr;
    driver_.primary_context_retain(&context, 1);
    driver_.context_set_current(context);
    for (std::size_t i = 0; i < 2; ++i) {
      driver_.memory_allocate(&there_[i], kTensorBytes);
      std::memset(at(i), static_cast<int>(7 + i), kTensorBytes);
      here_[i].resize(kTensorBytes);
    }
  }
  ~CApiGpuTest() override {
    EXPECT_EQ(cachalot_detach(client_), CACHALOT_OK) << cachalot_last_message();
    EXPECT_EQ(cachalot_keeper_stop(keeper_), CACHALOT_OK) << cachalot_last_message();
    for (const gpu::DevicePointer tensor : there_) driver_.memory_free(tensor);
    driver_.primary_context_release(1);
    EXPECT_EQ(fake_machine().registrations(), 0u);
    EXPECT_EQ(fake_machine().faults, 0u);
  }
  // What the fake device's address is, the host may look at.
  void* at(std::size_t i) const { return reinterpret_cast<void*>(there_[i]); }
  cachalot_code make_cache(uint32_t memory, uint32_t* id) {
    const bool is_there = memory == CACHALOT_CUDA_MEMORY;
    cachalot_buffer tensors[2] = {};
    for (std::size_t i = 0; i < 2; ++i)
      tensors[i] = {is_there ? at(i) : here_[i].data(), kTensorBytes};
    cachalot_cache cache = cachalot::client::small_c_cache(tensors);
    cache.memory = memory;
    cache.device = is_there ? 1 : 0;
    return cachalot_register_cache(client_, &cache, id);
  }

  const gpu::Driver driver_;
  std::string path_;
  cachalot_keeper* keeper_ = nullptr;
  cachalot_client* client_ = nullptr;
  gpu::DevicePointer there_[2] = {};
  std::vector<std::byte> here_[2];
};

TEST_F(CApiGpuTest, BlocksGoFromAGpuIntoMemoryAndBackLayerByLayer) {
  uint32_t on_gpu = 0, in_memory = 0;
  const cachalot_code registered = make_cache(CACHALOT_CUDA_MEMORY, &on_gpu);
  if (registered == CACHALOT_UNSUPPORTED)
    GTEST_SKIP() << cachalot_last_message();  // built without nvcc
  ASSERT_EQ(registered, CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(fake_machine().registrations(), 1u);
  ASSERT_EQ(make_cache(CACHALOT_HOST_MEMORY, &in_memory), CACHALOT_OK) << cachalot_last_message();
  const uint32_t tokens[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                 pages[4] = {0, 1, 2, 3};
  cachalot_block_hash hashes[4];
  ASSERT_EQ(cachalot_hash_tokens(client_, tokens, 16, hashes, 4, nullptr), CACHALOT_OK);
  cachalot_layer_store* store = nullptr;
  ASSERT_EQ(cachalot_begin_store(client_, on_gpu, nullptr, hashes, 4, pages, 4, &store),
            CACHALOT_OK);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(cachalot_start_store_layer(store, layer), CACHALOT_OK) << cachalot_last_message();
  }
  EXPECT_EQ(cachalot_start_store_layer(store, 1), CACHALOT_INVALID_ARGUMENT);
  size_t blocks = 0;
  ASSERT_EQ(cachalot_end_store(store, 1, &blocks), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(blocks, 4u);
  ASSERT_EQ(cachalot_load(client_, in_memory, hashes, 4, pages, 4, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_OK);
  EXPECT_EQ(blocks, 4u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(here_[i], std::vector<std::byte>(kTensorBytes, static_cast<std::byte>(7 + i)));
    std::memset(at(i), 0, kTensorBytes);
  }
  cachalot_layer_load* load = nullptr;
  ASSERT_EQ(cachalot_begin_load(client_, on_gpu, hashes, 4, pages, 4, &load, nullptr), CACHALOT_OK);
  for (uint32_t layer = 0; layer < 2; ++layer)
    ASSERT_EQ(cachalot_start_load_layer(load, layer), CACHALOT_OK);
  EXPECT_NE(std::memcmp(at(0), here_[0].data(), kTensorBytes), 0);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(cachalot_load_layer(load, layer, &blocks), CACHALOT_OK) << cachalot_last_message();
    EXPECT_EQ(blocks, 4u);
    EXPECT_EQ(std::memcmp(at(layer), here_[layer].data(), kTensorBytes), 0);
  }
  cachalot_end_load(load);
}

TEST_F(CApiGpuTest, NullIsRefused) {
  EXPECT_EQ(cachalot_start_load_layer(nullptr, 0), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_start_store_layer(nullptr, 0), CACHALOT_INVALID_ARGUMENT);
}

}  // namespace
