// Caches on a fake GPU through the public client: bytes, streams, events, rejected calls.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "testing/client/test_gpu.h"
#include "testing/kv/reference.h"

namespace cachalot::client {
namespace {

using kv::CudaDevice;

// Tensors of random bytes in a layout, in this process and on the GPU.
TEST_P(GpuCacheTest, EveryLayoutIsStoredByTheGpuAndLoadedByTheCpuAndBack) {
  constexpr std::uint32_t kPages = 6;
  int layouts = 0;
  for (const kv::Layout& layout : kv::layouts()) {
    if (layout.refusal != nullptr || layout.grouped.order == nullptr) continue;
    SCOPED_TRACE(layout.name);
    ClientOptions with = options();
    with.salt = layout.name;
    with.share_tp = layouts % 2 == 0 ? 0 : 2;  // every second one in head groups
    Client gpu = machine_.attach(with), cpu = machine_.attach(with);
    const kv::CacheShape shape{with.geometry, 4, kPages, 0};
    kv::reference::Cache wanted(shape, layout.grouped, 5), empty(shape, layout.grouped, 6);
    PagedCache here{.layout = layout.name, .pages = kPages}, there = here;
    there.cuda_device = 0;
    std::uint64_t bytes = 0;
    for (const kv::Tensor& tensor : empty.views())
      here.tensors.push_back({tensor.at, tensor.bytes});
    for (const kv::Tensor& tensor : wanted.views()) {
      std::byte* const at = machine_.allocate(tensor.bytes);
      std::memcpy(at, tensor.at, tensor.bytes);
      there.tensors.push_back({at, tensor.bytes});
      bytes += tensor.bytes;
    }
    ASSERT_EQ(bytes, kPages * with.geometry.block_bytes());  // so every byte is copied
    const auto equal = [&](const PagedCache& a, const PagedCache& b) {
      for (std::size_t i = 0; i < a.tensors.size(); ++i) {
        if (std::memcmp(a.tensors[i].data, b.tensors[i].data, a.tensors[i].bytes) != 0)
          return false;
      }
      return true;
    };
    ASSERT_FALSE(equal(here, there));
    const Result<CacheId> on_cpu = cpu.register_cache(here), on_gpu = gpu.register_cache(there);
    ASSERT_TRUE(on_cpu) << on_cpu.error().message;
    ASSERT_TRUE(on_gpu) << on_gpu.error().message;
    const auto hashes = gpu.hash_tokens(tokens_of(1, kPages * 4));
    const auto pages = pages_from(0, kPages);
    const Result<Stored> stored = gpu.store(*on_gpu, nullptr, hashes, pages);
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_EQ(stored->written, kPages);
    EXPECT_EQ(*cpu.load(*on_cpu, hashes, pages), kPages);
    EXPECT_TRUE(equal(here, there));
    // The other direction, with other pages.
    const auto others = gpu.hash_tokens(tokens_of(2, kPages * 4));
    const std::vector<PageId> shuffled = {3, 1, 5, 0, 2, 4};
    EXPECT_EQ(cpu.store(*on_cpu, nullptr, others, shuffled)->written, kPages);
    for (const Buffer& tensor : there.tensors) std::memset(tensor.data, 0, tensor.bytes);
    EXPECT_EQ(*gpu.load(*on_gpu, others, shuffled), kPages);
    EXPECT_TRUE(equal(here, there));
    EXPECT_EQ(gpu.statistics().damaged_blocks + cpu.statistics().damaged_blocks, 0u);
    EXPECT_TRUE(gpu.detach());
    EXPECT_TRUE(cpu.detach());
    for (const Buffer& tensor : there.tensors) machine_.free(static_cast<std::byte*>(tensor.data));
    ++layouts;
  }
  EXPECT_GT(layouts, 5);
}

TEST_P(GpuCacheTest, SomeTokensAndSomeLayersAreLoadedAsFromMemory) {
  GpuEngine engine(machine_, options());
  Engine plain(options());
  const auto hashes = engine.store(1, 2);
  const TokenRange some[] = {{1, 2}, {3, 4}};
  const std::vector<std::span<const TokenRange>> tokens = {some, {}};
  CopyOptions middle;
  middle.first_layer = 1;
  middle.layers = 1;
  engine.clear();
  EXPECT_EQ(*engine.client.load_tokens(engine.cache, hashes, pages_from(4, 2), tokens, middle), 2u);
  EXPECT_EQ(*plain.client.load_tokens(plain.cache, hashes, pages_from(4, 2), tokens, middle), 2u);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(
        std::memcmp(engine.tensors[layer], plain.memory[layer].data(), plain.memory[layer].size()),
        0)
        << layer;
  }
  EXPECT_TRUE(engine.holds(hashes[1], 5, 1));
  EXPECT_FALSE(engine.holds(hashes[0], 4, 1));
}

TEST_P(GpuCacheTest, TokensOfEachLayerAndHeadAreLoadedAsFromMemory) {
  GpuEngine engine(machine_, options());
  Engine plain(options());
  const auto hashes = engine.store(1, 2);
  const std::vector<std::vector<std::uint32_t>> lists = {
      {0, 7}, {1, 2, 3}, {}, {4}, {4, 5}, {0, 1, 2, 3, 4, 5, 6, 7}};
  const std::vector<std::span<const std::uint32_t>> tokens(lists.begin(), lists.end());
  engine.clear();
  for (const auto& [place, pages] : {std::pair(TokenPlace::kOwn, pages_from(4, 2)),
                                     std::pair(TokenPlace::kPacked, pages_from(0, 2))}) {
    EXPECT_EQ(*engine.client.load_head_tokens(engine.cache, hashes, pages, tokens, place), 2u);
    EXPECT_EQ(*plain.client.load_head_tokens(plain.cache, hashes, pages, tokens, place), 2u);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(std::memcmp(engine.tensors[layer], plain.memory[layer].data(),
                            plain.memory[layer].size()),
                0)
          << layer;
    }
  }
  // Keys and values of 16 tokens: 64 bytes each.
  const Statistics before = engine.client.statistics();
  EXPECT_EQ(*engine.client.load_head_tokens(engine.cache, hashes, pages_from(4, 2), tokens), 2u);
  EXPECT_EQ(engine.client.statistics().gpu_threads_bytes - before.gpu_threads_bytes, 16u * 2 * 64);
  EXPECT_EQ(*engine.client.load_head_tokens(engine.cache, hashes, pages_from(4, 2),
                                            std::vector<std::span<const std::uint32_t>>(6)),
            2u);
}

