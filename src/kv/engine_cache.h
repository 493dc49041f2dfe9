// One engine's paged KV cache: what it holds, how it is laid out, where it lies. Checked whole
// before any plan is made of it; what does not fit together is refused.
//
//   EngineCache::make({geometry, "vllm_bknhc", page_tokens, pages}, tensors)
//
// 1. Every byte that a page id below pages() can lead to lies inside its tensor.
// 2. No two elements share a byte.
// 3. A pool block is pages_per_block() pages, in the order of their tokens.
#pragma once

#include <cachalot/result.h>
#include <cachalot/strides.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "geometry/kv_geometry.h"
#include "kv/layout.h"

namespace cachalot::kv {

using geometry::kParts;
using geometry::KvGeometry;

struct Tensor {
  std::byte* at = nullptr;
  std::uint64_t bytes = 0;
};

using cachalot::PartStrides;

struct EngineStrides {
  PartStrides part[kParts];
  std::uint32_t tensors = 0;
};

struct CacheShape {
  KvGeometry geometry;
  std::uint32_t page_tokens = 0;  // 0: a page is a block
  std::uint32_t pages = 0;        // that the cache has: page ids are below
  // From one page to the next, where the engine leaves gaps; 0: as dense as the layout allows.
  std::uint64_t page_stride_bytes = 0;

  std::uint32_t tokens_of_page() const {
    return page_tokens == 0 ? geometry.block_tokens : page_tokens;
  }
  // @errors kInvalidArgument: as KvGeometry::check; no pages; page_tokens that do not divide a block
  Status check() const;
};

// The strides that a form has for a shape.
// @errors kInvalidArgument: a size that does not fit 63 bits, or a page stride below a page
Result<EngineStrides> strides_of(const Form& form, const CacheShape& shape, const char* name);

class EngineCache {
 public:
  // A cache in a layout of the table. @errors as find_layout, check_form, strides_of, and
  // kInvalidArgument: tensors that are too few, too many, too small or too large
  static Result<EngineCache> make(const CacheShape& shape, std::string_view layout,
                                  std::span<const Tensor> tensors);
  // A cache whose strides the caller knows (docs/extend/layout.md).
  // @errors kInvalidArgument: strides that leave a tensor, or let two elements share a byte; a tensor that
  //         holds nothing of the cache
  static Result<EngineCache> with_strides(const CacheShape& shape, const EngineStrides& strides,
                                          std::span<const Tensor> tensors);

  // A part of the same pages: heads [first, first + count) only. A latent has one.
  // @shape the cache has these heads
  EngineCache heads(std::uint32_t first, std::uint32_t count) const;

  const CacheShape& shape() const { return shape_; }
  const KvGeometry& geometry() const { return shape_.geometry; }
  const EngineStrides& strides() const { return strides_; }
  std::span<std::byte* const> bases() const { return bases_; }
  std::uint32_t pages() const { return shape_.pages; }
  std::uint32_t page_tokens() const { return shape_.page_tokens; }
  std::uint32_t pages_per_block() const { return geometry().block_tokens / page_tokens(); }

 private:
  static Result<EngineCache> checked(const CacheShape& shape, const EngineStrides& strides,
                                     std::span<const Tensor> tensors);
  EngineCache(const CacheShape& shape, const EngineStrides& strides, std::vector<std::byte*> bases)
      : shape_(shape), strides_(strides), bases_(std::move(bases)) {}

  CacheShape shape_;
  EngineStrides strides_;
  std::vector<std::byte*> bases_;
};

}  // namespace cachalot::kv
