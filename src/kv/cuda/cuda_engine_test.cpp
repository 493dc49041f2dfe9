// What a GPU's engine does around its copies, on a fake machine: order on streams, slots, errors, the
// host's caches, refusals. That the bytes are right: copy_engine_test.cpp, for all engines.
#include "kv/cuda/cuda_engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "testing/kv/fake_kernels.h"
#include "testing/kv/kernels_under_test.h"
#include "testing/kv/random_case.h"
#include "testing/kv/watched_domain.h"

namespace cachalot::kv {
namespace {

using memory::DomainKind;

// A stream other than the legacy one, until the test ends.
class OwnStream {
 public:
  explicit OwnStream(const CudaDevice& device) : device_(device) {
    const CudaDevice::Entered entered(device);
    EXPECT_TRUE(device.check(device.driver().stream_create(&stream_, 1), "a test"));
  }
  ~OwnStream() {
    const CudaDevice::Entered entered(device_);
    device_.driver().stream_destroy(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  gpu::Stream get() const { return stream_; }

 private:
  const CudaDevice& device_;
  gpu::Stream stream_ = nullptr;
};

// Qwen-like pages of 4 tokens in a fake GPU's memory, and a pool of 8 blocks of 8 tokens.
class CudaEngineOnFakeGpu : public testing::Test {
 protected:
  static constexpr std::uint64_t kBlockBytes = 2 * 2 * 8 * 2 * 64, kBlocks = 8;
  static constexpr std::uint32_t kPages = 20;

  CudaEngineOnFakeGpu() {
    add_kernels_under_test(machine_);
    device_ = *CudaDevice::open(machine_.driver(), kFakeImage, 0);
    pool_.resize(kBlocks * kBlockBytes / 64, memory::Line{{1, 2, 3, 4, 5, 6, 7, 8}});
    EXPECT_TRUE(device_->register_pool(block(0), kBlocks * kBlockBytes));
    cache_.emplace(cache_of(geometry(), "vllm_kbnhc"));
    EXPECT_EQ(cache_->geometry().block_bytes(), kBlockBytes);
  }
  ~CudaEngineOnFakeGpu() override {
    {
      const CudaDevice::Entered entered(*device_);
      for (const gpu::DevicePointer at : tensors_) device_->driver().memory_free(at);
    }
    device_.reset();
    EXPECT_EQ(machine_.faults, expected_faults_);
    EXPECT_EQ(machine_.refused, 0u);
    EXPECT_EQ(machine_.registrations(), 0u);
    EXPECT_EQ(machine_.modules + machine_.contexts, 0);
  }

  static KvGeometry geometry() {
    KvGeometry g;
    g.layers = 2;
    g.kv_heads = 2;
    g.head_dim = 32;
    g.block_tokens = 8;
    return g;
  }

  // A cache with tensors in the device's memory, of random bytes.
  EngineCache cache_of(const KvGeometry& g, const char* layout) {
    const CacheShape shape{g, 4, kPages, 0};
    reference::Cache like(shape, (*find_layout(layout))->form(g.attention), 3);
    std::vector<Tensor> there;
    const CudaDevice::Entered entered(*device_);
    for (const Tensor& tensor : like.views()) {
      gpu::DevicePointer at = 0;
      EXPECT_TRUE(device_->check(device_->driver().memory_allocate(&at, tensor.bytes), "a test"));
      std::memcpy(reinterpret_cast<void*>(at), tensor.at, tensor.bytes);  // the fake's address
      tensors_.push_back(at);
      there.push_back({reinterpret_cast<std::byte*>(at), tensor.bytes});
    }
    return *EngineCache::make(shape, layout, there);
  }

  std::unique_ptr<CudaEngine> engine(const CudaOptions& options = {}) {
    auto made = CudaEngine::make(*device_, *cache_, default_block_order(), domain_, options);
    EXPECT_TRUE(made) << made.error().message;
    return *std::move(made);
  }
  Error refusal(memory::Domain& domain, const CudaOptions& options) {
    const auto made = CudaEngine::make(*device_, *cache_, default_block_order(), domain, options);
    EXPECT_FALSE(made);
    return made ? Error() : made.error();
  }

  std::byte* block(std::uint64_t i) {
    return reinterpret_cast<std::byte*>(pool_.data()) + i * kBlockBytes;
  }
  // What a block of these pages must be.
  std::vector<std::byte> expected(const std::vector<std::uint32_t>& pages) const {
    const CopyPlan plan = *CopyPlan::compile(*cache_, default_block_order());
    std::vector<std::byte> out(kBlockBytes);
    for (std::uint32_t i = 0; i < plan.fragments(); ++i) {
      const Fragment piece = fragment(plan.arithmetic(), i);
      std::memcpy(out.data() + piece.pool_offset,
                  cache_->bases()[piece.tensor] + piece.engine_offset +
                      pages[piece.page] * piece.page_stride,
                  piece.bytes);
    }
    return out;
  }
  Status gather_block_1(CudaEngine& engine) {
    const std::uint32_t pages[] = {4, 9};
    const memory::Extent extent{block(1), kBlockBytes};
    const BlockCopy copy{{&extent, 1}, pages};
    return engine.gather({&copy, 1});
  }
  bool holds(std::uint64_t i, const std::vector<std::uint32_t>& pages) {
    return std::memcmp(block(i), expected(pages).data(), kBlockBytes) == 0;
  }

  gpu::FakeMachine machine_;
  WatchedDomain domain_{DomainKind::kNoncoherent};
  std::unique_ptr<CudaDevice> device_;
  std::vector<memory::Line> pool_;
  std::vector<gpu::DevicePointer> tensors_;
  std::optional<EngineCache> cache_;
  std::uint64_t expected_faults_ = 0;
};

TEST_F(CudaEngineOnFakeGpu, ACopyIsDoneWhenItsEventIsAndTakesWhatItWasGiven) {
  const auto engine = this->engine({.inline_table_bytes = 0});
  std::vector<std::uint32_t> pages = {7, 2};
  memory::Extent extent{block(3), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  Result<PendingCopy> pending = engine->start_gather({&copy, 1}, nullptr);
  ASSERT_TRUE(pending) << pending.error().message;
  // All of it may go before the GPU looks.
  pages = {0, 0};
  extent = {block(0), 64};
  EXPECT_FALSE(holds(3, {7, 2}));
  EXPECT_TRUE(domain_.flushed.empty());
  int asked = 0;
  for (;; ++asked) {
    const Result<bool> done = pending->is_done();
    ASSERT_TRUE(done);
    if (*done) break;
    ASSERT_LT(asked, 10);
  }
  EXPECT_GE(asked, 2);  // tables, kernel
  ASSERT_TRUE(pending->wait());
  EXPECT_TRUE(holds(3, {7, 2}));
  ASSERT_TRUE(pending->wait());
  EXPECT_EQ(domain_.flushed.size(), 1u);
}

TEST_F(CudaEngineOnFakeGpu, CopiesUnderWayShareNoSlotAndLaterOnesUseThemAgain) {
  const auto engine = this->engine({.way = Way::kThreads, .inline_table_bytes = 0});
  const std::uint64_t before = machine_.allocations();
  gpu::Stream streams[2] = {};
  {
    const CudaDevice::Entered entered(*device_);
    for (gpu::Stream& stream : streams) device_->driver().stream_create(&stream, 1);
  }
  std::uint64_t after_first = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<PendingCopy> pending;
    for (std::uint32_t i = 0; i < 6; ++i) {
      const std::uint32_t pages[] = {3 * i + round % 2, 3 * i + 2};
      const memory::Extent extent{block(i), kBlockBytes};
      const BlockCopy copy{{&extent, 1}, pages};
      pending.push_back(*engine->start_gather({&copy, 1}, streams[i % 2]));
    }
    for (PendingCopy& copy : pending) ASSERT_TRUE(copy.wait());
    for (std::uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(holds(i, {3 * i + round % 2, 3 * i + 2}));
    if (round == 0) after_first = machine_.allocations();
  }
  EXPECT_EQ(after_first, before + 12);  // page-locked and the device's, for each of six
  EXPECT_EQ(machine_.allocations(), after_first);
  const CudaDevice::Entered entered(*device_);
  for (gpu::Stream& stream : streams) device_->driver().stream_destroy(stream);
}

TEST_F(CudaEngineOnFakeGpu, ACopyThatIsDroppedIsWaitedFor) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {1, 5};
  const memory::Extent extent{block(2), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  { const Result<PendingCopy> dropped = engine->start_gather({&copy, 1}, nullptr); }
  EXPECT_TRUE(holds(2, {1, 5}));
  EXPECT_EQ(domain_.flushed.size(), 1u);
}

// --- the host's caches

TEST_F(CudaEngineOnFakeGpu, FlushesBeforeAScatterIsLaunchedAndAfterAGatherIsDone) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extents[] = {{block(1), kBlockBytes - 64}, {block(5), 4096}};
  const BlockCopy copy{extents, pages};
  std::size_t launches = 0;
  bool was_there = false;
  domain_.on_flush = [&] {
    launches = machine_.launches.size();
    was_there = std::memcmp(block(1), expected({4, 9}).data(), kBlockBytes - 64) == 0;
  };
  ASSERT_TRUE(engine->gather({&copy, 1}));
  EXPECT_EQ(launches, 1u);
  EXPECT_TRUE(was_there);
  EXPECT_EQ(domain_.flushed, std::vector<std::uint64_t>{kBlockBytes});
  EXPECT_EQ(domain_.orders, 1);
  ASSERT_TRUE(engine->scatter({&copy, 1}));
  EXPECT_EQ(launches, 1u) << "launched before the flush";
  EXPECT_EQ(machine_.launches.size(), 2u);
  EXPECT_EQ(domain_.flushed.size(), 2u);
  // Some of a block: its lines only. A token of a layer's keys is 128 bytes.
  const TokenRange tokens[] = {{2, 3}};
  BlockCopy sparse = copy;
  sparse.tokens = tokens;
  ASSERT_TRUE(engine->scatter({&sparse, 1}, {1, 2}));
  EXPECT_EQ(domain_.flushed.back(), 2 * 128u);
}

// Three rows of keys and as many of values, 64 bytes each; whatever the ways, the driver is in it only if it is wanted.
TEST_F(CudaEngineOnFakeGpu, CopiesChosenRowsByThreadsAndFlushesTheirLinesOnly) {
  const std::vector<std::vector<std::uint32_t>> lists = {{2}, {2, 7}, {}, {}};
  const std::vector<std::span<const std::uint32_t>> spans(lists.begin(), lists.end());
  const std::uint32_t pages[] = {4, 9};
  const RowPlan plan =
      *RowPlan::make(*cache_, default_block_order(), {spans, 2, 0, pages, TokenPlace::kOwn, 1});
  const memory::Extent extent{block(1), kBlockBytes};
  const RowBlock row_block{{&extent, 1}, 0};
  for (const Way way : {Way::kChoose, Way::kBulk, Way::kBatch, Way::kCopyEngine}) {
    const OwnStream stream(*device_);
    const auto engine = this->engine({.way = way, .stream = stream.get()});
    const WayBytes before = device_->way_bytes();
    ASSERT_TRUE(engine->scatter_rows(plan, {&row_block, 1}));
    const WayBytes now = device_->way_bytes();
    EXPECT_EQ(domain_.flushed.back(), 6 * 64u);
    EXPECT_EQ(now.bulk, before.bulk);
    const bool by_driver = way == Way::kBatch || way == Way::kCopyEngine;
    EXPECT_EQ(now.threads - before.threads, by_driver ? 0u : 6 * 64u);
    EXPECT_EQ(now.batch - before.batch, way == Way::kBatch ? 6 * 64u : 0u);
    EXPECT_EQ(now.copy_engine - before.copy_engine, way == Way::kCopyEngine ? 6 * 64u : 0u);
  }
  const auto unchecked = engine()->start_scatter_rows(plan, {&row_block, 1}, nullptr);
  ASSERT_FALSE(unchecked);
  EXPECT_NE(std::strstr(unchecked.error().message, "validated afterwards"), nullptr);
  std::vector<memory::Line> elsewhere(kBlockBytes / memory::kLineBytes);
  const memory::Extent unknown{reinterpret_cast<std::byte*>(elsewhere.data()), kBlockBytes};
  const RowBlock wrong{{&unknown, 1}, 0};
  for (const Way way : {Way::kChoose, Way::kCopyEngine}) {
    const Status refused = engine({.way = way})->scatter_rows(plan, {&wrong, 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
}

TEST_F(CudaEngineOnFakeGpu, FlushesNothingWhereThePoolBypassesTheCaches) {
  const auto engine = this->engine({.host_caches = HostCaches::kBypassed});
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  ASSERT_TRUE(engine->gather({&copy, 1}));
  ASSERT_TRUE(engine->scatter({&copy, 1}));
  EXPECT_TRUE(domain_.flushed.empty());
  EXPECT_TRUE(holds(1, {4, 9}));
}

TEST_F(CudaEngineOnFakeGpu, RefusesWhatNobodyMakesSafe) {
  const Error caches = refusal(domain_, {.host_caches = HostCaches::kIgnored});
  EXPECT_EQ(caches.code, Code::kUnsupported);
  EXPECT_NE(std::strstr(caches.message, "flushed or bypassed"), nullptr);
  WatchedDomain coherent(DomainKind::kCoherent), lossy(DomainKind::kLossy);
  WatchedDomain mixed(DomainKind::kMixed);
  EXPECT_EQ(refusal(mixed, {.host_caches = HostCaches::kIgnored}).code, Code::kUnsupported);
  EXPECT_TRUE(CudaEngine::make(*device_, *cache_, default_block_order(), coherent,
                               {.host_caches = HostCaches::kIgnored}));
  EXPECT_EQ(refusal(lossy, {}).code, Code::kUnsupported);
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  const auto unknown = engine();
  const Result<PendingCopy> refused = unknown->start_scatter({&copy, 1}, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_NE(std::strstr(refused.error().message, "validated afterwards or the read is pinned"),
            nullptr);
  EXPECT_TRUE(machine_.launches.empty());
  for (const ReadCheck check : {ReadCheck::kValidated, ReadCheck::kPinned}) {
    const auto known = engine({.started_reads = check});
    const Result<PendingCopy> started = known->start_scatter({&copy, 1}, nullptr);
    EXPECT_TRUE(started);
  }
}

TEST_F(CudaEngineOnFakeGpu, RefusesMemoryThatTheDeviceWasNotTold) {
  const auto engine = this->engine();
  std::vector<memory::Line> elsewhere(kBlockBytes / 64);
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent known{block(1), kBlockBytes};
  const memory::Extent unknown{reinterpret_cast<std::byte*>(elsewhere.data()), kBlockBytes};
  const BlockCopy blocks[] = {{{&known, 1}, pages}, {{&unknown, 1}, pages}};
  for (const Way way : {Way::kThreads, Way::kCopyEngine}) {
    const auto by = this->engine({.way = way});
    const Status status = by->gather(blocks);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::strstr(status.error().message, "registered with the device"), nullptr);
  }
  EXPECT_TRUE(machine_.launches.empty());
  EXPECT_EQ(machine_.copies, 0u);
  EXPECT_FALSE(device_->register_pool(block(2), 4096));
  EXPECT_EQ(device_->unregister_pool(block(2)).error().code, Code::kNotFound);
  ASSERT_TRUE(device_->unregister_pool(block(0)));
  EXPECT_FALSE(engine->gather({blocks, 1}));
}

// --- errors

TEST_F(CudaEngineOnFakeGpu, AFailureOfTheDriverIsAnErrorAndTheNextCallWorks) {
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  const std::pair<const char*, Code> cases[] = {{"host_allocate", Code::kNoSpace},
                                                {"memory_allocate", Code::kNoSpace},
                                                {"event_create", Code::kNoSpace},
                                                {"copy_to_device", Code::kNoSpace},
                                                {"launch", Code::kNoSpace},
                                                {"event_record", Code::kNoSpace},
                                                {"context_set_current", Code::kNoSpace}};
  for (const auto& [function, code] : cases) {
    SCOPED_TRACE(function);
    const std::uint64_t before = machine_.allocations();
    {
      const auto engine = this->engine({.inline_table_bytes = 0});
      // A thread that has no context yet, as most of an engine's have.
      std::thread([&, what = function, wanted = code] {
        machine_.failing[what] = gpu::kOutOfMemory;
        const Status status = engine->gather({&copy, 1});
        EXPECT_TRUE(!status && status.error().code == wanted);
        machine_.failing.clear();
        EXPECT_TRUE(engine->gather({&copy, 1}));
      }).join();
    }
    EXPECT_EQ(machine_.allocations(), before);
    EXPECT_EQ(machine_.events(), 0u);
    EXPECT_TRUE(holds(1, {4, 9}));
  }
}

TEST_F(CudaEngineOnFakeGpu, TablesThatFitGoWithTheLaunchAndOthersByACopy) {
  // 64 bytes a block: itself, its extent and that extent's end, two page ids. Besides, the block that ends the
  // row and the addresses of two tensors.
  const auto engine = this->engine();
  std::vector<std::uint32_t> pages = {4, 9};
  std::vector<memory::Extent> extents;
  for (std::uint32_t i = 0; i < kBlocks; ++i) extents.push_back({block(i), kBlockBytes});
  std::vector<BlockCopy> copies;
  machine_.failing["copy_to_device"] = gpu::kOutOfMemory;
  std::size_t fit = 0;
  for (std::size_t count = 1; count <= 200; ++count) {
    copies.push_back({{&extents[0], 1}, pages});
    if (engine->gather(copies)) fit = count;
  }
  EXPECT_EQ(fit, (kInlineTableBytes - 24 - 2 * 8) / 64);
  EXPECT_TRUE(holds(0, {4, 9}));
  machine_.failing.clear();
  copies[0] = {{&extents[1], 1}, pages};
  copies.back() = {{&extents[2], 1}, pages};
  EXPECT_TRUE(engine->gather(copies));
  EXPECT_TRUE(holds(1, {4, 9}) && holds(2, {4, 9}));
  EXPECT_EQ(refusal(domain_, {.inline_table_bytes = kInlineTableBytes + 1}).code,
            Code::kInvalidArgument);
}

// Nothing is known of the device then: what it may still read is left alone.
TEST_F(CudaEngineOnFakeGpu, ASlotIsNotUsedAgainAfterAFailedWait) {
  const auto engine = this->engine({.inline_table_bytes = 0});
  ASSERT_TRUE(gather_block_1(*engine));
  const std::uint64_t before = machine_.allocations();
  machine_.fail_waits(719);  // a launch failed
  const Status status = gather_block_1(*engine);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kIo);
  EXPECT_EQ(domain_.orders, 1) << "as if it had been copied";
  machine_.failing.clear();
  ASSERT_TRUE(gather_block_1(*engine));
  EXPECT_EQ(machine_.allocations(), before + 2);
}

// The driver may answer with what some earlier call did wrong: that says nothing of the copy.
TEST_F(CudaEngineOnFakeGpu, AFailedWaitIsAnIoErrorWhateverTheDriverSays) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  machine_.fail_waits(gpu::kOutOfMemory);
  EXPECT_EQ(engine->gather({&copy, 1}).error().code, Code::kIo);
  machine_.failing.clear();
  machine_.failing["event_record"] = machine_.failing["stream_synchronize"] = gpu::kOutOfMemory;
  EXPECT_EQ(engine->gather({&copy, 1}).error().code, Code::kIo);
  machine_.failing.clear();
  Result<PendingCopy> pending = engine->start_gather({&copy, 1}, nullptr);
  ASSERT_TRUE(pending);
  machine_.failing["event_query"] = gpu::kOutOfMemory;
  EXPECT_EQ(pending->is_done().error().code, Code::kIo);
  EXPECT_EQ(pending->wait().error().code, Code::kIo);
  machine_.failing.clear();
}

// To be slept for costs more than a copy of a megabyte takes.
TEST_F(CudaEngineOnFakeGpu, AShortCopyIsAskedForAndOneThatTakesLongIsSleptFor) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  machine_.failing["event_synchronize"] = 719;
  EXPECT_TRUE(engine->gather({&copy, 1}));
  machine_.failing.clear();
  machine_.begin(0);
  EXPECT_TRUE(engine->gather({&copy, 1}));
  EXPECT_EQ(machine_.waits, 1);
  machine_.failing["event_query"] = 719;
  EXPECT_TRUE(engine->start_gather({&copy, 1}, nullptr)->wait(WaitBy::kSleeping));
  EXPECT_FALSE(engine->start_gather({&copy, 1}, nullptr)->wait());
}

// A program that captures a stream forbids its threads what a copy does on another one.
TEST_F(CudaEngineOnFakeGpu, CopiesWhileAnotherStreamIsCaptured) {
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  const OwnStream stream(*device_);
  machine_.set_capturing(0x5000, true);
  for (const Way way : {Way::kThreads, Way::kBatch}) {
    const auto engine = this->engine({.way = way});
    Result<PendingCopy> pending = engine->start_gather({&copy, 1}, stream.get());
    ASSERT_TRUE(pending) << pending.error().message;
    ASSERT_TRUE(pending->wait());
    EXPECT_TRUE(holds(1, {4, 9}));
    std::memset(block(1), 0, kBlockBytes);
  }
  machine_.set_capturing(0x5000, false);
  int mode = 0;
  device_->driver().exchange_capture_mode(&mode);
  EXPECT_EQ(mode, 0) << "the thread's own mode";
}

// The launch failed, and whether the tables before it are still on their way is not known either.
TEST_F(CudaEngineOnFakeGpu, ASlotIsNotUsedAgainWhereItsStreamCannotBeWaitedFor) {
  const auto engine = this->engine({.inline_table_bytes = 0});
  ASSERT_TRUE(gather_block_1(*engine));
  const std::uint64_t before = machine_.allocations();
  machine_.failing["launch"] = machine_.failing["stream_synchronize"] = 719;
  EXPECT_FALSE(gather_block_1(*engine));
  machine_.failing.clear();
  ASSERT_TRUE(gather_block_1(*engine));
  EXPECT_EQ(machine_.allocations(), before + 2);
}

// Tables of 100 KB after small ones: the slot grows, and small calls use it then.
// Freeing it would wait for all that runs on the device.
TEST_F(CudaEngineOnFakeGpu, ALargeCallGetsALargeSlotAndTheSmallOneStays) {
  const auto engine = this->engine({.inline_table_bytes = 0});
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const std::vector<BlockCopy> copies(2000, BlockCopy{{&extent, 1}, pages});
  ASSERT_TRUE(engine->gather({copies.data(), 1}));
  const std::uint64_t before = machine_.allocations();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine->gather(copies));
    ASSERT_TRUE(engine->gather({copies.data(), 1}));
    EXPECT_EQ(machine_.allocations(), before + 2);
  }
  EXPECT_TRUE(holds(1, {4, 9}));
}

TEST_F(CudaEngineOnFakeGpu, TablesThatGoWithTheLaunchTakeNoMemory) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  const std::uint64_t before = machine_.allocations();
  ASSERT_TRUE(engine->gather({&copy, 1}));
  EXPECT_EQ(machine_.allocations(), before);
  EXPECT_EQ(machine_.events(), 1u);
}

// It has old tables in the device's memory.
TEST_F(CudaEngineOnFakeGpu, ASmallCallMayHaveTheSlotOfALargeOne) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {4, 9}, others[] = {5, 7};
  const memory::Extent extent{block(1), kBlockBytes}, other{block(2), kBlockBytes};
  ASSERT_TRUE(engine->gather(std::vector<BlockCopy>(200, BlockCopy{{&extent, 1}, pages})));
  const std::uint64_t events = machine_.events();
  const BlockCopy copy{{&other, 1}, others};
  ASSERT_TRUE(engine->gather({&copy, 1}));
  EXPECT_EQ(machine_.events(), events);
  EXPECT_TRUE(holds(1, {4, 9}) && holds(2, {5, 7}));
}

