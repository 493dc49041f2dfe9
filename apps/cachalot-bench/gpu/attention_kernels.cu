// Attention for decoding as FlashAttention divides it: keys and values are read once, the softmax is kept
// up to date while they come, long contexts are split over thread blocks and put together at the end.
//
// attention_contiguous, attention_paged   one function, by where a token's row is
// attention_merge                         the splits of each query
// attention_fill                          made-up keys and values into either
// attention_gather                        pages into contiguous addresses, as engines do without paged kernels
//
// Eight lanes take a token's row of one head, 16 of its 128 numbers each, so that a warp reads four tokens
// at a time in pieces of 16 bytes; two such rows are asked for before the first is used.
//
// @source FlashAttention (arXiv 2205.14135), the online softmax; Flash-Decoding, the splits
#include "attention_call.h"

namespace {

using namespace cachalot::apps::bench;

constexpr std::uint32_t kLanesOfToken = 8, kNumbers = kHeadDim / kLanesOfToken;
constexpr std::uint32_t kTokensOfWarp = 32 / kLanesOfToken, kWarps = kAttentionThreads / 32;
constexpr std::uint32_t kStep = kTokensOfWarp * kWarps, kAtOnce = 2;
constexpr unsigned kAllLanes = 0xffffffff;

__device__ float low(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ float high(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000);
}
__device__ float power_of_two(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// A lane's numbers of a row: eight of the first half and eight of the second.
struct Piece {
  uint4 first, second;
};
__device__ Piece load_piece(std::uint64_t row, std::uint32_t lane) {
  const auto* const at = reinterpret_cast<const uint4*>(row + lane * sizeof(uint4));
  return {__ldg(at), __ldg(at + kLanesOfToken)};
}
__device__ void unpack(const Piece& piece, float (&out)[kNumbers]) {
  const std::uint32_t pairs[] = {piece.first.x,  piece.first.y,  piece.first.z,  piece.first.w,
                                 piece.second.x, piece.second.y, piece.second.z, piece.second.w};
#pragma unroll
  for (std::uint32_t i = 0; i < kNumbers / 2; ++i) {
    out[2 * i] = low(pairs[i]);
    out[2 * i + 1] = high(pairs[i]);
  }
}
// Which number of the head it is.
__device__ std::uint32_t number_of(std::uint32_t lane, std::uint32_t i) {
  return i < 8 ? lane * 8 + i : kHeadDim / 2 + lane * 8 + (i - 8);
}

// The softmax so far of one query: everything is relative to 2^largest.
struct Softmax {
  float largest = -INFINITY, weight = 0;
  float sum[kNumbers] = {};

  __device__ void add(float score, const float (&value)[kNumbers]) {
    const float now = fmaxf(largest, score);
    const float before = power_of_two(largest - now), here = power_of_two(score - now);
    largest = now;
    weight = weight * before + here;
#pragma unroll
    for (std::uint32_t i = 0; i < kNumbers; ++i) sum[i] = sum[i] * before + here * value[i];
  }
  // With the lanes that have the same numbers of other tokens.
  __device__ void merge_lanes(std::uint32_t distance) {
    const float other = __shfl_xor_sync(kAllLanes, largest, distance);
    const float now = fmaxf(largest, other);
    // Without any token both are -infinity, and there is nothing to scale.
    const float own = largest == -INFINITY ? 0 : power_of_two(largest - now);
    const float theirs = other == -INFINITY ? 0 : power_of_two(other - now);
    largest = now;
    weight = weight * own + __shfl_xor_sync(kAllLanes, weight, distance) * theirs;
#pragma unroll
    for (std::uint32_t i = 0; i < kNumbers; ++i) {
      sum[i] = sum[i] * own + __shfl_xor_sync(kAllLanes, sum[i], distance) * theirs;
    }
  }
};

// One thread block: some tokens of one request, one head of keys and values, the queries that share it.
template <bool kPaged>
__device__ void attend(const AttentionCall& call) {
  __shared__ float merged[kWarps][kGroup][kPartialFloats];
  const std::uint32_t split = blockIdx.x % call.splits;
  const std::uint32_t head = blockIdx.x / call.splits % call.kv_heads;
  const std::uint32_t request = blockIdx.x / call.splits / call.kv_heads;
  const std::uint32_t warp = threadIdx.x / 32, in_warp = threadIdx.x % 32;
  const std::uint32_t lane = in_warp % kLanesOfToken, slot = in_warp / kLanesOfToken;

  const auto row = [&](std::uint32_t token, std::uint64_t offset) {
    if constexpr (kPaged) return row_of(call.kv, request, token, offset) + head * kHeadBytes;
    return call.kv.bases[request] + offset + token * call.kv.stride + head * kHeadBytes;
  };
  float query[kGroup][kNumbers];
  constexpr float kScale =
      0.08838834764831845f * 1.4426950408889634f;  // 1/sqrt(128), in powers of two
#pragma unroll
  for (std::uint32_t g = 0; g < kGroup; ++g) {
    const std::uint64_t place = (std::uint64_t{request} * call.kv_heads + head) * kGroup + g;
    unpack(load_piece(reinterpret_cast<std::uint64_t>(call.queries + place * kHeadDim), lane),
           query[g]);
#pragma unroll
    for (std::uint32_t i = 0; i < kNumbers; ++i) query[g][i] *= kScale;
  }

  Softmax softmax[kGroup];
  const std::uint32_t each = (call.tokens + call.splits - 1) / call.splits;
  const std::uint32_t begin = min(split * each, call.tokens);
  const std::uint32_t end = min(begin + each, call.tokens);
  // All lanes of a warp go round as often: they add up their parts of a score together.
  for (std::uint32_t first = begin + warp * kTokensOfWarp; first < end; first += kStep * kAtOnce) {
    Piece keys[kAtOnce] = {}, values[kAtOnce] = {};
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t token = first + k * kStep + slot;
      if (token >= end) continue;
      keys[k] = load_piece(row(token, call.kv.key_offset), lane);
      values[k] = load_piece(row(token, call.kv.value_offset), lane);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      float key[kNumbers], value[kNumbers];
      unpack(keys[k], key);
      unpack(values[k], value);
#pragma unroll
      for (std::uint32_t g = 0; g < kGroup; ++g) {
        float score = 0;
#pragma unroll
        for (std::uint32_t i = 0; i < kNumbers; ++i) score += query[g][i] * key[i];
        score += __shfl_xor_sync(kAllLanes, score, 1);
        score += __shfl_xor_sync(kAllLanes, score, 2);
        score += __shfl_xor_sync(kAllLanes, score, 4);
        if (first + k * kStep + slot < end) softmax[g].add(score, value);
      }
    }
  }

#pragma unroll
  for (std::uint32_t g = 0; g < kGroup; ++g) {
    softmax[g].merge_lanes(kLanesOfToken);
    softmax[g].merge_lanes(2 * kLanesOfToken);
    if (slot != 0) continue;
#pragma unroll
    for (std::uint32_t i = 0; i < kNumbers; ++i)
      merged[warp][g][number_of(lane, i)] = softmax[g].sum[i];
    if (lane != 0) continue;
    merged[warp][g][kHeadDim] = softmax[g].largest;
    merged[warp][g][kHeadDim + 1] = softmax[g].weight;
  }
  __syncthreads();
  // A thread for each number; the warps' shares are put together.
  for (std::uint32_t g = 0; g < kGroup; ++g) {
    float largest = -INFINITY;
    for (std::uint32_t w = 0; w < kWarps; ++w) largest = fmaxf(largest, merged[w][g][kHeadDim]);
    float sum = 0, weight = 0;
    for (std::uint32_t w = 0; w < kWarps; ++w) {
      const float theirs = merged[w][g][kHeadDim];
      const float factor = theirs == -INFINITY ? 0 : power_of_two(theirs - largest);
      sum += merged[w][g][threadIdx.x] * factor;
      weight += merged[w][g][kHeadDim + 1] * factor;
    }
    float* const to = call.partial + (std::uint64_t{blockIdx.x} * kGroup + g) * kPartialFloats;
    to[threadIdx.x] = sum;
    if (threadIdx.x != 0) continue;
    to[kHeadDim] = largest;
    to[kHeadDim + 1] = weight;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kAttentionThreads)
    attention_contiguous(const __grid_constant__ AttentionCall call) {
  attend<false>(call);
}
extern "C" __global__ void __launch_bounds__(kAttentionThreads)
    attention_paged(const __grid_constant__ AttentionCall call) {
  attend<true>(call);
}

// A thread block for each query, a thread for each number.
extern "C" __global__ void __launch_bounds__(kHeadDim)
    attention_merge(const __grid_constant__ AttentionCall call) {
  const std::uint32_t g = blockIdx.x % kGroup;
  const std::uint64_t first = std::uint64_t{blockIdx.x / kGroup} * call.splits;
  const auto split = [&](std::uint32_t s) {
    return call.partial + ((first + s) * kGroup + g) * kPartialFloats;
  };
  float largest = -INFINITY;
  for (std::uint32_t s = 0; s < call.splits; ++s) largest = fmaxf(largest, split(s)[kHeadDim]);
  float sum = 0, weight = 0;
  for (std::uint32_t s = 0; s < call.splits; ++s) {
    const float theirs = split(s)[kHeadDim];
    const float factor = theirs == -INFINITY ? 0 : power_of_two(theirs - largest);
    sum += split(s)[threadIdx.x] * factor;
    weight += split(s)[kHeadDim + 1] * factor;
  }
  call.out[std::uint64_t{blockIdx.x} * kHeadDim + threadIdx.x] = sum / weight;
}

// @param layer  of the model: what is made up depends on it
extern "C" __global__ void __launch_bounds__(256)
    attention_fill(const __grid_constant__ AttentionCall call, std::uint32_t layer) {
  const std::uint32_t numbers = call.kv_heads * kHeadDim;
  const std::uint64_t all = std::uint64_t{call.requests} * call.tokens * numbers;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < all; i += threads) {
    const auto number = static_cast<std::uint32_t>(i % numbers);
    const auto token = static_cast<std::uint32_t>(i / numbers % call.tokens);
    const auto request = static_cast<std::uint32_t>(i / numbers / call.tokens);
    for (std::uint32_t part = 0; part < 2; ++part) {
      const std::uint64_t offset = part == 0 ? call.kv.key_offset : call.kv.value_offset;
      const std::uint64_t at = row_of(call.kv, request, token, offset) + number * 2;
      *reinterpret_cast<std::uint16_t*>(at) = made_up(request, layer, token, part, number);
    }
  }
}

// All rows of `from` to where `to` has them, 16 bytes a thread.
extern "C" __global__ void __launch_bounds__(256)
    attention_gather(const __grid_constant__ AttentionCall from,
                     const __grid_constant__ KvPlaces to) {
  const std::uint32_t units = from.kv_heads * kHeadBytes / sizeof(uint4);
  const std::uint64_t all = std::uint64_t{from.requests} * from.tokens * units;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < all; i += threads) {
    const auto unit = static_cast<std::uint32_t>(i % units);
    const auto token = static_cast<std::uint32_t>(i / units % from.tokens);
    const auto request = static_cast<std::uint32_t>(i / units / from.tokens);
    const std::uint64_t inside = unit * sizeof(uint4);
    const uint4 key = *reinterpret_cast<const uint4*>(
        row_of(from.kv, request, token, from.kv.key_offset) + inside);
    const uint4 value = *reinterpret_cast<const uint4*>(
        row_of(from.kv, request, token, from.kv.value_offset) + inside);
    *reinterpret_cast<uint4*>(row_of(to, request, token, to.key_offset) + inside) = key;
    *reinterpret_cast<uint4*>(row_of(to, request, token, to.value_offset) + inside) = value;
  }
}
