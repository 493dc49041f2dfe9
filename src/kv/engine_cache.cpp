#include "kv/engine_cache.h"

#include <cinttypes>
#include <string>

#include "base/check.h"

namespace cachalot::kv {
namespace {

std::uint64_t extent_of(char dimension, const CacheShape& shape) {
  switch (dimension) {
    case 'L':
      return shape.geometry.layers;
    case 'B':
      return shape.pages;
    case 'H':
      return shape.geometry.heads();
    default:
      return shape.tokens_of_page();
  }
}

std::uint64_t& stride_of(char dimension, PartStrides& part) {
  switch (dimension) {
    case 'L':
      return part.layer;
    case 'B':
      return part.page;
    case 'H':
      return part.head;
    default:
      return part.token;
  }
}

Error too_large(const char* name) {
  return Error::make(Code::kInvalidArgument, "layout: %s: a tensor exceeds 2^63 bytes", name);
}

// One dimension further out. `bytes` is what lies inside it, of each part.
Status widen(char dimension, const CacheShape& shape, const char* name, EngineStrides& strides,
             std::uint64_t (&bytes)[kParts]) {
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (dimension == 'B' && shape.page_stride_bytes != 0) {
      if (shape.page_stride_bytes < bytes[k]) {
        return Error::make(Code::kInvalidArgument,
                           "layout: %s: page_stride_bytes is %" PRIu64
                           ", expected at least the %" PRIu64 " of a page",
                           name, shape.page_stride_bytes, bytes[k]);
      }
      bytes[k] = shape.page_stride_bytes;
    }
    stride_of(dimension, strides.part[k]) = bytes[k];
    if (__builtin_mul_overflow(bytes[k], extent_of(dimension, shape), &bytes[k]) ||
        bytes[k] >> 63 != 0) {
      return too_large(name);
    }
  }
  return {};
}

// Which tensor holds what.
void number_tensors(const Form& form, const CacheShape& shape, EngineStrides& strides) {
  std::uint32_t count = 1;
  for (std::size_t i = std::char_traits<char>::length(form.tensors); i-- > 0;) {
    const bool layers = form.tensors[i] == 'L';
    for (std::uint32_t k = 0; k < kParts; ++k) {
      if (layers) strides.part[k].layer_tensors = count;
      if (!layers) strides.part[k].tensor = k * count;
    }
    count *= layers ? shape.geometry.layers : kParts;
  }
  strides.tensors = count;
}

}  // namespace

Result<EngineStrides> strides_of(const Form& form, const CacheShape& shape, const char* name) {
  CACHALOT_TRY(check_form(form, shape.geometry.attention, name));
  EngineStrides strides;
  std::uint64_t bytes[kParts] = {shape.geometry.content_bytes(0), shape.geometry.content_bytes(1)};
  const std::string_view order = form.order;
  for (std::size_t i = order.size() - 1; i-- > 0;) {
    if (order[i] != 'K') {
      CACHALOT_TRY(widen(order[i], shape, name, strides, bytes));
      continue;
    }
    strides.part[1].offset = bytes[0];
    if (__builtin_add_overflow(bytes[0], bytes[1], &bytes[0]) || bytes[0] >> 63 != 0) {
      return too_large(name);
    }
    bytes[1] = bytes[0];
  }
  number_tensors(form, shape, strides);
  return strides;
}

EngineCache EngineCache::heads(std::uint32_t first, std::uint32_t count) const {
  CACHALOT_CHECK(count != 0 && std::uint64_t{first} + count <= geometry().heads());
  EngineCache part = *this;
  if (geometry().attention == geometry::Attention::kGrouped) part.shape_.geometry.kv_heads = count;
  for (PartStrides& strides : part.strides_.part) strides.offset += first * strides.head;
  return part;
}

}  // namespace cachalot::kv
