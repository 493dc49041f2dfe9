#include "vtensor/kv_shape.h"

#include <array>
#include <cinttypes>

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kMostLayers = 65536;
constexpr std::uint64_t kMostTokenBytes = std::uint64_t{1} << 40;
constexpr std::array kLayouts = {KvLayout::kPerLayer, KvLayout::kFolded, KvLayout::kFoldedParts};

}  // namespace

Status KvShape::check() const {
  if (layers == 0 || part_bytes.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "KV shape: %" PRIu64 " layers of %zu parts, expected at least one of each",
                       layers, part_bytes.size());
  }
  if (layers > kMostLayers) {
    return Error::make(Code::kInvalidArgument,
                       "KV shape: %" PRIu64 " layers, expected at most %" PRIu64, layers,
                       kMostLayers);
  }
  std::uint64_t left = kMostTokenBytes / layers;
  for (const std::uint64_t bytes : part_bytes) {
    if (bytes == 0 || bytes > left) {
      return Error::make(Code::kInvalidArgument,
                         "KV shape: a part of %" PRIu64 " bytes in each of %" PRIu64
                         " layers, expected 1 or more, and at most 2^40 for a token",
                         bytes, layers);
    }
    left -= bytes;
  }
  return {};
}

const char* kv_layout_name(KvLayout layout) {
  switch (layout) {
    case KvLayout::kPerLayer:
      return "per_layer";
    case KvLayout::kFolded:
      return "folded";
    case KvLayout::kFoldedParts:
      return "folded_parts";
  }
  return "?";
}

Result<KvLayout> parse_kv_layout(std::string_view name) {
  for (const KvLayout layout : kLayouts) {
    if (name == kv_layout_name(layout)) return layout;
  }
  return Error::make(Code::kInvalidArgument,
                     "layout: \"%.*s\", expected per_layer, folded or folded_parts",
                     static_cast<int>(name.substr(0, 60).size()), name.data());
}

}  // namespace cachalot::vtensor
