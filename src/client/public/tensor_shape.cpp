#include <cachalot/tensor_shape.h>

#include <algorithm>
#include <cstring>

#include "kv/engine_cache.h"
#include "kv/layout.h"

namespace cachalot {
namespace {

using kv::CacheShape;
using kv::Form;

// `part`: that is in the tensor, if parts have tensors of their own.
TensorAxis content_axis(const CacheShape& shape, std::uint32_t part) {
  const KvGeometry& g = shape.geometry;
  if (g.attention == Attention::kGrouped) return {"head_dim", g.head_dim};
  return part == 0 ? TensorAxis{"latent", g.kv_lora_rank} : TensorAxis{"rope", g.qk_rope_head_dim};
}

TensorAxis axis_of(char dimension, const CacheShape& shape, std::uint32_t part) {
  switch (dimension) {
    case 'K':
      return {"keys/values", kParts};
    case 'L':
      return {"layers", shape.geometry.layers};
    case 'B':
      return {"pages", shape.pages};
    case 'H':
      return {"heads", shape.geometry.heads()};
    case 'N':
      return {"tokens", shape.tokens_of_page()};
    default:
      return content_axis(shape, part);
  }
}

std::vector<TensorAxis> axes_of(std::string_view order, const CacheShape& shape,
                                std::uint32_t part) {
  std::vector<TensorAxis> axes;
  for (std::size_t i = 0; i < order.size(); ++i) {
    // A latent and its rope part have two sizes, so they are one axis.
    if (order.substr(i) == "KC" && shape.geometry.attention == Attention::kLatent) {
      axes.push_back({"latent+rope", std::uint64_t{shape.geometry.kv_lora_rank} +
                                         shape.geometry.qk_rope_head_dim});
      break;
    }
    axes.push_back(axis_of(order[i], shape, part));
  }
  return axes;
}

const char* part_name(Attention attention, std::uint32_t part) {
  if (attention == Attention::kGrouped) return part == 0 ? "keys" : "values";
  return part == 0 ? "latents" : "rope parts";
}

std::string holds_of(const Form& form, const CacheShape& shape, std::uint32_t layer,
                     std::uint32_t part) {
  const std::string layers = std::strchr(form.tensors, 'L') != nullptr
                                 ? "layer " + std::to_string(layer)
                                 : std::string("all layers");
  if (std::strchr(form.tensors, 'K') == nullptr) return layers;
  return std::string(part_name(shape.geometry.attention, part)) + " of " + layers;
}

// Whether the page stride is more than a page of one of the tensors.
bool has_gaps(const Form& form, const CacheShape& shape) {
  if (shape.page_stride_bytes == 0) return false;
  const std::string_view order = form.order;
  for (std::uint32_t part = 0; part < kParts; ++part) {
    std::uint64_t bytes = dtype_bytes(shape.geometry.dtype);
    for (const TensorAxis& axis : axes_of(order.substr(order.find('B') + 1), shape, part))
      bytes *= axis.size;
    if (bytes != shape.page_stride_bytes) return true;
  }
  return false;
}

std::string tensors_text(std::string_view tensors, Attention attention) {
  const std::string first = part_name(attention, 0), second = part_name(attention, 1);
  if (tensors.empty()) return "one tensor";
  if (tensors == "L") return "a tensor per layer";
  if (tensors == "K") return "a tensor of " + first + ", one of " + second;
  if (tensors == "LK") return "per layer a tensor of " + first + ", then one of " + second;
  return "a tensor of " + first + " per layer, then those of " + second;
}

// "[K, B, N, H, C]"; parts side by side: "[B, N, H, KC]"
std::string order_text(std::string_view order) {
  std::string text = "[";
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool is_packed = order.substr(i) == "KC";
    text += (i == 0 ? "" : ", ") + (is_packed ? std::string("KC") : std::string(1, order[i]));
    if (is_packed) break;
  }
  return text + "]";
}

std::string form_text(const Form& form, Attention attention) {
  if (form.order == nullptr) return "";
  return order_text(form.order) + ", " + tensors_text(form.tensors, attention);
}

}  // namespace

bool TensorShape::accepts(std::span<const std::int64_t> shape) const {
  std::vector<std::uint64_t> borders = {1};  // numbers inside of each axis
  for (std::size_t i = axes.size(); i-- > 0;) borders.push_back(borders.back() * axes[i].size);
  std::uint64_t inside = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] < 0 ||
        __builtin_mul_overflow(inside, static_cast<std::uint64_t>(shape[i]), &inside))
      return false;
    if (std::find(borders.begin(), borders.end(), inside) == borders.end()) return false;
  }
  return inside == borders.back();
}

std::string TensorShape::text() const {
  std::string sizes, names;
  for (const TensorAxis& axis : axes) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(axis.size);
    names += (names.empty() ? "" : ", ") + std::string(axis.name);
  }
  return "(" + sizes + "): " + names;
}

Result<std::vector<TensorShape>> tensor_shapes(const PagedCache& cache,
                                               const KvGeometry& geometry) {
  if (cache.strides) return std::vector<TensorShape>();
  const CacheShape shape{geometry, cache.page_tokens, cache.pages, cache.page_stride_bytes};
  CACHALOT_TRY(shape.check());
  CACHALOT_TRY_ASSIGN(const kv::Layout* const row, kv::find_layout(cache.layout));
  const Form& form = row->form(geometry.attention);
  CACHALOT_TRY_ASSIGN(const kv::EngineStrides strides, kv::strides_of(form, shape, row->name));
  if (has_gaps(form, shape)) return std::vector<TensorShape>();
  std::vector<TensorShape> shapes(strides.tensors);
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
    for (std::uint32_t part = 0; part < kParts; ++part) {
      const PartStrides& place = strides.part[part];
      TensorShape& tensor = shapes[place.tensor + std::size_t{layer} * place.layer_tensors];
      if (tensor.axes.empty())
        tensor = {holds_of(form, shape, layer, part), axes_of(form.order, shape, part)};
    }
  }
  return shapes;
}

std::string layout_legend() {
  std::string text =
      "Axes of a tensor, slowest first: L layers, K keys and values (or latent and rope),\n"
      "B pages, N tokens of a page, H heads, C numbers of a head (head_dim, or of the latent).\n"
      "KC: both parts of a head side by side in one axis.\n\n";
  for (const kv::Layout& layout : kv::layouts()) {
    if (layout.refusal != nullptr) continue;
    const std::string grouped = form_text(layout.grouped, Attention::kGrouped),
                      latent = form_text(layout.latent, Attention::kLatent);
    std::string name = layout.name;
    name.resize(std::max<std::size_t>(26, name.size()), ' ');
    text += name + grouped;
    if (!latent.empty()) text += (grouped.empty() ? "latents: " : "; latents: ") + latent;
    text += '\n';
  }
  return text;
}

}  // namespace cachalot
