#include "transfer/pair/convert.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace cachalot::transfer {
namespace {

using kv::CacheShape;
using kv::EngineCache;
using kv::EngineStrides;

struct BufferShape {
  CacheShape cache;
  EngineStrides strides;
  std::uint64_t bytes = 0;
};

// The order's loops as those of a tensor: layers first, pages before their tokens.
Result<BufferShape> buffer_shape_of(const KvGeometry& geometry, const StreamOrder& order,
                                    std::uint64_t tokens) {
  const char* const letters = loop_letters(order.loops);
  const bool has_page = letters != nullptr && std::strchr(letters, 'B') != nullptr;
  if (letters == nullptr || has_page != (order.page_tokens != 0) || tokens == 0 ||
      tokens > std::numeric_limits<std::uint32_t>::max()) {
    return Error::make(Code::kInvalidArgument,
                       "request buffer: %" PRIu64
                       " tokens in the order %s with pages of %u tokens, expected 1 to 2^32 - 1 "
                       "tokens in an order of a KV stream",
                       tokens, letters == nullptr ? "unknown" : letters, order.page_tokens);
  }
  const bool grouped = geometry.attention == Attention::kGrouped;
  std::string dimensions = "L";
  for (const char* letter = letters; *letter != 0; ++letter) {
    if (*letter == 'N' && !has_page) dimensions += 'B';
    if (*letter != 'H' || grouped) dimensions += *letter;
  }
  dimensions += 'C';

  BufferShape shape;
  shape.cache.geometry = geometry;
  shape.cache.page_tokens = has_page ? order.page_tokens : static_cast<std::uint32_t>(tokens);
  shape.cache.geometry.block_tokens = shape.cache.page_tokens;
  shape.cache.pages = static_cast<std::uint32_t>((tokens - 1) / shape.cache.page_tokens + 1);
  CACHALOT_TRY(shape.cache.geometry.check());
  CACHALOT_TRY_ASSIGN(shape.strides,
                      kv::strides_of({dimensions.c_str(), ""}, shape.cache, "request buffer"));
  if (__builtin_mul_overflow(shape.cache.geometry.block_bytes(), shape.cache.pages, &shape.bytes) ||
      shape.bytes >> 63 != 0) {
    return Error::make(Code::kInvalidArgument,
                       "request buffer: %" PRIu64 " tokens exceed 2^63 bytes", tokens);
  }
  return shape;
}

}  // namespace

Result<std::uint64_t> RequestBuffer::bytes(const KvGeometry& geometry, const StreamOrder& order,
                                           std::uint64_t tokens) {
  CACHALOT_TRY_ASSIGN(const BufferShape shape, buffer_shape_of(geometry, order, tokens));
  return shape.bytes;
}

Result<RequestBuffer> RequestBuffer::make(const KvGeometry& geometry, const StreamOrder& order,
                                          std::uint64_t tokens, std::span<std::byte> memory) {
  CACHALOT_TRY_ASSIGN(const BufferShape shape, buffer_shape_of(geometry, order, tokens));
  if (memory.size() < shape.bytes) {
    return Error::make(Code::kInvalidArgument, "request buffer: %zu bytes, expected %" PRIu64,
                       memory.size(), shape.bytes);
  }
  const kv::Tensor tensor{memory.data(), shape.bytes};
  CACHALOT_TRY_ASSIGN(EngineCache cache,
                      EngineCache::with_strides(shape.cache, shape.strides, {&tensor, 1}));
  std::vector<std::uint32_t> pages(shape.cache.pages);
  std::iota(pages.begin(), pages.end(), 0u);
  return RequestBuffer(std::move(cache), std::move(pages), tokens);
}

KvSlice RequestBuffer::slice(Range heads) const {
  return {pages_, 0, tokens_, {0, cache_.geometry().layers}, heads};
}

Result<StreamOrder> own_order(const EngineCache& cache, const KvSlice& slice) {
  CACHALOT_TRY_ASSIGN(const StreamShape shape, stream_shape(cache, slice));
  return choose_order(shape, shape);
}

Status repack(const EngineCache& from, const KvSlice& from_slice, const EngineCache& to,
              const KvSlice& to_slice) {
  CACHALOT_TRY_ASSIGN(const StreamShape source, stream_shape(from, from_slice));
  CACHALOT_TRY_ASSIGN(const StreamShape destination, stream_shape(to, to_slice));
  if (from_slice.layers.count() != to_slice.layers.count() ||
      from_slice.tokens != to_slice.tokens) {
    return Error::make(Code::kInvalidArgument,
                       "repack: %" PRIu64 " tokens of %u layers into %" PRIu64
                       " tokens of %u layers, expected equal numbers",
                       from_slice.tokens, from_slice.layers.count(), to_slice.tokens,
                       to_slice.layers.count());
  }
  CACHALOT_TRY_ASSIGN(const StreamOrder order, choose_order(source, destination));
  CACHALOT_TRY_ASSIGN(const ByteStream read, kv_stream(from, from_slice, order));
  CACHALOT_TRY_ASSIGN(const ByteStream write, kv_stream(to, to_slice, order));
  copy_between(read, write, 0, read.bytes());
  return {};
}

TokenShare share_of(std::uint64_t tokens, std::uint32_t page_tokens, std::uint32_t ranks,
                    std::uint32_t rank) {
  const std::uint64_t pages = tokens == 0 ? 0 : (tokens - 1) / page_tokens + 1;
  const std::uint64_t each = pages / ranks, more = pages % ranks;
  const auto first_page = [&](std::uint64_t r) { return r * each + std::min(r, more); };
  const std::uint64_t first = std::min(tokens, first_page(rank) * page_tokens);
  return {first, std::min(tokens, first_page(rank + std::uint64_t{1}) * page_tokens) - first};
}

Status take_shares(std::span<const RequestBuffer* const> shares, Range heads,
                   const EngineCache& own, const KvSlice& slice) {
  for (std::uint32_t rank = 0; rank < shares.size(); ++rank) {
    const TokenShare share =
        share_of(slice.tokens, own.page_tokens(), static_cast<std::uint32_t>(shares.size()), rank);
    if (share.tokens == 0) continue;
    if (shares[rank] == nullptr) {
      return Error::make(Code::kInvalidArgument,
                         "exchange: no share of rank %u, expected one with %" PRIu64 " tokens",
                         rank, share.tokens);
    }
    KvSlice part = slice;
    part.first_token += share.first;
    part.tokens = share.tokens;
    CACHALOT_TRY(repack(shares[rank]->cache(), shares[rank]->slice(heads), own, part));
  }
  return {};
}

}  // namespace cachalot::transfer
