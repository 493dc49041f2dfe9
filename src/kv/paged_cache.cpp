#include "kv/paged_cache.h"

#include <cinttypes>

namespace cachalot::kv {

std::vector<Tensor> tensors_of(const PagedCache& description) {
  std::vector<Tensor> tensors;
  for (const Buffer& tensor : description.tensors) {
    tensors.push_back({static_cast<std::byte*>(tensor.data), tensor.bytes});
  }
  return tensors;
}

Result<EngineCache> engine_cache_of(const PagedCache& description, const KvGeometry& geometry) {
  const std::vector<Tensor> tensors = tensors_of(description);
  CacheShape shape;
  shape.geometry = geometry;
  shape.page_tokens = description.page_tokens;
  shape.pages = description.pages;
  shape.page_stride_bytes = description.page_stride_bytes;
  if (!description.strides) {
    if (!description.layout.empty()) return EngineCache::make(shape, description.layout, tensors);
    return Error::make(Code::kInvalidArgument,
                       "cache: neither a layout nor strides are given, expected one of the two");
  }
  if (!description.layout.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "cache: layout is %.40s and strides are given, expected one of the two",
                       description.layout.c_str());
  }
  if (description.page_stride_bytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "cache: page_stride_bytes is %" PRIu64
                       " and strides are given, expected one of the two",
                       description.page_stride_bytes);
  }
  EngineStrides strides;
  for (std::uint32_t k = 0; k < kParts; ++k) strides.part[k] = (*description.strides)[k];
  strides.tensors = static_cast<std::uint32_t>(tensors.size());
  return EngineCache::with_strides(shape, strides, tensors);
}

}  // namespace cachalot::kv
