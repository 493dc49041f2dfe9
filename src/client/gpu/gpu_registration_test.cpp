// Registration of the pool with GPUs: lifetimes, forked children, rejected caches.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "testing/client/test_gpu.h"

namespace cachalot::client {
namespace {

using kv::CudaDevice;
using GpuRegistrationTest = GpuCacheTest;

TEST_P(GpuRegistrationTest, EachGpuIsOpenedOnceAndThePoolIsRegisteredOnceWithIt) {
  {
    GpuEngine engine(machine_, options());
    EXPECT_EQ(machine_.fake.registrations(), 1u);
    EXPECT_EQ(machine_.fake.contexts, 1);
    const Result<CacheId> again = engine.client.register_cache(engine.description());
    ASSERT_TRUE(again);
    EXPECT_EQ(machine_.fake.registrations(), 1u);
    EXPECT_EQ(machine_.fake.modules, 1);
    ASSERT_TRUE(engine.client.unregister_cache(engine.cache));
    ASSERT_TRUE(engine.client.unregister_cache(*again));
    EXPECT_EQ(machine_.fake.registrations(), 1u);  // kept for the next cache
  }
  EXPECT_EQ(machine_.fake.registrations(), 0u);
  EXPECT_EQ(machine_.fake.contexts, 0);
}

// CUDA registers memory once per process, for all devices. Devices are destroyed in the order of their numbers.
TEST_P(GpuRegistrationTest, TheGpusOfAClientShareThePool) {
  for (const auto& [first, second] : {std::pair(0, 2), std::pair(2, 0)}) {
    SCOPED_TRACE(first);
    PagedCache from = machine_.cache_on(first, options().geometry, 4);
    PagedCache to = machine_.cache_on(second, options().geometry, 4);
    const auto bytes_of = [](const PagedCache& cache) {
      std::string all;
      for (const auto& tensor : cache.tensors) {
        all.append(static_cast<const char*>(tensor.data), tensor.bytes);
      }
      return all;
    };
    for (const auto& tensor : from.tensors) {
      std::memset(tensor.data, 'a' + first, tensor.bytes);
      std::memset(static_cast<std::byte*>(tensor.data) + tensor.bytes / 2, 'k', 1);
    }
    {
      Client client = machine_.attach(options());
      const Result<CacheId> source = client.register_cache(from),
                            target = client.register_cache(to);
      ASSERT_TRUE(source) << source.error().message;
      ASSERT_TRUE(target) << target.error().message;
      EXPECT_EQ(machine_.fake.registrations(), 1u);
      EXPECT_EQ(machine_.fake.contexts, 2);
      const auto hashes = client.hash_tokens(tokens_of(10u + static_cast<unsigned>(first), 4 * 4));
      ASSERT_EQ(client.store(*source, nullptr, hashes, pages_from(0, 4))->written, 4u);
      EXPECT_NE(bytes_of(from), bytes_of(to));
      EXPECT_EQ(*client.load(*target, hashes, pages_from(0, 4)), 4u);
      EXPECT_EQ(bytes_of(from), bytes_of(to));
    }
    EXPECT_EQ(machine_.fake.registrations(), 0u);
    EXPECT_EQ(machine_.fake.contexts, 0);
    machine_.free(from);
    machine_.free(to);
  }
}

// To page-lock a large pool takes minutes.
TEST_P(GpuRegistrationTest, StatisticsDoNotWaitForAGpuThatIsBeingOpened) {
  PagedCache cache = machine_.cache_on(0, options().geometry, 4);
  {
    std::optional<Client> client;
    std::thread asking;
    bool is_told = false;
    Result<Client> attached = client::attach(options(), [&](int ordinal) {
      std::promise<void> told;
      asking = std::thread([&] {
        (void)client->statistics();
        told.set_value();
      });
      is_told = told.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      return machine_.opener()(ordinal);
    });
    ASSERT_TRUE(attached);
    client.emplace(*std::move(attached));
    EXPECT_TRUE(client->register_cache(cache));
    EXPECT_TRUE(is_told);
    asking.join();
  }
  machine_.free(cache);
}

TEST_P(GpuRegistrationTest, ALayerLoadKeepsThePoolRegisteredAfterItsClient) {
  std::optional<Client::LayerLoad> load;
  GpuMachine& machine = machine_;
  std::byte* tensors[3] = {};
  for (std::byte*& tensor : tensors) tensor = machine.allocate(16 * 1024);
  {
    Client client = machine.attach(options());
    PagedCache cache{.layout = "vllm_bknhc", .pages = 16, .cuda_device = 0};
    for (std::byte* const tensor : tensors) cache.tensors.push_back({tensor, 16 * 1024});
    const CacheId id = *client.register_cache(cache);
    const auto hashes = client.hash_tokens(tokens_of(1, 4));
    const PageId page = 0;
    ASSERT_EQ(client.store(id, nullptr, hashes, {&page, 1})->written, 1u);
    Result<Client::LayerLoad> begun = client.begin_load(id, hashes, {&page, 1});
    ASSERT_TRUE(begun && begun->start_layer(0));
    load.emplace(*std::move(begun));
  }
  EXPECT_EQ(machine.fake.registrations(), 1u);
  EXPECT_EQ(load->load_layer(0).error().code, Code::kInvalidArgument);  // detached
  EXPECT_EQ(load->start_layer(1).error().code, Code::kInvalidArgument);
  load.reset();
  EXPECT_EQ(machine.fake.registrations(), 0u);
  for (std::byte* const tensor : tensors) machine.free(tensor);
}

TEST_P(GpuRegistrationTest, AnUnregisteredCacheIsWaitedFor) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 2);
  std::atomic<bool> is_unregistered = false, came_first = false;
  std::thread unregisters;
  const auto stream = reinterpret_cast<std::uint64_t>(engine.stream);
  machine_.fake.begin(stream);
  machine_.fake.on_wait = [&] {
    if (unregisters.joinable()) return;
    unregisters = std::thread([&] {
      EXPECT_TRUE(engine.client.unregister_cache(engine.cache));
      is_unregistered = true;
    });
    // Removed from the table, but still valid for this call.
    while (engine.client.load(engine.cache, {}, {})) std::this_thread::yield();
    came_first = is_unregistered.load();
    machine_.fake.finish(stream);
  };
  EXPECT_EQ(*engine.client.load(engine.cache, hashes, pages_from(0, 2)), 2u);
  ASSERT_TRUE(unregisters.joinable());
  unregisters.join();
  EXPECT_FALSE(came_first);
  machine_.fake.on_wait = nullptr;
}

