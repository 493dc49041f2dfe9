#include "kv/cache_bounds.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <string>
#include <vector>

#include "kv/overlap.h"

namespace cachalot::kv {
namespace {

// Of the search for overlaps: about a second. Strides that nest, of the caches of any engine known, take less
// than a hundredth of it.
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 25;

struct Step {
  const char* name;
  std::uint64_t count, stride;
};
using Steps = std::array<Step, kPlaneDimensions>;

Steps steps_of(const CacheShape& shape, const PartStrides& part) {
  return {{{"layer", part.layer_tensors == 0 ? shape.geometry.layers : 1, part.layer},
           {"page", shape.pages, part.page},
           {"head", shape.geometry.heads(), part.head},
           {"token", shape.tokens_of_page(), part.token}}};
}

Error misplaced(std::uint32_t k, const char* what, std::uint64_t value, const char* expected,
                std::uint64_t than) {
  return Error::make(Code::kInvalidArgument,
                     "engine cache: part %u: %s is %" PRIu64 ", expected %s %" PRIu64, k, what,
                     value, expected, than);
}

// Bytes from the tensor's start to the end of the part's last element.
// @errors kInvalidArgument: 2^63 or more; names the field that leads there
Result<std::uint64_t> reach_of(const CacheShape& shape, const EngineStrides& strides,
                               std::uint32_t k) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0} >> 1;
  const PartStrides& part = strides.part[k];
  std::uint64_t reach = shape.geometry.content_bytes(k);
  if (__builtin_add_overflow(reach, part.offset, &reach) || reach > kMost) {
    return misplaced(k, "offset", part.offset, "an end within 2^63 bytes, after", reach);
  }
  for (const Step& step : steps_of(shape, part)) {
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(step.stride, step.count - 1, &bytes) ||
        __builtin_add_overflow(reach, bytes, &reach) || reach > kMost) {
      return Error::make(Code::kInvalidArgument,
                         "engine cache: part %u: %s is %" PRIu64 ", expected that %s %" PRIu64
                         " ends within 2^63 bytes",
                         k, step.name, step.stride, step.name, step.count - 1);
    }
  }
  return reach;
}

// Calls f(tensor) for each tensor that holds something of the part.
template <class F>
void for_each_tensor(const CacheShape& shape, const PartStrides& part, F&& f) {
  const std::uint32_t layers = part.layer_tensors == 0 ? 1 : shape.geometry.layers;
  for (std::uint64_t l = 0; l < layers; ++l) f(part.tensor + l * part.layer_tensors);
}

Status check_alignment(const CacheShape& shape, const PartStrides& part, std::uint32_t k) {
  const std::uint64_t unit = geometry::dtype_bytes(shape.geometry.dtype);
  for (const Step& step : steps_of(shape, part)) {
    if (step.stride % unit != 0) {
      return misplaced(k, step.name, step.stride, "a stride that is a multiple of", unit);
    }
  }
  if (part.offset % unit != 0) return misplaced(k, "offset", part.offset, "a multiple of", unit);
  return {};
}

// "offset 128, page 5 x 256, head 1 x 16, content 16"
std::string terms_of(const CacheShape& shape, const PartStrides& part, std::uint32_t k) {
  std::string terms = "offset " + std::to_string(part.offset);
  for (const Step& step : steps_of(shape, part)) {
    if (step.count <= 1 || step.stride == 0) continue;
    terms += std::string(", ") + step.name + " " + std::to_string(step.count - 1) + " x " +
             std::to_string(step.stride);
  }
  return terms + ", content " + std::to_string(shape.geometry.content_bytes(k));
}

