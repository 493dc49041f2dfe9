// Caches on a GPU through the public client, on whatever GPU libcuda.so.1 has: a real one, if there is one,
// and in the program that is linked with it the emulated one, so that the test itself is tested.
#include <cachalot/client.h>
#include <cachalot/keeper.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gpu/driver.h"
#ifdef CACHALOT_FAKE_GPU
#include "fake_libcuda.h"
#include "testing/kv/fake_kernels.h"
#endif

namespace cachalot {
namespace {

constexpr std::uint32_t kPages = 24, kLayers = 4;

class ClientOnGpu : public testing::TestWithParam<const char*> {
 protected:
  ClientOnGpu() {
#ifdef CACHALOT_FAKE_GPU
    kv::add_kernels(fake_machine());
#endif
    geometry_.layers = kLayers;
    geometry_.kv_heads = 4;
    geometry_.head_dim = 64;
    geometry_.block_tokens = 16;
    tensor_bytes_ = kPages * geometry_.layer_bytes();
  }
  ~ClientOnGpu() override {
    client_.reset();
    keeper_.reset();
    for (const gpu::DevicePointer at : there_) driver_->memory_free(at);
    if (stage_ != nullptr) driver_->host_free(stage_);
    if (stream_ != nullptr) driver_->stream_destroy(stream_);
    if (is_open_) driver_->primary_context_release(0);
  }

  // False: there is no GPU, and why.
  bool open(std::string& why) {
    Result<gpu::Driver> driver = gpu::load_driver();
    if (!driver) {
      why = driver.error().message;
      return false;
    }
    driver_ = *driver;
    int device = 0;
    gpu::Context context = nullptr;
    if (driver_->init(0) != 0 || driver_->device_get(&device, 0) != 0) {
      why = "the driver has no device";
      return false;
    }
    EXPECT_EQ(driver_->primary_context_retain(&context, device), 0);
    EXPECT_EQ(driver_->context_set_current(context), 0);
    is_open_ = true;
    void* stage = nullptr;
    EXPECT_EQ(driver_->host_allocate(&stage, tensor_bytes_, gpu::kHostPortable), 0);
    stage_ = static_cast<std::byte*>(stage);
    EXPECT_EQ(driver_->stream_create(&stream_, gpu::kStreamNonBlocking), 0);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      there_.push_back(0);
      EXPECT_EQ(driver_->memory_allocate(&there_.back(), tensor_bytes_), 0);
      here_.emplace_back(tensor_bytes_);
    }
    return attach(why);
  }
  bool attach(std::string& why) {
    KeeperOptions serve;
    serve.pool = "/dev/shm/cachalot_client_gpu_test." + std::to_string(getpid());
    serve.block_bytes = geometry_.block_bytes();
    serve.capacity_blocks = 4 * kPages;
    serve.domain = GetParam();
    keeper_ = std::make_unique<EmbeddedKeeper>(*EmbeddedKeeper::start(serve));
    ClientOptions options;
    options.pool = {serve.pool};
    options.model = "m";
    options.geometry = geometry_;
    client_ = std::make_unique<Client>(*Client::attach(options));
    PagedCache cache{.layout = "vllm_kbnhc", .pages = kPages};
    for (auto& tensor : here_) cache.tensors.push_back({tensor.data(), tensor.size()});
    in_memory_ = *client_->register_cache(cache);
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      cache.tensors[i].data = reinterpret_cast<void*>(there_[i]);
    }
    cache.cuda_device = 0;
    cache.cuda_stream = stream_;
    const Result<CacheId> on_gpu = client_->register_cache(cache);
    if (!on_gpu) {
      why = on_gpu.error().message;
      EXPECT_EQ(on_gpu.error().code, Code::kUnsupported) << why;
      return false;
    }
    on_gpu_ = *on_gpu;
    return true;
  }
  // By way of the stage, and waited for.
  void put(std::uint32_t layer, const std::vector<std::byte>& bytes) {
    std::memcpy(stage_, bytes.data(), tensor_bytes_);
    copy(there_[layer], reinterpret_cast<gpu::DevicePointer>(stage_));
  }
  std::vector<std::byte> get(std::uint32_t layer) {
    copy(reinterpret_cast<gpu::DevicePointer>(stage_), there_[layer]);
    return {stage_, stage_ + tensor_bytes_};
  }
  void copy(gpu::DevicePointer to, gpu::DevicePointer from) {
    EXPECT_EQ(driver_->copy(to, from, tensor_bytes_, stream_), 0);
    EXPECT_EQ(driver_->stream_synchronize(stream_), 0);
  }
  std::vector<std::byte> random(std::uint64_t seed) const {
    base::Rng rng(seed);
    std::vector<std::byte> bytes(tensor_bytes_);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next());
    return bytes;
  }
  std::vector<BlockHash> hashes(std::uint32_t prompt) const {
    std::vector<std::uint32_t> tokens(kPages * 16);
    std::iota(tokens.begin(), tokens.end(), prompt * 100'000);
    return client_->hash_tokens(tokens);
  }
  // What is in memory is what these seeds say.
  void expect_here(std::uint64_t seed) {
    for (std::uint32_t i = 0; i < kLayers; ++i) EXPECT_TRUE(here_[i] == random(seed + i)) << i;
  }

  KvGeometry geometry_;
  std::uint64_t tensor_bytes_ = 0;
  std::optional<gpu::Driver> driver_;
  bool is_open_ = false;
  std::byte* stage_ = nullptr;
  gpu::Stream stream_ = nullptr;
  std::vector<gpu::DevicePointer> there_;
  std::vector<std::vector<std::byte>> here_;
  std::unique_ptr<EmbeddedKeeper> keeper_;
  std::unique_ptr<Client> client_;
  CacheId in_memory_{}, on_gpu_{};
};

