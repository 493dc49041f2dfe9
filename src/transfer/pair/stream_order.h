// The order of the bytes of a KV stream, and how both sides choose the same one.
//
//   StreamShape mine = stream_shape(cache, slice), theirs = ...;   // of the peer's message
//   StreamOrder order = choose_order(mine, theirs)                 // the same on both sides
//
// Every order is layer by layer. Inside a layer the loops of a token's heads and parts are in one of the orders of
// `Loops`. A cache has long runs in the order in which its bytes lie; the stream takes the order that has the fewest
// runs on both sides together.
//
// 1. choose_order(a, b) is choose_order(b, a), and depends on nothing else.
// 2. Every cache has a stream in the order that is chosen.
#pragma once

#include <cachalot/geometry.h>
#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::transfer {

// Loops inside a layer, slowest first. Page: `page_tokens` tokens, a unit of both sides' pages.
enum class Loops : std::uint32_t {
  kPartTokenHead,      // NHD, K and V apart
  kPartHeadToken,      // HND, pages of different sizes
  kPartPageHeadToken,  // HND, K and V apart
  kPagePartTokenHead,  // NHD, K and V of a page together
  kPagePartHeadToken,  // HND, K and V of a page together
  kPageHeadPartToken,
  kPageHeadTokenPart,  // HND, K and V of a head packed
  kTokenPartHead,
  kTokenHeadPart,  // NHD, K and V of a head packed; a latent together with its rope part
  kHeadPartToken,
  kHeadTokenPart,
};
inline constexpr std::uint32_t kLoopOrders = 11;

struct StreamOrder {
  Loops loops = Loops::kPartTokenHead;
  std::uint32_t page_tokens = 0;  // 0: `loops` has no page

  bool operator==(const StreamOrder&) const = default;
};

// What the order depends on: how one side's bytes lie. Only words, so that it can be sent as it is.
struct StreamShape {
  struct Part {
    std::uint64_t content_bytes =
        0;  // of one head and token; part 1 has 0 if there is no such part
    std::uint64_t token_stride = 0, head_stride = 0;

    bool operator==(const Part&) const = default;
  };
  std::uint64_t heads = 0;  // of the stream
  std::uint64_t page_tokens =
      0;  // tokens that surely are in one page, counted from the stream's first token
  Part part[kParts];
  // From part 0 to part 1 of the same head and token, where that is the same everywhere; else 0.
  std::int64_t part_step = 0;

  bool operator==(const StreamShape&) const = default;
};
static_assert(sizeof(StreamShape) == 9 * 8);

// The loops as letters of kv/layout.h, "KBHN"; null if `loops` is not an enumerator.
const char* loop_letters(Loops loops);

// @errors kInvalidArgument: shapes of streams with different heads or contents (names both values); a shape that no
//         cache has
// @threads any
// @cost    below a microsecond
Result<StreamOrder> choose_order(const StreamShape& source, const StreamShape& destination);

// Whether a cache of this shape has a stream in this order. Both may come from a peer.
bool is_possible(const StreamShape& shape, const StreamOrder& order);
// Whether the two parts of a head and token are one run in this order.
bool is_packed(const StreamShape& shape, Loops loops);
// Runs of a layer in `shape.page_tokens` tokens. Precondition: is_possible()
std::uint64_t runs_of(const StreamShape& shape, const StreamOrder& order);

}  // namespace cachalot::transfer
