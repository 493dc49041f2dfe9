#include <cachalot/tier.h>

#include <algorithm>
#include <cinttypes>
#include <string>

#include "base/clock.h"
#include "kv/page_copy.h"
#include "os/memory.h"
#include "tier/controller/gpu_tier_copies.h"

namespace cachalot::tier {
namespace {

// The layouts are SGLang's, and the copy engines know them by these names.
Result<std::string> layout_of(std::string_view host_layout, const KvGeometry& geometry) {
  const std::vector<std::string> names = host_layout_names();
  if (std::find(names.begin(), names.end(), host_layout) == names.end()) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return Error::make(Code::kInvalidArgument, "host_layout is \"%.*s\"; expected one of %s",
                       static_cast<int>(host_layout.size()), host_layout.data(), all.c_str());
  }
  // A latent has one head: its layout by heads is the one by tokens.
  if (host_layout == "page_head" && geometry.attention == Attention::kLatent)
    return std::string("sglang_page_first");
  return "sglang_" + std::string(host_layout);
}

Result<kv::EngineCache> cache_of(const KvGeometry& geometry, const PagedCache& given) {
  const kv::CacheShape shape{geometry, given.page_tokens, given.pages, given.page_stride_bytes};
  std::vector<kv::Tensor> tensors;
  for (const Buffer& buffer : given.tensors)
    tensors.push_back({static_cast<std::byte*>(buffer.data), buffer.bytes});
  if (!given.strides) return kv::EngineCache::make(shape, given.layout, tensors);
  kv::EngineStrides strides;
  for (std::uint32_t part = 0; part < kParts; ++part) strides.part[part] = (*given.strides)[part];
  strides.tensors = static_cast<std::uint32_t>(tensors.size());
  return kv::EngineCache::with_strides(shape, strides, tensors);
}

// Both in this process's memory.
class HostTierCopies final : public TierCopies {
 public:
  HostTierCopies(kv::EngineCache device, kv::EngineCache host, base::HugeVector<std::byte> memory,
                 TierCaches caches)
      : TierCopies(std::move(device)), host_(std::move(host)), memory_(std::move(memory)) {
    caches_ = std::move(caches);
  }

  Status load(std::span<const SlotPair> blocks, const Mark&,
              const FinishLayer& finish_layer) override {
    std::vector<kv::PagePair> pairs;
    pairs.reserve(blocks.size());
    for (const SlotPair& block : blocks) pairs.push_back({block.host, block.device});
    const Result<kv::PageCopy> copy = kv::PageCopy::make(host_, device_);
    for (std::uint32_t layer = 0; layer < device_.geometry().layers; ++layer) {
      const std::uint64_t begin = base::SteadyClock::read();
      copy->copy(pairs, {layer, layer + 1});
      load_bandwidth_.add(copy->layer_bytes() * blocks.size(), base::SteadyClock::read() - begin);
      finish_layer(nullptr);
    }
    return {};
  }
  Status back_up(std::span<const SlotPair> blocks, const Mark&) override {
    std::vector<kv::PagePair> pairs;
    pairs.reserve(blocks.size());
    for (const SlotPair& block : blocks) pairs.push_back({block.device, block.host});
    kv::PageCopy::make(device_, host_)->copy(pairs);
    return {};
  }

 private:
  kv::EngineCache host_;
  base::HugeVector<std::byte> memory_;
};

// @errors kNoSpace: the machine has not so much left
Result<std::uint64_t> host_bytes_of(const KvGeometry& geometry, std::uint32_t host_blocks) {
  std::uint64_t bytes = 0;
  const os::AvailableMemory available = os::available_memory();
  if (__builtin_mul_overflow(geometry.block_bytes(), host_blocks, &bytes) ||
      bytes > available.bytes) {
    return Error::make(Code::kNoSpace,
                       "host memory of %u blocks of %" PRIu64
                       " bytes; expected at most the %" PRIu64 " bytes that %s has left",
                       host_blocks, geometry.block_bytes(), available.bytes,
                       available.limited_by.c_str());
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<TierCopies>> TierCopies::make(const KvGeometry& geometry,
                                                     const PagedCache& device,
                                                     std::string_view host_layout,
                                                     std::uint32_t host_blocks,
                                                     const kv::Gpus::Open& open_gpu) {
  CACHALOT_TRY_ASSIGN(const std::string layout, layout_of(host_layout, geometry));
  CACHALOT_TRY_ASSIGN(kv::EngineCache engine, cache_of(geometry, device));
  TierCaches caches{device, {}, engine.pages_per_block()};
  base::HugeVector<std::byte> memory;
  if (host_blocks != 0) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, host_bytes_of(geometry, host_blocks));
    memory.resize(device.cuda_device ? whole_pages(bytes) : bytes);
    caches.host = {.layout = layout, .tensors = {{memory.data(), bytes}}, .pages = host_blocks};
  }
  kv::EngineCache host = engine;  // unused without L2
  if (host_blocks != 0) {
    CACHALOT_TRY_ASSIGN(host, cache_of(geometry, caches.host));
  }
  if (device.cuda_device)
    return GpuTierCopies::make(std::move(engine), std::move(memory), std::move(caches), open_gpu);
  return std::unique_ptr<TierCopies>(
      new HostTierCopies(std::move(engine), std::move(host), std::move(memory), std::move(caches)));
}

}  // namespace cachalot::tier
