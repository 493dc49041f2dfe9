// The KV cache of a request as a byte stream: layers and heads of some pages, in an order that both sides know.
//
//   CACHALOT_TRY_ASSIGN(ByteStream stream, kv_stream(cache, {pages, 0, tokens, layers, heads}, order));
//
// Turn l of the stream is layer layers.first + l, so a layer-wise push sends the ranges
// [l * turn_bytes(), (l + 1) * turn_bytes()). Source and destination may have other layouts, page sizes, page ids, and
// numbers of heads: the streams are equally long and have the same bytes at the same place.
//
// 1. Every address is inside a tensor of the cache.
// 2. The stream has every byte of the slice once. (A page id that occurs twice in a destination is the caller's fault,
//    and leaves the bytes of one of both places.)
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

#include "kv/engine_cache.h"
#include "transfer/pair/range.h"
#include "transfer/pair/stream_order.h"
#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

// The part of a cache that a stream has.
struct KvSlice {
  std::span<const std::uint32_t> pages;  // of the request, in the order of its tokens
  std::uint64_t first_token = 0;         // of the stream, counted from the first token of pages[0]
  std::uint64_t tokens = 0;              // the last page may be partly used
  Range layers, heads;                   // of this rank
};

// @errors kInvalidArgument: layers, heads or tokens out of range
Result<StreamShape> stream_shape(const kv::EngineCache& cache, const KvSlice& slice);

// @errors kInvalidArgument: layers, heads, tokens or a page id out of range; an order that the cache has not
// @threads any; the cache is only read
// @cost    some nanoseconds a page, and none a layer
Result<ByteStream> kv_stream(const kv::EngineCache& cache, const KvSlice& slice,
                             const StreamOrder& order);

}  // namespace cachalot::transfer
