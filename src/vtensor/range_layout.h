// Where each byte of a request's KV lies in its range, and how many chunks so many tokens take.
//
//   range    plane 0                    plane 1                    …
//            |chunk|chunk|chunk| . . . ||chunk|chunk|chunk| . . . ||
//   plane    token 0 | token 1 | token 2 | …          rows of token_bytes, no gap between them
//
// 1. A row lies in its plane at token * token_bytes: a kernel needs a base and a stride, no table. So
//    where chunk_bytes is no multiple of token_bytes, a token straddles two chunks.
// 2. Every plane begins with a chunk of its own, and has addresses for max_tokens.
// 3. Nothing computed for up to max_tokens() tokens overflows: make() has checked the largest.
//
// Chunks are counted in a plane by ceil(tokens * token_bytes / chunk_bytes); those full of the first
// tokens, which others may share, by floor.
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vtensor/kv_shape.h"

namespace cachalot::vtensor {

class RangeLayout {
 public:
  struct Plane {
    std::uint64_t at = 0;  // from the base of the range
    std::uint64_t token_bytes = 0;
  };
  // A layer's part of token t is at base + offset + t * stride.
  struct View {
    std::uint64_t offset = 0;
    std::uint64_t stride = 0;
  };

  // @errors kInvalidArgument: as KvShape::check(); no tokens, no chunk_bytes; a range beyond 2^56 bytes
  static Result<RangeLayout> make(const KvShape& shape, KvLayout layout, std::uint64_t chunk_bytes,
                                  std::uint64_t max_tokens);

  KvLayout layout() const { return layout_; }
  const KvShape& shape() const { return shape_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t max_tokens() const { return max_tokens_; }
  std::uint64_t range_bytes() const { return range_bytes_; }
  std::uint64_t planes() const { return planes_.size(); }
  const Plane& plane(std::uint64_t p) const { return planes_[p]; }
  View view(std::uint64_t layer, std::uint64_t part) const;

  // Of one plane.
  std::uint64_t chunks(std::uint64_t p, std::uint64_t tokens) const {
    return (tokens * planes_[p].token_bytes + chunk_bytes_ - 1) / chunk_bytes_;
  }
  std::uint64_t full_chunks(std::uint64_t p, std::uint64_t tokens) const {
    return tokens * planes_[p].token_bytes / chunk_bytes_;
  }
  // Bytes of the tokens behind the last full chunk.
  std::uint64_t tail_bytes(std::uint64_t p, std::uint64_t tokens) const {
    return tokens * planes_[p].token_bytes % chunk_bytes_;
  }
  // Whole tokens in so many chunks, at most max_tokens().
  std::uint64_t tokens_in(std::uint64_t p, std::uint64_t chunks) const {
    return std::min(max_tokens_, chunks * chunk_bytes_ / planes_[p].token_bytes);
  }

  // Of all planes together.
  std::uint64_t chunks(std::uint64_t tokens) const;
  std::uint64_t full_chunks(std::uint64_t tokens) const;
  std::uint64_t kv_bytes(std::uint64_t tokens) const { return tokens * shape_.token_bytes(); }
  // The most tokens up to `tokens` that leave no tail in any plane.
  std::uint64_t without_tail(std::uint64_t tokens) const { return tokens - tokens % even_tokens_; }

 private:
  // Planes whose rows are of one width.
  struct Width {
    std::uint64_t token_bytes = 0;
    std::uint64_t planes = 0;
  };

  RangeLayout() = default;
  std::vector<Width> cut() const;
  Status place_planes();
  void find_even_tokens();

  KvShape shape_;
  KvLayout layout_ = KvLayout::kPerLayer;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t max_tokens_ = 0;
  std::uint64_t range_bytes_ = 0;
  std::uint64_t even_tokens_ = 1;
  std::vector<Plane> planes_;
  std::vector<Width> widths_;
};

}  // namespace cachalot::vtensor
