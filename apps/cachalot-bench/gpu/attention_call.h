// What the attention kernels of `bench attention` are told, and the made-up KV that they read: the same on
// the host, which computes some of it again, and on a GPU.
//
// Decoding: one query a request and head, grouped heads (GQA), numbers of 16 bits (bf16). A request's keys
// and values of one layer lie in addresses of one stride, or in pages; nothing else differs between the
// two kernels.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace cachalot::apps::bench {

inline constexpr std::uint32_t kHeadDim = 128;
inline constexpr std::uint32_t kGroup = 4;  // query heads that share a head of keys and values
inline constexpr std::uint32_t kHeadBytes = kHeadDim * 2;
inline constexpr std::uint32_t kAttentionThreads = 128;
inline constexpr std::uint32_t kPartialFloats =
    kHeadDim + 2;  // sums, then their largest score and weight

// Where keys and values of a layer are; `at` is the range of a request, or the page pool of all.
struct KvPlaces {
  const std::uint64_t* bases;  // [requests]; in pages: one
  const std::uint32_t* pages;  // [requests][pages_each]; null: contiguous
  std::uint64_t key_offset, value_offset;
  std::uint64_t stride;       // of a token
  std::uint64_t page_stride;  // of a page
  std::uint32_t page_tokens, pages_each;
};

struct AttentionCall {
  KvPlaces kv;
  const std::uint16_t* queries;  // [requests][kv_heads * kGroup][kHeadDim], bf16
  float* partial;                // [requests][kv_heads][splits][kGroup][kPartialFloats]
  float* out;                    // [requests][kv_heads * kGroup][kHeadDim]
  std::uint32_t requests, kv_heads, tokens, splits;
};
static_assert(sizeof(AttentionCall) <= 256);

// Address of a token's row: all heads of a part, side by side.
CACHALOT_HOST_DEVICE inline std::uint64_t row_of(const KvPlaces& kv, std::uint32_t request,
                                                 std::uint32_t token, std::uint64_t offset) {
  if (kv.pages == nullptr) return kv.bases[request] + offset + token * kv.stride;
  const std::uint32_t page =
      kv.pages[request * std::uint64_t{kv.pages_each} + token / kv.page_tokens];
  return kv.bases[0] + offset + page * kv.page_stride + token % kv.page_tokens * kv.stride;
}

// A number between -1 and 1 for every place, as bf16: eight bits of it are random.
CACHALOT_HOST_DEVICE inline std::uint16_t made_up(std::uint32_t request, std::uint32_t layer,
                                                  std::uint32_t token, std::uint32_t part,
                                                  std::uint32_t number) {
  std::uint64_t x = (std::uint64_t{request} << 44) ^ (std::uint64_t{layer} << 36) ^
                    (std::uint64_t{token} << 14) ^ (std::uint64_t{part} << 13) ^ number;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const auto exponent =
      static_cast<std::uint16_t>(0x3f00 - 0x80 * (x >> 8 & 3));  // 0.5 and smaller
  return static_cast<std::uint16_t>((x >> 16 & 0x8000) | exponent | (x & 0x7f));
}

}  // namespace cachalot::apps::bench
