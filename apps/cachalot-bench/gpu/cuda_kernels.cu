// What `cachalot bench` runs on a GPU beside our own copies.
//
// bench_warp_per_token   a baseline: work divided as SGLang's HiCache kernels do it. One warp takes a token
//                        and goes through all its layers and parts; a lane copies every 32nd word of 8 bytes
// bench_compute_math     multiplies and adds, and nothing else
// bench_compute_memory   goes through the GPU's memory, and nothing else
//
// @source SGLang, sgl-kernel's transfer kernels: the division of work only, on the plans of kv
#include "kv/fused/call.h"

namespace {

using namespace cachalot::kv;

__device__ void copy_words(std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
                           std::uint32_t lane) {
  const auto* const source = reinterpret_cast<const unsigned long long*>(from);
  auto* const target = reinterpret_cast<unsigned long long*>(to);
  for (std::uint64_t word = lane; word < bytes / 8; word += 32) {
    unsigned long long value;
    asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(value) : "l"(source + word));
    asm volatile("st.global.cg.b64 [%0], %1;" ::"l"(target + word), "l"(value) : "memory");
  }
}

}  // namespace

// @param told    a call of a plan by tokens, all of them; its items are not used
// @param gathers into the pool, or out of it
extern "C" __global__ void __launch_bounds__(1024,
                                             1)  // one a multiprocessor: 64 registers, none spilled
    bench_warp_per_token(const __grid_constant__ FusedCall told, int gathers) {
  const CallView call(told, told.tables);
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * blockDim.x / 32;
  const std::uint32_t tokens = call->plan.dimension[call->plan.token_dimension].count;
  const std::uint64_t fragments = fragment_count(call->plan, 1);
  std::uint64_t item = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  for (; item < std::uint64_t{call->block_count} * tokens; item += warps) {
    const CallBlock& block = call.blocks[item / tokens];
    const auto token = static_cast<std::uint32_t>(item % tokens);
    for (std::uint64_t i = 0; i < fragments; ++i) {
      const Fragment found = fragment(call->plan, i, &token, 1);
      const std::uint64_t engine = call.tensors[found.tensor] + found.engine_offset +
                                   call.pages[block.first_page + found.page] * found.page_stride;
      const PoolPiece& piece = *piece_at(call.pieces + block.first_piece, found.pool_offset);
      const std::uint64_t pool = address_in(piece, found.pool_offset);
      copy_words(gathers != 0 ? pool : engine, gathers != 0 ? engine : pool, found.bytes, lane);
    }
  }
}

// Four chains of multiply-add a thread; what comes out depends on all of it, so that none is left out.
// @param memory  of `words` times 16 bytes
// @param rounds  each 256 multiply-adds a chain
extern "C" __global__ void __launch_bounds__(256)
    bench_compute_math(float4* memory, std::uint64_t words, std::uint32_t rounds) {
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto seed = static_cast<float>(threadIdx.x);
  float4 sum = {seed, seed + 1, seed + 2, seed + 3};
  for (std::uint32_t round = 0; round < rounds; ++round) {
#pragma unroll 16
    for (int i = 0; i < 256; ++i) {
      sum.x = fmaf(sum.x, 0.999f, 0.5f);
      sum.y = fmaf(sum.y, 0.998f, 0.5f);
      sum.z = fmaf(sum.z, 0.997f, 0.5f);
      sum.w = fmaf(sum.w, 0.996f, 0.5f);
    }
  }
  if (thread < words) memory[thread] = sum;
}

// Adds one to every word of the memory, in every round.
extern "C" __global__ void __launch_bounds__(256)
    bench_compute_memory(ulonglong2* memory, std::uint64_t words, std::uint32_t rounds) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    std::uint64_t word = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; word < words; word += threads) {
      ulonglong2 value = memory[word];
      value.x += 1;
      value.y += 1;
      memory[word] = value;
    }
  }
}
