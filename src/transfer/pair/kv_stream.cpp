#include "transfer/pair/kv_stream.h"

#include <cinttypes>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

namespace cachalot::transfer {
namespace {

using kv::EngineCache;

Status check_range(const char* what, Range range, std::uint32_t count) {
  if (range.first < range.last && range.last <= count) return {};
  return Error::make(Code::kInvalidArgument,
                     "KV stream: %s [%u, %u), expected a range in the %u of this rank", what,
                     range.first, range.last, count);
}

Status check_slice(const EngineCache& cache, const KvSlice& slice) {
  CACHALOT_TRY(check_range("layers", slice.layers, cache.geometry().layers));
  CACHALOT_TRY(check_range("heads", slice.heads, cache.geometry().heads()));
  const std::uint64_t have = slice.pages.size() * std::uint64_t{cache.page_tokens()};
  if (slice.tokens == 0 || slice.first_token > have || slice.tokens > have - slice.first_token) {
    return Error::make(Code::kInvalidArgument,
                       "KV stream: %" PRIu64 " tokens from token %" PRIu64
                       " on, expected 1 or more in the %" PRIu64 " of %zu pages",
                       slice.tokens, slice.first_token, have, slice.pages.size());
  }
  return {};
}

// Whether part 1 of every element is the same distance from part 0, and that distance; else 0. It depends on the
// layout, never on where tensors happen to lie.
std::int64_t part_step(const EngineCache& cache) {
  const PartStrides &a = cache.strides().part[0], &b = cache.strides().part[1];
  PartStrides moved = a;
  moved.offset = b.offset;
  if (!(moved == b)) return 0;
  return static_cast<std::int64_t>(b.offset) - static_cast<std::int64_t>(a.offset);
}

StreamShape shape_of(const EngineCache& cache, const KvSlice& slice) {
  StreamShape shape;
  shape.heads = slice.heads.count();
  // If the stream begins inside a page, this many tokens from there on are in one page, and so on.
  shape.page_tokens =
      std::gcd(std::uint64_t{cache.page_tokens()}, slice.first_token % cache.page_tokens());
  for (std::uint32_t part = 0; part < kParts; ++part) {
    const PartStrides& strides = cache.strides().part[part];
    shape.part[part] = {cache.geometry().content_bytes(part), strides.token, strides.head};
  }
  if (shape.part[1].content_bytes != 0) shape.part_step = part_step(cache);
  return shape;
}

// Builds the sections of one stream.
class StreamMaker {
 public:
  StreamMaker(const EngineCache& cache, const KvSlice& slice, const StreamShape& shape,
              const StreamOrder& order)
      : cache_(cache),
        slice_(slice),
        shape_(shape),
        loops_(loop_letters(order.loops)),
        unit_(order.page_tokens),
        packed_(is_packed(shape, order.loops)) {}

  Result<ByteStream> make() {
    const bool apart = loops_[0] == 'K';
    for (std::uint32_t part = 0; part < kParts; ++part) {
      if (part > 0 && (!apart || shape_.part[part].content_bytes == 0)) break;
      const std::uint64_t rest = unit_ == 0 ? 0 : slice_.tokens % unit_;
      if (slice_.tokens > rest) CACHALOT_TRY(add_pages(part, slice_.tokens - rest));
      if (rest > 0) CACHALOT_TRY(add_rest(part, rest));
    }
    return ByteStream::make(slice_.layers.count(), std::move(sections_));
  }

 private:
  const PartStrides& strides(std::uint32_t part) const { return cache_.strides().part[part]; }

  // Places of the pages, or of the parts of pages that a stream has if it begins inside a page.
  std::vector<std::uint64_t> page_offsets(std::uint32_t part, std::uint64_t tokens) const {
    const PartStrides& at = strides(part);
    const std::uint64_t step = shape_.page_tokens, page_tokens = cache_.page_tokens();
    std::uint64_t page = slice_.first_token / page_tokens;
    std::uint64_t inside = slice_.first_token % page_tokens;
    std::vector<std::uint64_t> offsets((tokens - 1) / step + 1);
    for (std::uint64_t& offset : offsets) {
      offset = slice_.pages[page] * at.page + inside * at.token;
      inside += step;
      if (inside == page_tokens) {
        inside = 0;
        ++page;
      }
    }
    return offsets;
  }

  // All whole units, or all tokens if the order has no pages.
  Status add_pages(std::uint32_t part, std::uint64_t tokens) {
    const std::uint64_t stride = strides(part).token, inside = shape_.page_tokens;
    std::vector<Axis> axes;
    for (const char* loop = loops_; *loop != 0; ++loop) {
      if (*loop == 'B') {
        axes.push_back({.count = tokens / unit_,
                        .stride = unit_ * stride,
                        .offsets = page_offsets(part, tokens),
                        .per_offset = inside / unit_});
      } else if (*loop == 'N' && unit_ == 0) {
        axes.push_back({.count = tokens,
                        .stride = stride,
                        .offsets = page_offsets(part, tokens),
                        .per_offset = inside});
      } else {
        add_loop(*loop, part, unit_, axes);
      }
    }
    return add_section(part, 0, std::move(axes));
  }