// By hand: two blocks out, one of them back, and the driver is in none of it, for its fragments are small.
TEST_P(GpuCacheTest, ItsBytesAreCountedByTheWayThatTheyWent) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
  EXPECT_EQ(engine.client.store(engine.cache, nullptr, hashes, pages_from(0, 2))->written, 2u);
  EXPECT_EQ(*engine.client.load(engine.cache, std::span(hashes).first(1), pages_from(4, 1)), 1u);
  const Statistics now = engine.client.statistics();
  EXPECT_EQ(now.gpu_threads_bytes + now.gpu_bulk_bytes, 3 * engine.client.geometry().block_bytes());
  EXPECT_EQ(now.copied_bytes, 3 * engine.client.block_bytes());
  EXPECT_EQ(now.gpu_batch_bytes + now.gpu_copy_engine_bytes, 0u);
  EXPECT_EQ(Engine(options()).client.statistics().gpu_threads_bytes, 0u);
}

// --- Streams and events

TEST_P(GpuCacheTest, ACallComesBehindWhatItsStreamHas) {
  GpuEngine engine(machine_, options());
  Engine reader(options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 3 * 4));
  const gpu::Stream another = machine_.make_stream();
  CopyOptions on_another;
  on_another.cuda_stream = another;
  const auto store = [&](std::size_t i, const CopyOptions& copy) {
    const PageId page = 2;
    return engine.client.store(engine.cache, i == 0 ? nullptr : &hashes[i - 1], {&hashes[i], 1},
                               {&page, 1}, copy);
  };
  engine.compute_on(engine.stream, hashes[0], 2);
  EXPECT_FALSE(engine.holds(hashes[0], 2));  // the stream was not waited for
  EXPECT_EQ(store(0, {})->written, 1u);
  engine.compute_on(another, hashes[1], 2);
  EXPECT_EQ(store(1, on_another)->written, 1u);
  EXPECT_EQ(*reader.client.load(reader.cache, std::span(hashes).first(2), pages_from(0, 2)), 2u);
  EXPECT_TRUE(reader.holds(hashes[0], 0));
  EXPECT_TRUE(reader.holds(hashes[1], 1));
  EXPECT_TRUE(engine.client.detach());
  machine_.enter();
  machine_.driver.stream_destroy(another);
}