TEST_P(GpuRegistrationTest, AForkedChildLeavesTheGpuAlone) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 2);
  auto load = std::make_unique<Client::LayerLoad>(
      *engine.client.begin_load(engine.cache, hashes, pages_from(0, 2)));
  auto store = std::make_unique<Client::LayerStore>(*engine.client.begin_store(
      engine.cache, &hashes[1], std::vector<BlockHash>{{5, 5}}, pages_from(3, 1)));
  ASSERT_TRUE(load->start_layer(0));
  ASSERT_TRUE(store->start_layer(0));
  const pid_t child = fork();
  if (child == 0) {
    load.reset();  // must not run the copies: the pool is not mapped here
    store.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(*load->load_layer(0), 2u);
}

// The load keeps the cache and the GPU after all other owners are gone.
TEST_P(GpuRegistrationTest, AForkedChildLeavesTheGpuAloneAlsoWhereTheClientWentBefore) {
  std::optional<Client::LayerLoad> load, other;
  std::optional<GpuEngine> engine(std::in_place, machine_, options());
  const auto hashes = engine->store(1, 2);
  load.emplace(*engine->client.begin_load(engine->cache, hashes, pages_from(0, 2)));
  other.emplace(*engine->client.begin_load(engine->cache, hashes, pages_from(4, 2)));
  ASSERT_TRUE(load->start_layer(0) && load->start_layer(1));
  EXPECT_EQ(*load->load_layer(1), 2u);  // its GPU resources were returned to the cache
  { const Client gone = std::move(engine->client); }
  const pid_t child = fork();
  if (child == 0) {
    const auto has = [&] {
      return std::tuple(machine_.fake.events(), machine_.fake.allocations(),
                        machine_.fake.registrations(), machine_.fake.contexts,
                        machine_.fake.streams, machine_.fake.waits);
    };
    const auto before = has();
    const bool is_refused = load->start_layer(2).error().code == Code::kUnsupported &&
                            load->load_layer(0).error().code == Code::kUnsupported;
    *other = std::move(*load);
    other.reset();
    _exit(is_refused && has() == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  load.reset();
  other.reset();
  EXPECT_EQ(machine_.fake.registrations(), 0u);
}

// --- Refusals

TEST_P(GpuRegistrationTest, MemoryThatIsNotTheDevicesIsRefusedByName) {
  GpuEngine engine(machine_, options());
  const auto refusal = [&](const PagedCache& cache) {
    const Result<CacheId> refused = engine.client.register_cache(cache);
    EXPECT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    return std::string(refused ? "" : refused.error().message);
  };
  std::vector<std::byte> host(engine.page_count * engine.page_bytes);
  PagedCache cache = engine.description();
  cache.tensors[1].data = host.data();
  EXPECT_NE(refusal(cache).find("tensor 1"), std::string::npos) << refusal(cache);
  EXPECT_NE(refusal(cache).find("nothing that CUDA knows"), std::string::npos) << refusal(cache);
  std::byte* const elsewhere = machine_.allocate(engine.page_count * engine.page_bytes, 1);
  cache.tensors[1].data = elsewhere;
  EXPECT_NE(refusal(cache).find("is on device 1, expected memory of device 0"), std::string::npos)
      << refusal(cache);
  machine_.free(elsewhere);
  // A tensor whose last byte does not exist.
  cache = engine.description();
  std::byte* const small = machine_.allocate(engine.page_count * engine.page_bytes - 1);
  cache.tensors[2].data = small;
  EXPECT_NE(refusal(cache).find("tensor 2"), std::string::npos) << refusal(cache);
  machine_.free(small);
  cache = engine.description();
  cache.cuda_device = 7;
  EXPECT_NE(refusal(cache).find("device 7"), std::string::npos) << refusal(cache);
  cache.cuda_device = -1;
  (void)refusal(cache);
}

TEST_P(GpuRegistrationTest, AStreamOfNoGpuAndOneThatIsCapturedAreRefused) {
  GpuEngine engine(machine_, options());
  Engine plain(options());
  const auto hashes = engine.store(1, 2);
  CopyOptions on_stream;
  on_stream.cuda_stream = engine.stream;
  EXPECT_EQ(plain.client.load(plain.cache, hashes, pages_from(0, 2), on_stream).error().code,
            Code::kInvalidArgument);
  PagedCache here{.layout = "vllm_bknhc", .pages = 16, .cuda_stream = engine.stream};
  for (auto& tensor : plain.memory) here.tensors.push_back({tensor.data(), tensor.size()});
  EXPECT_EQ(plain.client.register_cache(here).error().code, Code::kInvalidArgument);
  Result<Client::LayerStore> store = engine.client.begin_store(
      engine.cache, &hashes[1], std::vector<BlockHash>{{5, 5}}, pages_from(3, 1));
  ASSERT_TRUE(store);
  const std::uint64_t launches = machine_.fake.launches_and_batches();
  machine_.fake.set_capturing(reinterpret_cast<std::uint64_t>(engine.stream), true);
  const Error error = engine.client.load(engine.cache, hashes, pages_from(0, 2)).error();
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_NE(std::string(error.message).find("captured into a graph"), std::string::npos)
      << error.message;
  EXPECT_FALSE(engine.client.store_async(engine.cache, nullptr, hashes, pages_from(0, 2)));
  EXPECT_EQ(store->start_layer(0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(store->store_layer(0).error().code, Code::kInvalidArgument);
  on_stream.cuda_stream = nullptr;  // the legacy default stream waits for all others
  EXPECT_EQ(engine.client.load(engine.cache, hashes, pages_from(0, 2), on_stream).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(machine_.fake.launches_and_batches(), launches);
  EXPECT_EQ(machine_.fake.recorded_in_capture, 0u);
  machine_.fake.set_capturing(reinterpret_cast<std::uint64_t>(engine.stream), false);
  EXPECT_TRUE(store->store_layer(0));
}

TEST_P(GpuRegistrationTest, APoolThatCannotBeRegisteredIsRefusedAndTriedAgain) {
  GpuEngine engine(machine_, options());
  Client client = machine_.attach(options());
  machine_.fake.failing["host_register"] = gpu::kOutOfMemory;
  EXPECT_EQ(client.register_cache(engine.description()).error().code, Code::kNoSpace);
  EXPECT_EQ(machine_.fake.contexts, 1);
  machine_.fake.failing.clear();
  EXPECT_TRUE(client.register_cache(engine.description()));
}

TEST_P(GpuRegistrationTest, WithoutAGpuTheRegistrationSaysSo) {
  if (CudaDevice::open(0)) GTEST_SKIP() << "there is a GPU";
  Engine plain(options());
  PagedCache cache{.layout = "vllm_bknhc", .pages = 16, .cuda_device = 0};
  for (auto& tensor : plain.memory) cache.tensors.push_back({tensor.data(), tensor.size()});
  const Result<CacheId> refused = plain.client.register_cache(cache);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupported) << refused.error().message;
  EXPECT_NE(std::string(refused.error().message).find("cuda: "), std::string::npos)
      << refused.error().message;
  EXPECT_NE(std::string(refused.error().message).find("expected"), std::string::npos)
      << refused.error().message;
}

INSTANTIATE_TEST_SUITE_P(Domains, GpuRegistrationTest,
                         ::testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot::client
