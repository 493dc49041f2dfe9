#include "tier/controller/tier_copies.h"

#include <cachalot/tier.h>

#include <algorithm>
#include <cinttypes>
#include <string>

#include "base/clock.h"
#include "os/memory.h"

namespace cachalot {

std::vector<std::string> host_layout_names() {
  return {"layer_first", "page_first", "page_first_direct", "page_head"};
}

namespace tier {
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

}  // namespace

void Bandwidth::add(std::uint64_t bytes, std::uint64_t ns) {
  if (bytes == 0 || ns == 0) return;
  const double now = static_cast<double>(bytes) / static_cast<double>(ns);
  const double before = bytes_per_ns_.load(std::memory_order_relaxed);
  bytes_per_ns_.store(before == 0 ? now : before + (now - before) / 8, std::memory_order_relaxed);
}

Result<std::uint32_t> blocks_of(const KvGeometry& geometry, const PagedCache& device) {
  CACHALOT_TRY(geometry.check());
  const std::uint32_t page_tokens =
      device.page_tokens == 0 ? geometry.block_tokens : device.page_tokens;
  if (geometry.block_tokens % page_tokens != 0) {
    return Error::make(Code::kInvalidArgument,
                       "page_tokens is %u; expected a divisor of the %u tokens of a block",
                       page_tokens, geometry.block_tokens);
  }
  const std::uint32_t blocks = device.pages / (geometry.block_tokens / page_tokens);
  if (blocks == 0) {
    return Error::make(Code::kInvalidArgument, "pages is %u; expected those of a block at least",
                       device.pages);
  }
  return blocks;
}

Result<std::unique_ptr<TierCopies>> TierCopies::make(const KvGeometry& geometry,
                                                     const PagedCache& device,
                                                     std::string_view host_layout,
                                                     std::uint32_t host_blocks) {
  if (device.cuda_device) {
    return Error::make(Code::kUnsupported,
                       "the device cache is on GPU %d; expected memory of this process",
                       *device.cuda_device);
  }
  CACHALOT_TRY_ASSIGN(const std::string layout, layout_of(host_layout, geometry));
  CACHALOT_TRY_ASSIGN(kv::EngineCache engine, cache_of(geometry, device));
  const std::uint32_t pages_per_block = engine.pages_per_block();
  if (host_blocks == 0) {
    kv::EngineCache none = engine;
    std::unique_ptr<TierCopies> copies(new TierCopies(std::move(engine), std::move(none), {}));
    copies->caches_ = {device, {}, pages_per_block};
    return copies;
  }
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
  base::HugeVector<std::byte> memory(bytes);
  PagedCache host{.layout = layout, .tensors = {{memory.data(), bytes}}, .pages = host_blocks};
  CACHALOT_TRY_ASSIGN(kv::EngineCache host_cache, cache_of(geometry, host));
  std::unique_ptr<TierCopies> copies(
      new TierCopies(std::move(engine), std::move(host_cache), std::move(memory)));
  copies->caches_ = {device, host, pages_per_block};
  return copies;
}

void TierCopies::load_layer(std::uint32_t layer, std::span<const SlotPair> blocks) {
  const std::uint64_t begin = base::SteadyClock::read();
  std::vector<kv::PagePair> pairs;
  pairs.reserve(blocks.size());
  for (const SlotPair& block : blocks) pairs.push_back({block.host, block.device});
  const Result<kv::PageCopy> copy = kv::PageCopy::make(host_, device_);
  copy->copy(pairs, {layer, layer + 1});
  load_bandwidth_.add(copy->layer_bytes() * blocks.size(), base::SteadyClock::read() - begin);
}

void TierCopies::back_up(std::span<const SlotPair> blocks) {
  std::vector<kv::PagePair> pairs;
  pairs.reserve(blocks.size());
  for (const SlotPair& block : blocks) pairs.push_back({block.device, block.host});
  kv::PageCopy::make(device_, host_)->copy(pairs);
}

}  // namespace tier
}  // namespace cachalot