// The worker copies later on its own stream, but after the work that was on the caller's stream at the call.
TEST_P(GpuCacheTest, ACallThatGoesOnByItselfComesBehindWhatTheStreamHadThen) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 4));
  const PageId page = 3;
  engine.compute_on(engine.stream, hashes[0], page);
  const Result<Token> storing =
      engine.client.store_async(engine.cache, nullptr, hashes, {&page, 1});
  ASSERT_TRUE(storing) << storing.error().message;
  Result<Completion> done = engine.client.wait(*storing);
  ASSERT_TRUE(done && done->status) << done->status.error().message;
  EXPECT_EQ(done->blocks, 1u);
  Engine reader(options());
  EXPECT_EQ(*reader.client.load(reader.cache, hashes, {&page, 1}), 1u);
  EXPECT_TRUE(reader.holds(hashes[0], page));
  // A load writes the page only after earlier work on the stream has read it.
  const BlockHash old{77, 7};
  engine.compute(old, page);
  machine_.enter();
  engine.copy(engine.stage, engine.tensors[1] + page * engine.page_bytes, engine.stream);
  const Result<Token> loading = engine.client.load_async(engine.cache, hashes, {&page, 1});
  ASSERT_TRUE(loading) << loading.error().message;
  done = engine.client.wait(*loading);
  ASSERT_TRUE(done && done->status) << done->status.error().message;
  EXPECT_EQ(done->blocks, 1u);
  EXPECT_TRUE(engine.holds(hashes[0], page));
  machine_.finish(engine.stream);
  EXPECT_EQ(std::memcmp(engine.stage, engine.computed(old, 1).data(), engine.page_bytes), 0);
}

TEST_P(GpuCacheTest, CallsThatGoOnByThemselvesUseTheirStreamsAgain) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 4);
  const int before = machine_.fake.streams;
  for (int round = 0; round < 5; ++round) {
    engine.clear();
    const Result<Token> token = engine.client.load_async(engine.cache, hashes, pages_from(0, 4));
    ASSERT_TRUE(token);
    EXPECT_EQ(engine.client.wait(*token)->blocks, 4u);
    EXPECT_TRUE(engine.holds(hashes[3], 3));
  }
  EXPECT_EQ(machine_.fake.streams, before + 1);  // one worker has one stream
  EXPECT_EQ(machine_.fake.last_priority, gpu::FakeMachine::kGreatestPriority);
}

// Polling would take the driver's lock, which the engine's launches wait for.
TEST_P(GpuCacheTest, AWorkerSleepsUntilItsCopyIsDone) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 4);
  const auto others = engine.client.hash_tokens(tokens_of(2, 4 * 4));
  machine_.fake.failing["event_query"] = 719;
  const Result<Token> loading = engine.client.load_async(engine.cache, hashes, pages_from(0, 4));
  EXPECT_EQ(engine.client.wait(*loading)->blocks, 4u);
  const Result<Token> storing =
      engine.client.store_async(engine.cache, nullptr, others, pages_from(0, 4));
  EXPECT_EQ(engine.client.wait(*storing)->blocks, 4u);
  machine_.fake.failing.clear();
}

