#include "kv/cache_bounds.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

namespace cachalot::kv {
namespace {

struct Step {
  const char* name;
  std::uint64_t count, stride;
};

std::vector<Step> steps_of(const CacheShape& shape, const PartStrides& part) {
  return {{"layer", part.layer_tensors == 0 ? shape.geometry.layers : 1, part.layer},
          {"page", shape.pages, part.page},
          {"head", shape.geometry.heads(), part.head},
          {"token", shape.tokens_of_page(), part.token}};
}

// Bytes from the tensor's start to the end of the part's last element. @return false: beyond 2^63
bool reach_of(const CacheShape& shape, const EngineStrides& strides, std::uint32_t k,
              std::uint64_t& reach) {
  reach = shape.geometry.content_bytes(k);
  if (__builtin_add_overflow(reach, strides.part[k].offset, &reach)) return false;
  for (const Step& step : steps_of(shape, strides.part[k])) {
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(step.stride, step.count - 1, &bytes) ||
        __builtin_add_overflow(reach, bytes, &reach)) {
      return false;
    }
  }
  return reach >> 63 == 0;
}

// Calls f(tensor) for each tensor that holds something of the part.
template <class F>
void for_each_tensor(const CacheShape& shape, const PartStrides& part, F&& f) {
  const std::uint32_t layers = part.layer_tensors == 0 ? 1 : shape.geometry.layers;
  for (std::uint64_t l = 0; l < layers; ++l) f(part.tensor + l * part.layer_tensors);
}

Error misplaced(std::uint32_t k, const char* what, std::uint64_t value, const char* expected,
                std::uint64_t than) {
  return Error::make(Code::kInvalidArgument,
                     "engine cache: part %u: %s is %" PRIu64 ", expected %s %" PRIu64, k, what,
                     value, expected, than);
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

// Sorted by stride, each must step over all that is inside it. That is sufficient, and every layout
// that is a permutation of dimensions passes.
Status check_apart(std::vector<Step> steps, std::uint64_t inside, std::uint32_t k) {
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.stride < b.stride; });
  for (const Step& step : steps) {
    if (step.count <= 1) continue;
    if (step.stride < inside) {
      return misplaced(k, step.name, step.stride, "a stride of at least the bytes inside it,",
                       inside);
    }
    inside += step.stride * (step.count - 1);  // reach_of() saw that it fits
  }
  return {};
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
  std::uint64_t reach = 0;
  if (!reach_of(shape, strides, k, reach)) {
    return Error::make(Code::kInvalidArgument, "engine cache: part %u reaches beyond 2^63 bytes",
                       k);
  }
  CACHALOT_TRY(check_apart(steps_of(shape, part), shape.geometry.content_bytes(k), k));
  Status status;
  for_each_tensor(shape, part, [&](std::uint64_t tensor) {
    if (!status) return;
    if (tensor >= tensors.size()) {
      status = misplaced(k, "tensor", tensor, "a number below", tensors.size());
    } else if (tensors[tensor].bytes < reach) {
      status = Error::make(Code::kInvalidArgument,
                           "engine cache: tensor %" PRIu64 " has %" PRIu64
                           " bytes, expected at least %" PRIu64,
                           tensor, tensors[tensor].bytes, reach);
    }
  });
  return status;
}

bool share_a_tensor(const CacheShape& shape, const EngineStrides& strides) {
  std::vector<bool> used(strides.tensors);
  bool shared = false;
  for_each_tensor(shape, strides.part[0], [&](std::uint64_t tensor) { used[tensor] = true; });
  for_each_tensor(shape, strides.part[1], [&](std::uint64_t tensor) { shared |= used[tensor]; });
  return shared;
}