// A cache described wrongly: the device faults, and that is an error of the call.
TEST_F(CudaEngineOnFakeGpu, AFaultOfTheDeviceIsAnError) {
  CacheShape shape = cache_->shape();
  std::vector<Tensor> wrong;
  for (std::byte* const base : cache_->bases()) {
    wrong.push_back({base + (std::uint64_t{1} << 40), 2 * kPages * 4 * 128});
  }
  const EngineCache elsewhere = *EngineCache::make(shape, "vllm_kbnhc", wrong);
  const auto engine = *CudaEngine::make(*device_, elsewhere, default_block_order(), domain_);
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  EXPECT_EQ(engine->gather({&copy, 1}).error().code, Code::kIo);
  EXPECT_GT(machine_.faults, 0u);
  expected_faults_ = machine_.faults;
}

TEST_F(CudaEngineOnFakeGpu, OpensDevicesThatCanDoItOnly) {
  const auto open = [&](int ordinal) {
    return CudaDevice::open(machine_.driver(), kFakeImage, ordinal);
  };
  EXPECT_EQ(open(3).error().code, Code::kInvalidArgument);
  EXPECT_EQ(CudaDevice::open(machine_.driver(), {}, 0).error().code, Code::kUnsupported);
  machine_.compute_major = 7;
  EXPECT_EQ(open(0).error().code, Code::kUnsupported);
  machine_.compute_major = 8;
  const auto ampere = open(1);
  ASSERT_TRUE(ampere);
  EXPECT_FALSE((*ampere)->has_bulk_copies());
  EXPECT_EQ((*ampere)->name(), "Fake GPU (device 1)");
  const auto bulk =
      CudaEngine::make(**ampere, *cache_, default_block_order(), domain_, {.way = Way::kBulk});
  EXPECT_EQ(bulk.error().code, Code::kUnsupported);
  machine_.compute_major = 9;
  machine_.failing["set_function_attribute"] = gpu::kOutOfMemory;
  EXPECT_EQ(open(1).error().code, Code::kNoSpace);
  machine_.failing.clear();
  machine_.kernels.erase("cachalot_scatter");
  EXPECT_FALSE(open(1));
  for (const std::uint32_t threads : {0u, 33u, 1024u}) {
    EXPECT_EQ(refusal(domain_, {.threads = threads}).code, Code::kInvalidArgument);
  }
}