// Each copy is waited for, and a thread wakes late.
TEST_P(GpuCacheTest, ALoadOfManyBlocksIsOneCopy) {
  constexpr std::size_t kBlocks = 40;
  GpuEngine engine(machine_, options(), kBlocks);
  const auto hashes = engine.store(1, kBlocks);
  engine.clear();
  const std::size_t before = machine_.fake.launches_and_batches();
  const Result<Token> loading =
      engine.client.load_async(engine.cache, hashes, pages_from(0, kBlocks));
  EXPECT_EQ(engine.client.wait(*loading)->blocks, kBlocks);
  EXPECT_EQ(machine_.fake.launches_and_batches() - before, 1u);
  for (std::size_t i = 0; i < kBlocks; ++i)
    EXPECT_TRUE(engine.holds(hashes[i], static_cast<PageId>(i))) << i;
}

// A wait that is left on a library stream would delay the next call that borrows it.
TEST_P(GpuCacheTest, ACallThatGoesOnByItselfAndCopiesNothingDelaysNobody) {
  static int (*create)(gpu::Stream*, unsigned, int) = nullptr;
  static gpu::Stream ours = nullptr;
  static int (*wait)(gpu::Stream, gpu::Event, unsigned) = nullptr;
  static int queued = 0;  // waits for events of other streams
  static int (*make_event)(gpu::Event*, unsigned) = nullptr;
  static std::atomic<int> events_left;
  gpu::Driver driver = machine_.driver;
  create = driver.stream_create_with_priority;
  driver.stream_create_with_priority = [](gpu::Stream* stream, unsigned flags, int priority) {
    const int result = create(stream, flags, priority);
    ours = *stream;
    return result;
  };
  wait = driver.stream_wait_event;
  queued = 0;
  driver.stream_wait_event = [](gpu::Stream stream, gpu::Event event, unsigned flags) {
    ++queued;
    return wait(stream, event, flags);
  };
  make_event = driver.event_create;
  events_left = 1 << 30;
  driver.event_create = [](gpu::Event* event, unsigned flags) {
    return events_left-- > 0 ? make_event(event, flags) : gpu::kOutOfMemory;
  };
  Result<Client> client = attach(options(), [&](int ordinal) {
    return kv::CudaDevice::open(driver, kv::kFakeImage, ordinal);
  });
  ASSERT_TRUE(client);
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 2);
  Result<CacheId> cache = client->register_cache(engine.description());
  ASSERT_TRUE(cache);
  const gpu::Stream late = machine_.make_stream();
  const auto busy = reinterpret_cast<std::uint64_t>(late);
  CopyOptions behind_it;
  behind_it.cuda_stream = late;
  const auto load = [&](std::span<const BlockHash> blocks, const CopyOptions& copy = {}) {
    const Result<Token> token =
        client->load_async(*cache, blocks, pages_from(0, blocks.size()), copy);
    EXPECT_TRUE(token) << token.error().message;
    return *token;
  };
  const auto expect_nobody_waits = [&](const char* what) {
    EXPECT_EQ(client->wait(load(hashes))->blocks, 2u);
    EXPECT_FALSE(machine_.fake.is_idle(busy)) << what;
    machine_.fake.finish(busy);
    machine_.fake.begin(busy);
  };
  EXPECT_EQ(client->wait(load(hashes))->blocks, 2u);
  machine_.fake.begin(busy);
  // The only worker waits for a copy while the next call is cancelled.
  std::promise<void> is_waiting, may_go_on;
  std::atomic<bool> has_waited = false;
  machine_.fake.on_wait = [&] {
    if (has_waited.exchange(true)) return;
    is_waiting.set_value();
    may_go_on.get_future().wait();
  };
  machine_.fake.begin(reinterpret_cast<std::uint64_t>(ours));
  const Token first = load(hashes);
  is_waiting.get_future().wait();
  const Token cancelled = load(hashes, behind_it);
  EXPECT_TRUE(client->cancel(cancelled));
  may_go_on.set_value();
  EXPECT_EQ(client->wait(first)->blocks, 2u);
  EXPECT_EQ(client->wait(cancelled)->status.error().code, Code::kCancelled);
  expect_nobody_waits("a cancelled call");
  EXPECT_EQ(client->wait(load(std::vector<BlockHash>{{6, 6}}, behind_it))->blocks, 0u);
  expect_nobody_waits("a call that found nothing");
  // The copy fails before it puts work on the stream.
  const CacheId used = std::exchange(*cache, *client->register_cache(engine.description()));
  events_left = 1;  // for the mark in the stream, none for the copy
  EXPECT_EQ(client->wait(load(hashes, behind_it))->status.error().code, Code::kNoSpace);
  events_left = 1 << 30;
  *cache = used;
  expect_nobody_waits("a call whose copy was refused");
  const Result<Token> store =
      client->store_async(*cache, nullptr, hashes, pages_from(0, 2), behind_it);
  ASSERT_TRUE(store);
  EXPECT_EQ(client->wait(*store)->blocks, 2u);
  expect_nobody_waits("a store of what is there");
  EXPECT_EQ(queued, 2 + 4 + 1) << "those that copied, and the one that was refused";
  EXPECT_TRUE(client->detach());
  machine_.fake.on_wait = nullptr;
  machine_.enter();
  machine_.driver.stream_destroy(late);
}