  // The tokens after the last whole unit: they are in one page.
  Status add_rest(std::uint32_t part, std::uint64_t tokens) {
    const std::uint64_t token = slice_.first_token + slice_.tokens - tokens;
    const std::uint64_t page = slice_.pages[token / cache_.page_tokens()];
    std::vector<Axis> axes;
    for (const char* loop = loops_; *loop != 0; ++loop) add_loop(*loop, part, tokens, axes);
    return add_section(
        part, page * strides(part).page + token % cache_.page_tokens() * strides(part).token,
        std::move(axes));
  }

  // A loop whose steps have one stride.
  void add_loop(char loop, std::uint32_t part, std::uint64_t tokens,
                std::vector<Axis>& axes) const {
    if (loop == 'N') axes.push_back({.count = tokens, .stride = strides(part).token});
    if (loop == 'H') axes.push_back({.count = shape_.heads, .stride = strides(part).head});
    const bool inner_parts = loop == 'K' && loops_[0] != 'K' && !packed_;
    if (inner_parts && shape_.part_step > 0) {
      axes.push_back({.count = kParts, .stride = static_cast<std::uint64_t>(shape_.part_step)});
    } else if (inner_parts && shape_.part_step < 0) {
      axes.push_back({.count = kParts, .offsets = {part_back(), 0}});
    }
  }

  // How far part 1 lies before part 0.
  std::uint64_t part_back() const {
    const bool inner = loops_[0] != 'K' && shape_.part_step < 0;
    return inner ? static_cast<std::uint64_t>(-shape_.part_step) : 0;
  }

  Status add_section(std::uint32_t part, std::uint64_t offset, std::vector<Axis> axes) {
    const PartStrides& at = strides(part);
    const Range layers = slice_.layers;
    std::uint64_t base =
        at.offset + layers.first * at.layer + slice_.heads.first * at.head + offset - part_back();
    Axis layer{.count = layers.count(), .stride = at.layer};
    if (at.layer_tensors == 0) {
      base += address(at.tensor);
    } else {
      for (std::uint32_t i = 0; i < layers.count(); ++i) {
        layer.offsets.push_back(address(at.tensor + (layers.first + i) * at.layer_tensors) +
                                i * at.layer);
      }
    }
    axes.insert(axes.begin(), std::move(layer));
    const std::uint64_t content =
        shape_.part[part].content_bytes + (packed_ ? shape_.part[1].content_bytes : 0);
    CACHALOT_TRY_ASSIGN(Strided section, Strided::make(base, std::move(axes), content));
    sections_.push_back(std::move(section));
    return {};
  }

  std::uint64_t address(std::uint32_t tensor) const {
    return reinterpret_cast<std::uintptr_t>(cache_.bases()[tensor]);
  }

  const EngineCache& cache_;
  const KvSlice& slice_;
  const StreamShape& shape_;
  const char* const loops_;
  const std::uint64_t unit_;
  const bool packed_;
  std::vector<Strided> sections_;
};

Status check_pages(const EngineCache& cache, const KvSlice& slice) {
  const std::uint64_t last = (slice.first_token + slice.tokens - 1) / cache.page_tokens();
  for (std::uint64_t i = slice.first_token / cache.page_tokens(); i <= last; ++i) {
    if (slice.pages[i] < cache.pages()) continue;
    return Error::make(Code::kInvalidArgument,
                       "KV stream: page %" PRIu64
                       " of the request has the id %u, expected one below the %u of the cache",
                       i, slice.pages[i], cache.pages());
  }
  return {};
}

}  // namespace

Result<StreamShape> stream_shape(const EngineCache& cache, const KvSlice& slice) {
  CACHALOT_TRY(check_slice(cache, slice));
  return shape_of(cache, slice);
}

Result<ByteStream> kv_stream(const EngineCache& cache, const KvSlice& slice,
                             const StreamOrder& order) {
  CACHALOT_TRY(check_slice(cache, slice));
  CACHALOT_TRY(check_pages(cache, slice));
  const StreamShape shape = shape_of(cache, slice);
  if (!is_possible(shape, order)) {
    const char* const loops = loop_letters(order.loops);
    return Error::make(
        Code::kInvalidArgument,
        "KV stream: order %s with pages of %u tokens, expected one that a cache with "
        "%" PRIu64 " tokens together has",
        loops == nullptr ? "unknown" : loops, order.page_tokens, shape.page_tokens);
  }
  return StreamMaker(cache, slice, shape, order).make();
}

}  // namespace cachalot::transfer