// Two parts in one tensor: one behind the other, or interleaved with equal strides.
Status check_parts_apart(const CacheShape& shape, const EngineStrides& strides) {
  std::uint64_t reach[kParts] = {};
  for (std::uint32_t k = 0; k < kParts; ++k) (void)reach_of(shape, strides, k, reach[k]);
  const PartStrides &a = strides.part[0], &b = strides.part[1];
  if (reach[0] <= b.offset || reach[1] <= a.offset) return {};
  if (a.layer != b.layer || a.page != b.page || a.head != b.head || a.token != b.token) {
    return misplaced(1, "offset", b.offset, "the strides of part 0, or one beyond", reach[0]);
  }
  const std::uint32_t first = a.offset <= b.offset ? 0 : 1;
  const std::uint64_t distance = strides.part[1 - first].offset - strides.part[first].offset;
  if (distance < shape.geometry.content_bytes(first)) {
    return misplaced(1, "offset", b.offset, "a place outside part 0, which begins at", a.offset);
  }
  std::vector<Step> steps = steps_of(shape, a);
  bool innermost = true;
  for (const Step& step : steps) innermost &= step.count <= 1 || distance < step.stride;
  // Innermost, the two may differ in size: together they are what every step goes over.
  if (innermost) {
    return check_apart(std::move(steps), distance + shape.geometry.content_bytes(1 - first), 1);
  }
  steps.push_back({"offset", kParts, distance});
  const std::uint64_t inside =
      std::max(shape.geometry.content_bytes(0), shape.geometry.content_bytes(1));
  return check_apart(std::move(steps), inside, 1);
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

// What a tensor takes up: all its pages, or where pages are its outermost dimension, `page` bytes of
// every `stride`.
struct Place {
  std::size_t tensor = 0;
  std::uintptr_t begin = 0, end = 0;
  std::uint64_t page = 0, stride = 0;  // 0: it has other things outside its pages

  bool may_interleave(const Place& other) const { return stride != 0 && stride == other.stride; }
};

std::vector<Place> places_of(const CacheShape& shape, const EngineStrides& strides,
                             std::span<const Tensor> tensors) {
  CacheShape one_page = shape;
  one_page.pages = 1;
  std::vector<Place> places(strides.tensors);
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (shape.geometry.content_bytes(k) == 0) continue;
    std::uint64_t reach = 0, page = 0;
    (void)reach_of(shape, strides, k, reach);
    (void)reach_of(one_page, strides, k, page);
    for_each_tensor(shape, strides.part[k], [&](std::uint64_t tensor) {
      Place& place = places[tensor];
      place.begin = reinterpret_cast<std::uintptr_t>(tensors[tensor].at);
      place.end = std::max(place.end, place.begin + reach);
      place.page = std::max(place.page, page);
      place.stride = strides.part[k].page;
    });
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i].tensor = i;
    if (places[i].page > places[i].stride) places[i].stride = 0;
  }
  std::erase_if(places, [](const Place& place) { return place.end == 0; });
  return places;
}

Error overlap(const Place& a, const Place& b, const char* expected) {
  return Error::make(Code::kInvalidArgument,
                     "engine cache: tensors %zu and %zu overlap: %" PRIu64 " bytes at 0x%" PRIxPTR
                     " and %" PRIu64 " at 0x%" PRIxPTR ", expected %s",
                     std::min(a.tensor, b.tensor), std::max(a.tensor, b.tensor),
                     std::uint64_t{a.end - a.begin}, a.begin, std::uint64_t{b.end - b.begin},
                     b.begin, expected);
}

// Tensors of which each begins before another one's end: pages of one in the gaps of the others', or
// overlapping. They come by address, and are compared modulo the stride, in order.
Status check_interleaved(std::span<Place> places) {
  for (std::size_t i = 1, widest = 0; i < places.size(); ++i) {
    if (!places[i].may_interleave(places[widest])) {
      return overlap(places[widest], places[i], "memory of their own");
    }
    if (places[i].end > places[widest].end) widest = i;
  }
  const std::uint64_t stride = places[0].stride;
  std::sort(places.begin(), places.end(),
            [&](const Place& a, const Place& b) { return a.begin % stride < b.begin % stride; });
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Place &a = places[i], &b = places[(i + 1) % places.size()];
    const std::uint64_t next = b.begin % stride + (i + 1 == places.size() ? stride : 0);
    if (next - a.begin % stride < a.page) return overlap(a, b, "pages that do not meet");
  }
  return {};
}

Status check_tensors_apart(const CacheShape& shape, const EngineStrides& strides,
                           std::span<const Tensor> tensors) {
  std::vector<Place> places = places_of(shape, strides, tensors);
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (std::size_t first = 0, last; first < places.size(); first = last) {
    std::uintptr_t end = places[first].end;
    for (last = first + 1; last < places.size() && places[last].begin < end; ++last) {
      end = std::max(end, places[last].end);
    }
    if (last - first > 1)
      CACHALOT_TRY(check_interleaved(std::span(places).subspan(first, last - first)));
  }
  return {};
}

}  // namespace

Status check_bounds(const CacheShape& shape, const EngineStrides& strides,
                    std::span<const Tensor> tensors) {
  bool both = true;
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (shape.geometry.content_bytes(k) == 0) {
      both = false;
      continue;
    }
    CACHALOT_TRY(check_part(shape, strides, tensors, k));
  }
  if (both && share_a_tensor(shape, strides)) CACHALOT_TRY(check_parts_apart(shape, strides));
  CACHALOT_TRY(check_aligned(shape, tensors));
  return check_tensors_apart(shape, strides, tensors);
}

Status check_exact_bytes(const CacheShape& shape, const EngineStrides& strides,
                         std::span<const Tensor> tensors, const char* layout) {
  std::vector<std::uint64_t> ends(strides.tensors);
  for (std::uint32_t k = 0; k < kParts; ++k) {
    if (shape.geometry.content_bytes(k) == 0) continue;
    std::uint64_t reach = 0;
    if (!reach_of(shape, strides, k, reach)) {
      return Error::make(Code::kInvalidArgument, "layout: %s: a tensor exceeds 2^63 bytes", layout);
    }
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