Status check_part(const CacheShape& shape, const EngineStrides& strides,
                  std::span<const Tensor> tensors, std::uint32_t k) {
  const PartStrides& part = strides.part[k];
  if (part.layer_tensors != strides.part[0].layer_tensors) {
    return misplaced(k, "layer_tensors", part.layer_tensors, "as part 0 has it,",
                     strides.part[0].layer_tensors);
  }
  if (part.layer_tensors != 0 && part.layer != 0) {
    return misplaced(k, "layer", part.layer, "no stride where each layer is a tensor:", 0);
  }
  CACHALOT_TRY(check_alignment(shape, part, k));
  CACHALOT_TRY_ASSIGN(const std::uint64_t reach, reach_of(shape, strides, k));
  Status status;
  for_each_tensor(shape, part, [&](std::uint64_t tensor) {
    if (!status) return;
    if (tensor >= tensors.size()) {
      status = misplaced(k, "tensor", tensor, "a number below", tensors.size());
    } else if (tensors[tensor].bytes < reach) {
      status =
          Error::make(Code::kInvalidArgument,
                      "engine cache: tensor %" PRIu64 " has %" PRIu64
                      " bytes, expected at least %" PRIu64 " for part %u: %s",
                      tensor, tensors[tensor].bytes, reach, k, terms_of(shape, part, k).c_str());
    }
  });
  return status;
}

Status check_aligned(const CacheShape& shape, std::span<const Tensor> tensors) {
  const std::uint64_t unit = geometry::dtype_bytes(shape.geometry.dtype);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (reinterpret_cast<std::uintptr_t>(tensors[i].at) % unit == 0) continue;
    return Error::make(Code::kInvalidArgument,
                       "engine cache: tensor %zu at %p, expected a multiple of %" PRIu64, i,
                       static_cast<const void*>(tensors[i].at), unit);
  }
  return {};
}

// What a part has in one tensor: all its layers, or one.
struct PartPlane {
  Plane plane;
  std::uint64_t end = 0;
  std::uint32_t part = 0;
  std::uint64_t tensor = 0, first_layer = 0;
};

std::vector<PartPlane> planes_of(const CacheShape& shape, const EngineStrides& strides,
                                 std::span<const Tensor> tensors) {
  std::vector<PartPlane> planes;
  for (std::uint32_t k = 0; k < kParts; ++k) {
    const std::uint64_t bytes = shape.geometry.content_bytes(k);
    if (bytes == 0) continue;
    const PartStrides& part = strides.part[k];
    PartPlane one;
    one.part = k;
    one.plane.bytes = bytes;
    const Steps steps = steps_of(shape, part);
    for (std::uint32_t d = 0; d < kPlaneDimensions; ++d) {
      one.plane.count[d] = steps[d].count;
      one.plane.stride[d] = steps[d].stride;
    }
    const std::uint64_t reach = *reach_of(shape, strides, k);  // check_part() saw that it fits
    for_each_tensor(shape, part, [&](std::uint64_t tensor) {
      one.tensor = tensor;
      one.plane.at = reinterpret_cast<std::uintptr_t>(tensors[tensor].at) + part.offset;
      one.end = one.plane.at - part.offset + reach;
      planes.push_back(one);
      ++one.first_layer;
    });
  }
  return planes;
}

std::string element_of(const PartPlane& plane, const std::uint64_t (&index)[kPlaneDimensions]) {
  return "layer " + std::to_string(plane.first_layer + index[0]) + ", page " +
         std::to_string(index[1]) + ", head " + std::to_string(index[2]) + ", token " +
         std::to_string(index[3]);
}

// Names the largest stride of those in which the two elements differ: the others have to fit inside it.
Error overlap_within(const PartPlane& plane, const Steps& steps, const Overlap& overlap) {
  const Step* blamed = nullptr;
  for (std::uint32_t d = 0; d < kPlaneDimensions; ++d) {
    const bool differs = overlap.first[d] != overlap.second[d];
    if (differs && (blamed == nullptr || steps[d].stride >= blamed->stride)) blamed = &steps[d];
  }
  return Error::make(
      Code::kInvalidArgument,
      "engine cache: part %u: %s is %" PRIu64 ", expected a stride that keeps apart (%s) and (%s)",
      plane.part, blamed->name, blamed->stride, element_of(plane, overlap.first).c_str(),
      element_of(plane, overlap.second).c_str());
}

