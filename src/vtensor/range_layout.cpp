#include "vtensor/range_layout.h"

#include <cinttypes>
#include <limits>
#include <numeric>

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kMostRangeBytes = std::uint64_t{1} << 56;

}  // namespace

// In the order of a token's planes; for kPerLayer this is what repeats with each layer.
std::vector<RangeLayout::Width> RangeLayout::cut() const {
  if (layout_ == KvLayout::kFolded) return {{.token_bytes = shape_.token_bytes(), .planes = 1}};
  std::vector<Width> widths;
  for (const std::uint64_t bytes : shape_.part_bytes) {
    if (layout_ == KvLayout::kPerLayer) {
      widths.push_back({.token_bytes = bytes, .planes = shape_.layers});
    } else {
      widths.push_back({.token_bytes = bytes * shape_.layers, .planes = 1});
    }
  }
  return widths;
}

Status RangeLayout::place_planes() {
  const std::uint64_t rounds = widths_.front().planes;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (const Width& width : widths_) {
      std::uint64_t bytes = 0, end = 0;
      if (__builtin_mul_overflow(max_tokens_, width.token_bytes, &bytes) ||
          bytes > kMostRangeBytes || chunk_bytes_ > kMostRangeBytes ||
          (end = range_bytes_ + (bytes + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_) >
              kMostRangeBytes) {
        return Error::make(Code::kInvalidArgument,
                           "range: %" PRIu64 " tokens of %" PRIu64 " bytes in chunks of %" PRIu64
                           ", expected at most 2^56 bytes",
                           max_tokens_, shape_.token_bytes(), chunk_bytes_);
      }
      planes_.push_back({.at = range_bytes_, .token_bytes = width.token_bytes});
      range_bytes_ = end;
    }
  }
  return {};
}

// A plane ends with a chunk every chunk_bytes / gcd(chunk_bytes, token_bytes) tokens.
void RangeLayout::find_even_tokens() {
  for (const Width& width : widths_) {
    const std::uint64_t step = chunk_bytes_ / std::gcd(chunk_bytes_, width.token_bytes);
    const std::uint64_t factor = step / std::gcd(step, even_tokens_);
    if (__builtin_mul_overflow(even_tokens_, factor, &even_tokens_)) {
      even_tokens_ = std::numeric_limits<std::uint64_t>::max();
      return;
    }
  }
}

Result<RangeLayout> RangeLayout::make(const KvShape& shape, KvLayout layout,
                                      std::uint64_t chunk_bytes, std::uint64_t max_tokens) {
  CACHALOT_TRY(shape.check());
  if (chunk_bytes == 0 || max_tokens == 0) {
    return Error::make(Code::kInvalidArgument,
                       "range: %" PRIu64 " tokens in chunks of %" PRIu64
                       " bytes, expected at least 1 of each",
                       max_tokens, chunk_bytes);
  }
  RangeLayout made;
  made.shape_ = shape;
  made.layout_ = layout;
  made.chunk_bytes_ = chunk_bytes;
  made.max_tokens_ = max_tokens;
  made.widths_ = made.cut();
  CACHALOT_TRY(made.place_planes());
  made.find_even_tokens();
  return made;
}

RangeLayout::View RangeLayout::view(std::uint64_t layer, std::uint64_t part) const {
  const std::uint64_t parts = shape_.part_bytes.size();
  switch (layout_) {
    case KvLayout::kPerLayer: {
      const Plane& plane = planes_[layer * parts + part];
      return {.offset = plane.at, .stride = plane.token_bytes};
    }
    case KvLayout::kFoldedParts: {
      const Plane& plane = planes_[part];
      return {.offset = plane.at + layer * shape_.part_bytes[part], .stride = plane.token_bytes};
    }
    case KvLayout::kFolded:
      break;
  }
  std::uint64_t offset = layer * shape_.layer_token_bytes();
  for (std::uint64_t before = 0; before < part; ++before) offset += shape_.part_bytes[before];
  return {.offset = offset, .stride = planes_[0].token_bytes};
}

std::uint64_t RangeLayout::chunks(std::uint64_t tokens) const {
  std::uint64_t sum = 0;
  for (const Width& width : widths_) {
    sum += width.planes * ((tokens * width.token_bytes + chunk_bytes_ - 1) / chunk_bytes_);
  }
  return sum;
}

std::uint64_t RangeLayout::full_chunks(std::uint64_t tokens) const {
  std::uint64_t sum = 0;
  for (const Width& width : widths_) {
    sum += width.planes * (tokens * width.token_bytes / chunk_bytes_);
  }
  return sum;
}

}  // namespace cachalot::vtensor