TEST_P(GpuCacheTest, LayersAreLaunchedAndWaitedForWhenTheyAreAskedFor) {
  GpuEngine engine(machine_, options());
  Engine reader(options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
  Result<Client::LayerStore> store =
      engine.client.begin_store(engine.cache, nullptr, hashes, pages_from(0, 2));
  ASSERT_TRUE(store) << store.error().message;
  // As in a forward pass: one stream computes and stores each layer, and no thread waits.
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    machine_.enter();
    for (std::uint32_t i = 0; i < 2; ++i) {
      std::memcpy(engine.stage + i * engine.page_bytes, engine.computed(hashes[i], layer).data(),
                  engine.page_bytes);
      engine.copy(engine.tensors[layer] + i * engine.page_bytes,
                  engine.stage + i * engine.page_bytes, engine.stream);
    }
    ASSERT_TRUE(store->start_layer(layer));
    ASSERT_FALSE(engine.holds(hashes[0], 0, layer));
    if (layer == 0) {  // waiting before the end is allowed
      ASSERT_TRUE(store->store_layer(0));
    }
    if (layer == 1) machine_.finish(engine.stream);  // the stage is reused
  }
  const Status twice = store->start_layer(2);
  EXPECT_EQ(twice.error().code, Code::kInvalidArgument);
  EXPECT_EQ(*reader.client.lookup(hashes), 0u);
  const Result<Stored> stored = store->finish();
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->written, 2u);
  EXPECT_EQ(*reader.client.load(reader.cache, hashes, pages_from(0, 2)), 2u);
  EXPECT_TRUE(reader.holds(hashes[0], 0));
  EXPECT_TRUE(reader.holds(hashes[1], 1));

  engine.clear();
  Result<Client::LayerLoad> load = engine.client.begin_load(engine.cache, hashes, pages_from(5, 2));
  ASSERT_TRUE(load) << load.error().message;
  const std::size_t launches = machine_.fake.launches_and_batches();
  for (std::uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(load->start_layer(layer));
  EXPECT_EQ(machine_.fake.launches_and_batches(), launches + 3);
  EXPECT_EQ(load->start_layer(1).error().code, Code::kInvalidArgument);
  EXPECT_FALSE(engine.holds(hashes[0], 5, 0));
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    const Result<std::size_t> right = load->load_layer(layer);
    ASSERT_TRUE(right) << right.error().message;
    EXPECT_EQ(*right, 2u);
    EXPECT_TRUE(engine.holds(hashes[1], 6, layer));
    EXPECT_EQ(machine_.fake.launches_and_batches(), launches + 3) << "copied twice";
  }
  EXPECT_EQ(load->start_layer(0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(engine.client.statistics().damaged_blocks, 0u);
  EXPECT_TRUE(engine.client.unregister_cache(engine.cache));
}

// Validation comes after the event: blocks evicted during the copies do not count, and useless started copies
// have ended before the cache's memory is used for something else.
TEST_P(GpuCacheTest, ALayerOfSeveralHeadGroupsIsALaunchForEach) {
  ClientOptions with = options();
  with.share_tp = 2;
  GpuEngine engine(machine_, with);
  Engine reader(with);
  const auto hashes = engine.store(1, 2);
  EXPECT_EQ(*reader.client.load(reader.cache, hashes, pages_from(0, 2)), 2u);
  EXPECT_TRUE(reader.holds(hashes[1], 1));
  engine.clear();
  Result<Client::LayerLoad> load = engine.client.begin_load(engine.cache, hashes, pages_from(5, 2));
  ASSERT_TRUE(load) << load.error().message;
  const std::size_t launches = machine_.fake.launches_and_batches();
  for (std::uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(load->start_layer(layer));
  EXPECT_EQ(machine_.fake.launches_and_batches(), launches + 6);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(*load->load_layer(layer), 2u);
    EXPECT_TRUE(engine.holds(hashes[1], 6, layer));
  }
  // And back, under other names.
  const auto others = engine.client.hash_tokens(tokens_of(2, 2 * 4));
  Result<Client::LayerStore> store =
      engine.client.begin_store(engine.cache, nullptr, others, pages_from(5, 2));
  ASSERT_TRUE(store) << store.error().message;
  for (std::uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(store->start_layer(layer));
  EXPECT_EQ(store->finish()->written, 2u);
  EXPECT_EQ(*reader.client.load(reader.cache, others, pages_from(2, 2)), 2u);
  EXPECT_TRUE(reader.holds(hashes[1], 3));
  EXPECT_EQ(engine.client.statistics().damaged_blocks, 0u);
}

TEST_P(GpuCacheTest, ALayerThatIsRefusedInOneHeadGroupIsRightTheNextTime) {
  ClientOptions with = options();
  with.share_tp = 2;
  with.checksums = true;
  GpuEngine engine(machine_, with);
  const auto refuse_second_group = [&](const auto& call) {
    machine_.fake.failing["launch"] = gpu::kOutOfMemory;
    machine_.fake.passing["launch"] = 1;
    const auto result = call();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::kNoSpace);
    machine_.fake.failing.clear();
  };
  std::uint64_t prompt = 0;
  for (const bool starts : {true, false}) {
    SCOPED_TRACE(starts);
    const auto hashes = engine.client.hash_tokens(tokens_of(++prompt, 2 * 4));
    for (PageId i = 0; i < 2; ++i) engine.compute(hashes[i], i);
    Result<Client::LayerStore> store =
        engine.client.begin_store(engine.cache, nullptr, hashes, pages_from(0, 2));
    ASSERT_TRUE(store);
    refuse_second_group([&] { return starts ? store->start_layer(0) : store->store_layer(0); });
    for (std::uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(store->store_layer(layer));
    ASSERT_EQ(store->finish()->written, 2u);
    engine.clear();
    EXPECT_EQ(*engine.client.load(engine.cache, hashes, pages_from(0, 2)), 2u);
    EXPECT_TRUE(engine.holds(hashes[0], 0) && engine.holds(hashes[1], 1));

    const auto others = engine.store(++prompt, 2);
    engine.clear();
    Result<Client::LayerLoad> load =
        engine.client.begin_load(engine.cache, others, pages_from(0, 2));
    ASSERT_TRUE(load);
    if (starts) {
      refuse_second_group([&] { return load->start_layer(0); });
    } else {
      refuse_second_group([&] { return load->load_layer(0); });
    }
    for (std::uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(*load->load_layer(layer), 2u);
    EXPECT_TRUE(engine.holds(others[0], 0) && engine.holds(others[1], 1));
  }
  EXPECT_EQ(engine.client.statistics().damaged_blocks, 0u);
}

TEST_P(GpuCacheTest, BlocksThatGoWhileLayersAreUnderWayDoNotCount) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.store(1, 2);
  Result<Client::LayerLoad> load = engine.client.begin_load(engine.cache, hashes, pages_from(5, 2));
  ASSERT_TRUE(load);
  for (const std::uint32_t layer : {2u, 0u, 1u}) ASSERT_TRUE(load->start_layer(layer));
  ASSERT_EQ(load->blocks(), 2u);
  Engine other(options(), "vllm_bknhc", 64);
  const auto many = other.client.hash_tokens(tokens_of(2, 64 * 4));
  ASSERT_EQ(other.client.store(other.cache, nullptr, many, pages_from(0, 64))->blocks, 64u);
  EXPECT_EQ(*load->load_layer(2), 0u);
  EXPECT_EQ(engine.client.statistics().stale_blocks, 2u);
  EXPECT_TRUE(engine.client.unregister_cache(engine.cache));
  std::memset(engine.tensors[1], 0x11, engine.page_bytes * 16);
  machine_.enter();
  machine_.finish(engine.stream);
  EXPECT_EQ(engine.tensors[1][5 * engine.page_bytes], std::byte{0x11});
  EXPECT_TRUE(load->start_layer(0));  // no block is left to copy
}

// For engines that cannot discard results.
TEST_P(GpuCacheTest, APinnedLoadIsRightWhateverIsEvictedMeanwhile) {
  ClientOptions pins = options();
  pins.pinned_reads = true;
  GpuEngine engine(machine_, pins);
  Engine other(options(), "vllm_bknhc", 64);
  const auto churn = [&](std::uint64_t prompt) {
    const auto hashes = other.client.hash_tokens(tokens_of(prompt, 64 * 4));
    for (PageId i = 0; i < 64; ++i) other.compute(hashes[i], i);
    const Result<Stored> stored =
        other.client.store(other.cache, nullptr, hashes, pages_from(0, 64));
    return stored ? stored->blocks : 0;
  };
  const auto hashes = engine.store(1, 2);
  engine.clear();
  LayerOptions pinned;
  pinned.pinned = true;
  {
    Result<Client::LayerLoad> load =
        engine.client.begin_load(engine.cache, hashes, pages_from(5, 2), pinned);
    ASSERT_TRUE(load) << load.error().message;
    for (std::uint64_t prompt = 10; prompt < 16; ++prompt) (void)churn(prompt);
    EXPECT_EQ(*engine.client.lookup(hashes), 0u);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(load->start_layer(layer));
      EXPECT_EQ(*load->load_layer(layer), 2u);
    }
    EXPECT_TRUE(engine.holds(hashes[0], 5) && engine.holds(hashes[1], 6));
    EXPECT_EQ(engine.client.statistics().stale_blocks, 0u);
    // The load is complete, so its pin has ended.
    EXPECT_EQ(churn(20), 64u);
    EXPECT_EQ(*load->load_layer(0), 0u);
  }
  const auto more = engine.store(2, 2);
  EXPECT_TRUE(engine.client.begin_load(engine.cache, more, pages_from(0, 2),
                                       pinned));  // destroyed immediately
  for (std::uint64_t prompt = 30; prompt < 33; ++prompt) EXPECT_EQ(churn(prompt), 64u);
  const Error error = other.client.begin_load(other.cache, more, pages_from(0, 2), pinned).error();
  EXPECT_EQ(error.code, Code::kUnsupported);
}

TEST_P(GpuCacheTest, ChecksumsOfLayersAreVerifiedInEveryOrder) {
  ClientOptions checked = options();
  checked.checksums = true;
  GpuEngine engine(machine_, checked);
  std::uint64_t prompt = 0;
  for (const std::vector<std::uint32_t>& layers :
       {std::vector<std::uint32_t>{0, 1, 2}, {2, 0, 1}, {0, 2, 1}}) {
    for (const bool starts : {true, false}) {
      auto hashes = engine.client.hash_tokens(tokens_of(++prompt, 2 * 4));
      for (PageId i = 0; i < 2; ++i) engine.compute(hashes[i], i);
      Result<Client::LayerStore> store =
          engine.client.begin_store(engine.cache, nullptr, hashes, pages_from(0, 2));
      ASSERT_TRUE(store);
      for (const std::uint32_t layer : {1u, 0u, 2u}) {
        if (starts) {
          ASSERT_TRUE(store->start_layer(layer));
        }
      }
      for (const std::uint32_t layer : layers) ASSERT_TRUE(store->store_layer(layer));
      ASSERT_EQ(store->finish()->written, 2u);
      engine.clear();
      ASSERT_EQ(*engine.client.load(engine.cache, hashes, pages_from(0, 2)), 2u);
      EXPECT_TRUE(engine.holds(hashes[0], 0) && engine.holds(hashes[1], 1));
      hashes = engine.store(++prompt, 2);
      engine.clear();
      Result<Client::LayerLoad> load =
          engine.client.begin_load(engine.cache, hashes, pages_from(0, 2));
      for (const std::uint32_t layer : {1u, 0u, 2u}) {
        if (starts) {
          ASSERT_TRUE(load->start_layer(layer));
        }
      }
      for (const std::uint32_t layer : layers) ASSERT_EQ(*load->load_layer(layer), 2u);
      EXPECT_TRUE(engine.holds(hashes[0], 0) && engine.holds(hashes[1], 1));
    }
  }
  EXPECT_EQ(engine.client.statistics().damaged_blocks, 0u);
}

TEST_P(GpuCacheTest, WhatWasStartedAndDroppedIsOverBeforeTheBlocksAreAnothers) {
  GpuEngine engine(machine_, options());
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 2 * 4));
  const std::uint64_t launched = machine_.fake.launches_and_batches();
  {
    Result<Client::LayerStore> store =
        engine.client.begin_store(engine.cache, nullptr, hashes, pages_from(0, 2));
    ASSERT_TRUE(store);
    ASSERT_TRUE(store->start_layer(0));
    EXPECT_EQ(engine.client.unregister_cache(engine.cache).error().code, Code::kBusy);
  }
  EXPECT_EQ(machine_.fake.launches_and_batches(), launched + 1);
  // No work that could write into the blocks is left on the engine's stream.
  Engine other(options());
  const auto others = other.client.hash_tokens(tokens_of(2, 16 * 4));
  for (PageId i = 0; i < 16; ++i) other.compute(others[i], i);
  ASSERT_TRUE(engine.client.unregister_cache(engine.cache));
  ASSERT_TRUE(engine.client.detach());
  ASSERT_EQ(other.client.store(other.cache, nullptr, others, pages_from(0, 16))->written, 16u);
  machine_.enter();
  machine_.finish(engine.stream);
  other.clear();
  EXPECT_EQ(*other.client.load(other.cache, others, pages_from(0, 16)), 16u);
  for (PageId i = 0; i < 16; ++i) EXPECT_TRUE(other.holds(others[i], i));
}

INSTANTIATE_TEST_SUITE_P(Domains, GpuCacheTest, ::testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot::client
