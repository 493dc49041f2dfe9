// For tests: an engine with a TieredCache, which "computes" a block by filling it with bytes that follow from its
// tokens, and checks the bytes of what it was told is cached. L1 is memory of the process, or of a fake GPU; there it
// computes on a stream, and what is computed may come as late as the stream allows.
#pragma once

#include <cachalot/tier.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/client/test_cluster.h"
#include "testing/client/test_gpu.h"
#include "tier/controller/make.h"

namespace cachalot::client {

using Tokens = std::vector<std::uint32_t>;

class TierEngine {
 public:
  // @param options  device is replaced
  // @param gpus     outlives the engine; null: L1 is in this process's memory
  TierEngine(TieredCacheOptions options, std::uint32_t blocks, std::uint32_t pages_per_block = 1,
             GpuMachine* gpus = nullptr)
      : geometry_(options.shared.geometry), pages_per_block_(pages_per_block), gpus_(gpus) {
    options.device = {};
    options.device.layout = "vllm_bknhc";
    options.device.pages = blocks * pages_per_block;
    options.device.page_tokens = geometry_.block_tokens / pages_per_block;
    const std::uint64_t bytes = blocks * geometry_.layer_bytes();
    for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      host_.emplace_back(gpus == nullptr ? bytes : 0);
      memory_.push_back(gpus == nullptr ? host_.back().data() : gpus->allocate(bytes));
      options.device.tensors.push_back({memory_.back(), bytes});
    }
    if (gpus != nullptr) {
      stream_ = gpus->make_stream();
      options.device.cuda_device = 0;
      options.device.cuda_stream = stream_;
    }
    Result<TieredCache> made =
        gpus == nullptr ? TieredCache::make(options) : tier::make(options, gpus->opener());
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    if (made) cache_ = std::make_unique<TieredCache>(*std::move(made));
  }
  ~TierEngine() {
    cache_.reset();  // its jobs copy from and to memory_
    if (gpus_ == nullptr) return;
    gpus_->enter();
    gpus_->driver.stream_synchronize(stream_);
    gpus_->driver.stream_destroy(stream_);
    for (std::byte* const tensor : memory_) gpus_->free(tensor);
    for (std::byte* const staged : staged_) gpus_->free(staged);
  }
  TierEngine(const TierEngine&) = delete;
  TierEngine& operator=(const TierEngine&) = delete;

  TieredCache& cache() { return *cache_; }
  gpu::Stream stream() const { return stream_; }
  const KvGeometry& geometry() const { return geometry_; }

  // Serves a prompt from open() to close(). Every cached byte is checked.
  TierStart serve(const Tokens& prompt, const RequestOptions& options = {}) {
    const Result<RequestId> request = cache_->open(prompt, options);
    EXPECT_TRUE(request) << (request ? "" : request.error().message);
    const Result<bool> ready = cache_->wait_ready(*request, 10'000'000'000);
    EXPECT_TRUE(ready && *ready);
    const Result<TierStart> start = cache_->start(*request);
    EXPECT_TRUE(start) << (start ? "" : start.error().message);
    if (!start) return {};
    finish(*request, prompt, *start, options.extra);
    EXPECT_TRUE(cache_->close(*request));
    return *start;
  }
  // Waits for the layers, checks what is cached, computes the rest, commits.
  void finish(RequestId request, const Tokens& prompt, const TierStart& start,
              std::string_view extra = {}) {
    for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      EXPECT_TRUE(cache_->wait_layer(request, layer));
      EXPECT_TRUE(holds(prompt, start.pages, start.cached_tokens, layer, extra));
    }
    compute(prompt, start.pages, start.cached_tokens, extra);
    const Status committed = cache_->commit(request, prompt);
    EXPECT_TRUE(committed) << committed.error().message;
  }
  void compute(const Tokens& prompt, const std::vector<PageId>& pages, std::uint64_t from,
               std::string_view extra = {}) {
    for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer)
      visit(prompt, pages, from / page_tokens(), prompt.size() / page_tokens(), layer, extra, true);
  }
  bool holds(const Tokens& prompt, const std::vector<PageId>& pages, std::uint64_t tokens,
             std::uint32_t layer, std::string_view extra = {}) {
    return visit(prompt, pages, 0, tokens / page_tokens(), layer, extra, false);
  }
  std::uint32_t page_tokens() const { return geometry_.block_tokens / pages_per_block_; }

 private:
  // Pages [first, end) of the prompt: writes their bytes, or compares them.
  bool visit(const Tokens& prompt, const std::vector<PageId>& pages, std::size_t first,
             std::size_t end, std::uint32_t layer, std::string_view extra, bool writes) {
    const std::size_t bytes = geometry_.layer_bytes() / pages_per_block_;
    if (gpus_ != nullptr) gpus_->enter();
    if (gpus_ != nullptr && !writes) gpus_->finish(stream_);
    std::uint64_t seed = std::hash<std::string_view>{}(extra) + layer;
    std::size_t token = 0;
    for (std::size_t page = 0; page < end; ++page) {
      for (std::uint32_t i = 0; i < page_tokens(); ++i)
        seed = seed * 1099511628211u ^ prompt[token++];
      if (page < first) continue;
      base::Rng rng(seed);
      std::byte* const there = memory_[layer] + pages[page] * bytes;
      std::byte* const at = writes && gpus_ != nullptr ? stage(bytes) : there;
      for (std::size_t i = 0; i < bytes; ++i) {
        const auto value = static_cast<std::byte>(rng.next());
        if (writes) at[i] = value;
        if (at[i] != value) return false;
      }
      if (at != there) {
        EXPECT_EQ(gpus_->driver.copy(reinterpret_cast<gpu::DevicePointer>(there),
                                     reinterpret_cast<gpu::DevicePointer>(at), bytes, stream_),
                  gpu::kSuccess);
      }
    }
    return true;
  }
  // Until the end of the test: a copy may read it late.
  std::byte* stage(std::size_t bytes) {
    staged_.push_back(gpus_->allocate(bytes));
    return staged_.back();
  }

  KvGeometry geometry_;
  std::uint32_t pages_per_block_;
  GpuMachine* gpus_;
  gpu::Stream stream_ = nullptr;
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::byte*> memory_, staged_;
  std::unique_ptr<TieredCache> cache_;
};

}  // namespace cachalot::client
