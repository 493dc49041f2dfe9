// For tests of the PTX machine: what a kernel of attention is made of. A thread block computes a row of
//
//   out[d] = sum over k of softmax(scale * q . keys[k]) * values[k][d]
//
// with an online softmax: a warp a key, dot products reduced across lanes, partial results of the warps
// joined through shared memory. Numbers are bf16 outside, float inside.
#include <cuda_bf16.h>

constexpr int kWarps = 4, kLanes = 32;

extern "C" __global__ void __launch_bounds__(kWarps* kLanes)
    softmax_row(const __nv_bfloat16* query, const __nv_bfloat16* keys, const __nv_bfloat16* values,
                __nv_bfloat16* out, int count, int dimensions, float scale) {
  extern __shared__ float shared_query[];  // dimensions of them
  __shared__ float most[kWarps], sum[kWarps];
  __shared__ float part[kWarps][128];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int row = blockIdx.x;
  for (int d = threadIdx.x; d < dimensions; d += blockDim.x) {
    shared_query[d] = __bfloat162float(query[row * dimensions + d]);
  }
  __syncthreads();

  float my_most = -INFINITY, my_sum = 0;
  float my_part[4] = {};
  for (int k = warp; k < count; k += kWarps) {
    float dot = 0;
    for (int d = lane; d < dimensions; d += kLanes) {
      dot += shared_query[d] * __bfloat162float(keys[k * dimensions + d]);
    }
    for (int other = kLanes / 2; other != 0; other /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, other);
    }
    const float score = dot * scale;
    const float now_most = fmaxf(my_most, score);
    const float shrink = expf(my_most - now_most), weight = __expf(score - now_most);
    my_sum = my_sum * shrink + weight;
    my_most = now_most;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = lane + i * kLanes;
      if (d < dimensions) {
        my_part[i] = my_part[i] * shrink + weight * __bfloat162float(values[k * dimensions + d]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) part[warp][lane + i * kLanes] = my_part[i];
  if (lane == 0) {
    most[warp] = my_most;
    sum[warp] = my_sum;
  }
  __syncthreads();

  float all_most = -INFINITY;
  for (int w = 0; w < kWarps; ++w) all_most = fmaxf(all_most, most[w]);
  float all_sum = 0;
  for (int w = 0; w < kWarps; ++w) all_sum += sum[w] * __expf(most[w] - all_most);
  for (int d = threadIdx.x; d < dimensions; d += blockDim.x) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += part[w][d] * __expf(most[w] - all_most);
    out[row * dimensions + d] = __float2bfloat16(value / all_sum);
  }
}