TEST_F(CudaEngineOnFakeGpu, LeavesAThreadInTheContextItWasIn) {
  const auto engine = this->engine();
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  std::thread([&] {
    int another = 0;
    gpu::Context now = nullptr;
    device_->driver().context_set_current(&another);
    EXPECT_TRUE(engine->gather({&copy, 1}));
    device_->driver().context_get_current(&now);
    EXPECT_EQ(now, &another);
  }).join();
}

TEST_F(CudaEngineOnFakeGpu, IsUsedByManyThreadsAtATime) {
  domain_.on_flush = nullptr;
  WatchedDomain coherent(DomainKind::kCoherent);
  const auto engine = *CudaEngine::make(*device_, *cache_, default_block_order(), coherent);
  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t round = 0; round < 25; ++round) {
        const std::uint32_t pages[] = {4 * t + round % 3, 4 * t + 3};
        const memory::Extent extent{block(t), kBlockBytes};
        const BlockCopy copy{{&extent, 1}, pages};
        good[t] += engine->gather({&copy, 1}).ok() && holds(t, {pages[0], pages[1]});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<int>(4, 25));
}

// --- which way

TEST_F(CudaEngineOnFakeGpu, LaunchesFewThreadBlocksAndNoMoreThanThereIsWork) {
  const std::uint32_t pages[] = {4, 9};
  const memory::Extent extent{block(1), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, pages};
  // 8 fragments of 512 bytes, 16 lanes each: 4 warps of 16 that a thread block has.
  ASSERT_TRUE(engine({.way = Way::kThreads})->gather({&copy, 1}));
  EXPECT_EQ(machine_.launches.back().blocks, 1u);
  EXPECT_EQ(machine_.launches.back().threads, 512u);
  ASSERT_TRUE(engine({.way = Way::kThreads, .threads = 32})->gather({&copy, 1}));
  EXPECT_EQ(machine_.launches.back().blocks, 4u);
  ASSERT_TRUE(
      engine({.way = Way::kThreads, .thread_blocks = 3, .threads = 32})->gather({&copy, 1}));
  EXPECT_EQ(machine_.launches.back().blocks, 3u);
  ASSERT_TRUE(engine({.way = Way::kBulk})->gather({&copy, 1}));
  EXPECT_EQ(machine_.launches.back().blocks, 4u);
  EXPECT_EQ(machine_.launches.back().threads, 32u);
  EXPECT_EQ(machine_.launches.back().shared_bytes, kBulkSharedBytes);
  const std::size_t launches = machine_.launches.size();
  const std::uint64_t copies = machine_.copies;
  ASSERT_TRUE(engine({.way = Way::kCopyEngine})->gather({&copy, 1}));
  EXPECT_EQ(machine_.launches.size(), launches);
  EXPECT_EQ(machine_.copies, copies + 8);
}