TEST_P(ClientOnGpu, BlocksGoThereAndBack) {
  std::string why;
  if (!open(why)) GTEST_SKIP() << why;
  std::vector<PageId> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0u);
  for (std::uint32_t i = 0; i < kLayers; ++i) put(i, random(10 + i));
  ASSERT_EQ(client_->store(on_gpu_, nullptr, hashes(1), pages)->written, kPages);
  ASSERT_EQ(*client_->load(in_memory_, hashes(1), pages), kPages);
  expect_here(10);

  // Layer by layer, launched and not waited for.
  for (std::uint32_t i = 0; i < kLayers; ++i) put(i, random(20 + i));
  Result<Client::LayerStore> store = client_->begin_store(on_gpu_, nullptr, hashes(2), pages);
  ASSERT_TRUE(store) << store.error().message;
  for (std::uint32_t i = 0; i < kLayers; ++i) ASSERT_TRUE(store->start_layer(i));
  ASSERT_EQ(store->finish()->written, kPages);
  ASSERT_EQ(*client_->load(in_memory_, hashes(2), pages), kPages);
  expect_here(20);
  Result<Client::LayerLoad> load = client_->begin_load(on_gpu_, hashes(1), pages);
  ASSERT_TRUE(load) << load.error().message;
  for (std::uint32_t i = 0; i < kLayers; ++i) ASSERT_TRUE(load->start_layer(i));
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    ASSERT_EQ(*load->load_layer(i), kPages);
    EXPECT_TRUE(get(i) == random(10 + i)) << i;
  }

  // By other threads, behind work of the caller's stream.
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    std::memcpy(stage_, random(30 + i).data(), tensor_bytes_);
    EXPECT_EQ(driver_->copy(there_[i], reinterpret_cast<gpu::DevicePointer>(stage_), tensor_bytes_,
                            stream_),
              0);
    if (i + 1 == kLayers) break;  // the last one is still in flight
    EXPECT_EQ(driver_->stream_synchronize(stream_), 0);
  }
  Result<Token> token = client_->store_async(on_gpu_, nullptr, hashes(3), pages);
  ASSERT_TRUE(token) << token.error().message;
  EXPECT_EQ(client_->wait(*token)->blocks, kPages);
  ASSERT_EQ(*client_->load(in_memory_, hashes(3), pages), kPages);
  expect_here(30);
  token = client_->load_async(on_gpu_, hashes(2), pages);
  ASSERT_TRUE(token) << token.error().message;
  EXPECT_EQ(client_->wait(*token)->blocks, kPages);
  for (std::uint32_t i = 0; i < kLayers; ++i) EXPECT_TRUE(get(i) == random(20 + i)) << i;
  EXPECT_EQ(client_->statistics().damaged_blocks + client_->statistics().stale_blocks, 0u);
  EXPECT_TRUE(client_->detach());
}

INSTANTIATE_TEST_SUITE_P(Domains, ClientOnGpu, testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot
