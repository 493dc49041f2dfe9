#include <cinttypes>
#include <string>

#include "kv/cache_bounds.h"

namespace cachalot::kv {
namespace {

Error wrong(const char* what, std::uint64_t value, const char* expected) {
  return Error::make(Code::kInvalidArgument, "engine cache: %s is %" PRIu64 ", expected %s", what,
                     value, expected);
}

Status check_tensors(std::span<const Tensor> tensors, const EngineStrides& strides) {
  if (tensors.size() != strides.tensors) {
    return Error::make(Code::kInvalidArgument, "engine cache: %zu tensors, expected %u",
                       tensors.size(), strides.tensors);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto at = reinterpret_cast<std::uintptr_t>(tensors[i].at);
    if (at == 0 || at + tensors[i].bytes < at) {
      return Error::make(Code::kInvalidArgument,
                         "engine cache: tensor %zu: %" PRIu64 " bytes at 0x%" PRIxPTR
                         ", expected memory",
                         i, tensors[i].bytes, at);
    }
  }
  return {};
}

}  // namespace

Status CacheShape::check() const {
  CACHALOT_TRY(geometry.check());
  if (pages == 0) return wrong("pages", 0, "at least 1");
  if (geometry.block_tokens % tokens_of_page() == 0) return {};
  return Error::make(Code::kInvalidArgument,
                     "engine cache: page_tokens is %u, expected a divisor of the %u tokens of a "
                     "block",
                     page_tokens, geometry.block_tokens);
}

Result<EngineCache> EngineCache::make(const CacheShape& shape, std::string_view layout,
                                      std::span<const Tensor> tensors) {
  CACHALOT_TRY(shape.check());
  CACHALOT_TRY_ASSIGN(const Layout* const row, find_layout(layout));
  CACHALOT_TRY_ASSIGN(const EngineStrides strides,
                      strides_of(row->form(shape.geometry.attention), shape, row->name));
  CACHALOT_TRY(check_tensors(tensors, strides));
  // A named layout says how large its tensors are; more bytes mean that it is another one.
  CACHALOT_TRY(check_exact_bytes(shape, strides, tensors, row->name));
  return checked(shape, strides, tensors);
}

Result<EngineCache> EngineCache::with_strides(const CacheShape& shape, const EngineStrides& strides,
                                              std::span<const Tensor> tensors) {
  CACHALOT_TRY(shape.check());
  CACHALOT_TRY(check_tensors(tensors, strides));
  CACHALOT_TRY_ASSIGN(EngineCache cache, checked(shape, strides, tensors));
  CACHALOT_TRY(check_tensors_used(shape, strides));
  return cache;
}

Result<EngineCache> EngineCache::checked(const CacheShape& shape, const EngineStrides& strides,
                                         std::span<const Tensor> tensors) {
  CACHALOT_TRY(check_bounds(shape, strides, tensors));
  std::vector<std::byte*> bases;
  for (const Tensor& tensor : tensors) bases.push_back(tensor.at);
  CacheShape filled = shape;
  filled.page_tokens = shape.tokens_of_page();
  return EngineCache(filled, strides, std::move(bases));
}

}  // namespace cachalot::kv