// 8 fragments of 512 bytes: of 2 layers, keys and values, 2 pages.
TEST_F(CudaEngineOnFakeGpu, ABatchIsOneCallOfTheDriverAndTakesNoTables) {
  const OwnStream stream(*device_);
  const auto engine = this->engine({.way = Way::kBatch, .stream = stream.get()});
  const std::uint64_t allocations = machine_.allocations();
  ASSERT_TRUE(gather_block_1(*engine));
  EXPECT_TRUE(holds(1, {4, 9}));
  EXPECT_EQ(machine_.batches, std::vector<std::size_t>{8});
  const std::uint32_t neighbours[] = {6, 7};
  const memory::Extent extent{block(2), kBlockBytes};
  const BlockCopy copy{{&extent, 1}, neighbours};
  ASSERT_TRUE(engine->gather({&copy, 1}));
  EXPECT_TRUE(holds(2, {6, 7}));
  EXPECT_EQ(machine_.batches.back(), 4u) << "pages that touch are one copy";
  EXPECT_EQ(machine_.allocations(), allocations);
  EXPECT_TRUE(machine_.launches.empty());
  EXPECT_EQ(machine_.copies, 0u);
}

TEST_F(CudaEngineOnFakeGpu, LargeCallsAreSeveralBatches) {
  const OwnStream stream(*device_);
  const auto engine = this->engine({.way = Way::kBatch, .batch_copies = 3, .stream = stream.get()});
  ASSERT_TRUE(gather_block_1(*engine));
  EXPECT_TRUE(holds(1, {4, 9}));
  EXPECT_EQ(machine_.batches, (std::vector<std::size_t>{3, 3, 2}));
  EXPECT_EQ(refusal(domain_, {.batch_copies = 0}).code, Code::kInvalidArgument);
}