Error overlap_between(const EngineStrides& strides, const PartPlane& a, const PartPlane& b,
                      const Overlap& overlap) {
  const std::string first = element_of(a, overlap.first), second = element_of(b, overlap.second);
  if (a.tensor == b.tensor) {
    return Error::make(Code::kInvalidArgument,
                       "engine cache: part %u: offset is %" PRIu64
                       ", expected one that keeps apart part %u (%s) and part %u (%s)",
                       std::max(a.part, b.part), strides.part[std::max(a.part, b.part)].offset,
                       a.part, first.c_str(), b.part, second.c_str());
  }
  const bool in_order = a.tensor < b.tensor;
  return Error::make(Code::kInvalidArgument,
                     "engine cache: tensors %" PRIu64 " and %" PRIu64
                     " overlap: part %u (%s) and part %u (%s) share a byte",
                     std::min(a.tensor, b.tensor), std::max(a.tensor, b.tensor),
                     (in_order ? a : b).part, (in_order ? first : second).c_str(),
                     (in_order ? b : a).part, (in_order ? second : first).c_str());
}

Error too_involved() {
  return Error::make(Code::kInvalidArgument,
                     "engine cache: whether elements overlap was not found in %" PRIu64
                     " steps, expected strides of which each steps over what is inside it",
                     kMostSteps);
}

Status check_apart(const CacheShape& shape, const EngineStrides& strides,
                   std::span<const Tensor> tensors) {
  std::vector<PartPlane> planes = planes_of(shape, strides, tensors);
  OverlapSearch search(kMostSteps);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    if (i > 0 && planes[i].part == planes[i - 1].part) continue;  // of the same strides
    const Steps steps = steps_of(shape, strides.part[planes[i].part]);
    if (const auto overlap = search.within(planes[i].plane))
      return overlap_within(planes[i], steps, *overlap);
  }
  std::sort(planes.begin(), planes.end(),
            [](const PartPlane& a, const PartPlane& b) { return a.plane.at < b.plane.at; });
  for (std::size_t i = 0; i < planes.size(); ++i) {
    for (std::size_t j = i + 1; j < planes.size() && planes[j].plane.at < planes[i].end; ++j) {
      if (const auto overlap = search.between(planes[i].plane, planes[j].plane))
        return overlap_between(strides, planes[i], planes[j], *overlap);
      if (search.gave_up()) return too_involved();
    }
  }
  if (search.gave_up()) return too_involved();
  return {};
}

}  // namespace

Status check_bounds(const CacheShape& shape, const EngineStrides& strides,
                    std::span<const Tensor> tensors) {
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (shape.geometry.content_bytes(k) != 0) CACHALOT_TRY(check_part(shape, strides, tensors, k));
  }
  CACHALOT_TRY(check_aligned(shape, tensors));
  return check_apart(shape, strides, tensors);
}

Status check_tensors_used(const CacheShape& shape, const EngineStrides& strides) {
  std::vector<bool> used(strides.tensors);
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (shape.geometry.content_bytes(k) == 0) continue;
    for_each_tensor(shape, strides.part[k], [&](std::uint64_t tensor) { used[tensor] = true; });
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused == used.end()) return {};
  return Error::make(Code::kInvalidArgument,
                     "engine cache: tensor %td holds no part of any layer, expected one that does",
                     unused - used.begin());
}

Status check_exact_bytes(const CacheShape& shape, const EngineStrides& strides,
                         std::span<const Tensor> tensors, const char* layout) {
  std::vector<std::uint64_t> ends(strides.tensors);
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (shape.geometry.content_bytes(k) == 0) continue;
    CACHALOT_TRY_ASSIGN(const std::uint64_t reach, reach_of(shape, strides, k));
    for_each_tensor(shape, strides.part[k],
                    [&](std::uint64_t tensor) { ends[tensor] = std::max(ends[tensor], reach); });
  }
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (tensors[i].bytes >= ends[i] && tensors[i].bytes - ends[i] <= shape.page_stride_bytes) {
      continue;
    }
    return Error::make(Code::kInvalidArgument,
                       "layout: %s: tensor %zu has %" PRIu64 " bytes, expected %" PRIu64, layout, i,
                       tensors[i].bytes, ends[i]);
  }
  return {};
}

}  // namespace cachalot::kv
