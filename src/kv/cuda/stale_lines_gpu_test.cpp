// Whether a copy ever brings a block's former bytes: lines of the pool that stay in a GPU's second-level cache, or
// a kernel's stores that the CPU does not see yet when its event is done. Skipped, with the reason, where there is
// no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "kv/block_order.h"
#include "kv/cuda/cuda_engine.h"
#include "memory/coherence.h"
#include "memory/devices.h"

namespace cachalot::kv {
namespace {

constexpr std::uint32_t kRounds = 100'000;
constexpr std::uint32_t kPages = 4;
// On an emulated GPU as many as that allows; a GPU takes 60 us a round.
constexpr std::chrono::seconds kMostTime{20};

// Two layers of 8 KiB keys and 8 KiB values: large enough for bulk transfers, small enough to stay in a cache.
geometry::KvGeometry small_blocks() {
  geometry::KvGeometry g;
  g.layers = 2;
  g.kv_heads = 4;
  g.head_dim = 64;
  g.block_tokens = 16;
  return g;
}

class StaleLines : public testing::Test {
 protected:
  ~StaleLines() override {
    engines_.clear();
    if (!device_) return;
    {
      const CudaDevice::Entered entered(*device_);
      if (stream_ != nullptr) driver().stream_destroy(stream_);
      if (pages_ != 0) driver().memory_free(pages_);
      if (read_ != nullptr) driver().host_free(read_);
    }
    if (registered_) {
      EXPECT_TRUE(device_->unregister_pool(pool_->base(0)).ok());
    }
  }

  // @errors kUnsupported: no GPU, or no kernels
  Status open() {
    CACHALOT_TRY_ASSIGN(device_, CudaDevice::open(0));
    CACHALOT_TRY_ASSIGN(pool_, memory::DeviceSet::create({"memfd:stale"}, memory::kStripeBytes));
    CACHALOT_TRY(device_->register_pool(pool_->base(0), memory::kStripeBytes));
    registered_ = true;
    const geometry::KvGeometry g = small_blocks();
    const std::uint64_t layer = g.layer_bytes();
    {
      const CudaDevice::Entered entered(*device_);
      CACHALOT_TRY(entered.status());
      CACHALOT_TRY(device_->check(driver().memory_allocate(&pages_, kPages * g.block_bytes()),
                                  "cuMemAlloc"));
      void* read = nullptr;
      CACHALOT_TRY(device_->check(
          driver().host_allocate(&read, kPages * g.block_bytes(), gpu::kHostPortable),
          "cuMemHostAlloc"));
      read_ = static_cast<std::byte*>(read);
      CACHALOT_TRY_ASSIGN(stream_, device_->make_stream());
    }
    std::vector<Tensor> tensors;
    for (std::uint32_t l = 0; l < g.layers; ++l) {
      tensors.push_back(
          {reinterpret_cast<std::byte*>(pages_ + l * kPages * layer), kPages * layer});
    }
    CACHALOT_TRY_ASSIGN(cache_, EngineCache::make({g, 0, kPages, 0}, "vllm_kbnhc", tensors));
    std::vector<Way> ways = {Way::kThreads, Way::kCopyEngine};
    if (device_->has_bulk_copies()) ways.push_back(Way::kBulk);
    for (const Way way : ways) {
      CACHALOT_TRY_ASSIGN(auto engine, CudaEngine::make(*device_, *cache_, default_block_order(),
                                                        *domain_, {.way = way, .stream = stream_}));
      engines_.push_back(std::move(engine));
    }
    return {};
  }

  const gpu::Driver& driver() const { return device_->driver(); }
  std::byte* block() const { return pool_->base(0); }
  std::uint64_t bytes() const { return cache_->geometry().block_bytes(); }

  // Every byte of the block is of this round, so that bytes of any other round are seen wherever they land.
  void write_block(std::uint64_t word) const {
    auto* const words = reinterpret_cast<std::uint64_t*>(block());
    std::fill(words, words + bytes() / sizeof word, word);
  }
  static std::uint64_t count_words(const std::byte* at, std::uint64_t bytes, std::uint64_t word) {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(at);
    return static_cast<std::uint64_t>(std::count(words, words + bytes / sizeof word, word));
  }
  // In all pages, wherever the layout puts a block. No other round has the same word.
  std::uint64_t count_words_in_pages(std::uint64_t word) {
    const CudaDevice::Entered entered(*device_);
    const std::uint64_t all = kPages * bytes();
    EXPECT_EQ(driver().copy(reinterpret_cast<std::uintptr_t>(read_), pages_, all, stream_), 0);
    EXPECT_EQ(driver().stream_synchronize(stream_), 0);
    return count_words(read_, all, word);
  }

  std::unique_ptr<CudaDevice> device_;
  std::optional<memory::DeviceSet> pool_;
  bool registered_ = false;
  gpu::DevicePointer pages_ = 0;
  std::byte* read_ = nullptr;
  gpu::Stream stream_ = nullptr;
  std::optional<EngineCache> cache_;
  const std::unique_ptr<memory::Domain> domain_ = memory::make_coherent_domain();
  std::vector<std::unique_ptr<CudaEngine>> engines_;
};

TEST_F(StaleLines, ABlockThatIsRewrittenIsNeverCopiedAsItWas) {
  const Status opened = open();
  if (!opened && opened.error().code == Code::kUnsupported) {
    GTEST_SKIP() << opened.error().message;
  }
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const memory::Extent extent{block(), (bytes() + 63) / 64 * 64};
  const std::uint64_t words = bytes() / sizeof(std::uint64_t);
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  std::uint32_t round = 0;
  for (; round < kRounds && std::chrono::steady_clock::now() < end; ++round) {
    const std::uint64_t word = (round + 1) * 0x9e37'79b9'7f4a'7c15;
    const std::uint32_t page = round % kPages;
    const BlockCopy copy{{&extent, 1}, {&page, 1}, {}};
    // Ways in turn: a line that one has left in the cache is read by the next.
    CudaEngine& in = *engines_[round % engines_.size()];
    write_block(word);
    ASSERT_TRUE(in.scatter({&copy, 1}).ok());
    ASSERT_EQ(count_words_in_pages(word), words) << "scatter, round " << round;
    // The other direction: the CPU has just written, and then reads what the GPU has stored.
    CudaEngine& out = *engines_[(round / 2) % engines_.size()];
    write_block(~word);
    ASSERT_TRUE(out.gather({&copy, 1}).ok());
    ASSERT_EQ(count_words(block(), bytes(), word), words) << "gather, round " << round;
  }
  std::printf("%u rounds of a rewritten block, by %zu ways\n", round, engines_.size());
}

}  // namespace
}  // namespace cachalot::kv