TEST_F(CudaEngineOnFakeGpu, NoBatchGoesToTheLegacyStream) {
  const OwnStream stream(*device_);
  ASSERT_TRUE(gather_block_1(*engine({.way = Way::kBatch, .stream = stream.get()})));
  EXPECT_EQ(machine_.batches.size(), 1u);
  auto* const legacy = reinterpret_cast<gpu::Stream>(gpu::kLegacyStream);
  for (const gpu::Stream by_name : {gpu::Stream{nullptr}, legacy}) {
    const std::uint64_t copies = machine_.copies;
    ASSERT_TRUE(gather_block_1(*engine({.way = Way::kBatch, .stream = by_name})));
    EXPECT_EQ(machine_.copies, copies + 8);
  }
  EXPECT_EQ(machine_.batches.size(), 1u);
  EXPECT_TRUE(holds(1, {4, 9}));
}

TEST_F(CudaEngineOnFakeGpu, ADriverWithoutBatchesCopiesByAnotherWay) {
  machine_.has_batches = false;
  const auto device = *CudaDevice::open(machine_.driver(), kFakeImage, 0);
  ASSERT_TRUE(device->share_pool(*device_));
  EXPECT_FALSE(device->has_batched_copies());
  const auto make = [&](const CudaOptions& options) {
    return CudaEngine::make(*device, *cache_, default_block_order(), domain_, options);
  };
  const auto refused = make({.way = Way::kBatch});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
  EXPECT_NE(std::strstr(refused.error().message, "CUDA 12.8"), nullptr);
  const OwnStream stream(*device);
  ASSERT_TRUE(gather_block_1(**make({.stream = stream.get()})));
  EXPECT_TRUE(holds(1, {4, 9}));
  EXPECT_EQ(machine_.launches.size(), 1u);
}

TEST_F(CudaEngineOnFakeGpu, ARefusedBatchNamesTheCopyAndIsAsAnyRefusal) {
  const OwnStream stream(*device_);
  const auto engine = this->engine({.way = Way::kBatch, .batch_copies = 5, .stream = stream.get()});
  machine_.failing["copy_batch"] = gpu::kOutOfMemory;
  machine_.failing_copy = 2;
  Status status = gather_block_1(*engine);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  EXPECT_NE(std::strstr(status.error().message,
                        "cuMemcpyBatchAsync of 5 copies, copy 2: 512 bytes from 0x"),
            nullptr)
      << status.error().message;
  EXPECT_EQ(domain_.orders, 0) << "as if it had been copied";
  // Nothing is known of copies that cannot be waited for.
  machine_.failing["stream_synchronize"] = 719;
  EXPECT_EQ(gather_block_1(*engine).error().code, Code::kIo);
  machine_.failing.clear();
  machine_.fail_waits(719);
  EXPECT_EQ(gather_block_1(*engine).error().code, Code::kIo);
  machine_.failing.clear();
  EXPECT_TRUE(gather_block_1(*engine));
  EXPECT_TRUE(holds(1, {4, 9}));
}

}  // namespace
}  // namespace cachalot::kv
