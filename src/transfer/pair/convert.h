// Other ways from one geometry to another, to compare with: convert before a transfer, after it, or by an exchange
// among the receiving ranks. A transfer of two KV streams (kv_stream.h) converts while it copies and needs none of this.
//
//   before    the source repacks into a RequestBuffer in the destination's own order; its stream is one run
//   after     the destination receives the source's own order in a RequestBuffer, and repacks into its pages
//   exchange  each receiving rank receives all heads of its share of the tokens in a RequestBuffer; then each rank
//             takes its heads from the buffers of all ranks
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "geometry/kv_geometry.h"
#include "transfer/pair/kv_stream.h"

namespace cachalot::transfer {

// Memory for tokens of a request in some layers and heads, as a cache of its own, without gaps.
// 1. In the order that it was made for, the stream of whole pages is one run.
class RequestBuffer {
 public:
  // @param geometry  layers and heads are those of the buffer
  static Result<std::uint64_t> bytes(const KvGeometry& geometry, const StreamOrder& order,
                                     std::uint64_t tokens);
  // @param memory  outlives the object; bytes() of it are used
  // @errors kInvalidArgument: as bytes(); memory too small
  static Result<RequestBuffer> make(const KvGeometry& geometry, const StreamOrder& order,
                                    std::uint64_t tokens, std::span<std::byte> memory);

  const kv::EngineCache& cache() const { return cache_; }
  // All tokens and layers of the buffer. The object outlives the slice.
  KvSlice slice(Range heads) const;
  KvSlice slice() const { return slice({0, cache_.geometry().heads()}); }

 private:
  RequestBuffer(kv::EngineCache cache, std::vector<std::uint32_t> pages, std::uint64_t tokens)
      : cache_(std::move(cache)), pages_(std::move(pages)), tokens_(tokens) {}

  kv::EngineCache cache_;
  std::vector<std::uint32_t> pages_;
  std::uint64_t tokens_;
};

// The order in which a side has the fewest runs.
// @errors as choose_order
Result<StreamOrder> own_order(const kv::EngineCache& cache, const KvSlice& slice);

// Copies one slice to another of the same size. Both caches are memory of this process.
// @errors as stream_shape, choose_order and kv_stream; kInvalidArgument: different numbers of layers or tokens
Status repack(const kv::EngineCache& from, const KvSlice& from_slice, const kv::EngineCache& to,
              const KvSlice& to_slice);

// The tokens that one of `ranks` receives in an exchange: whole pages, as equal as can be.
struct TokenShare {
  std::uint64_t first = 0, tokens = 0;  // 0 tokens: more ranks than pages
};
TokenShare share_of(std::uint64_t tokens, std::uint32_t page_tokens, std::uint32_t ranks,
                    std::uint32_t rank);

// One rank's part of the exchange.
// @param shares  of each rank, as share_of(slice.tokens, own.page_tokens(), ...) says; null for a share of 0 tokens
// @param heads   of this rank, in the numbering of the shares
// @errors as repack; kInvalidArgument: a share that is missing
Status take_shares(std::span<const RequestBuffer* const> shares, Range heads,
                   const kv::EngineCache& own, const KvSlice& slice);

}  // namespace cachalot::transfer
