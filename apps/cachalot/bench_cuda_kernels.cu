// A baseline for `bench cuda`: work divided as SGLang's HiCache kernels do it. One warp takes a token
// and goes through all its layers and parts; a lane copies every 32nd word of 8 bytes.
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

// @param call    of a plan by tokens, all of them; its items are not used
// @param gathers into the pool, or out of it
extern "C" __global__ void __launch_bounds__(1024)
    bench_warp_per_token(const __grid_constant__ FusedCall call, int gathers) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * blockDim.x / 32;
  const std::uint32_t tokens = call.plan.dimension[call.plan.token_dimension].count;
  const std::uint64_t fragments = fragment_count(call.plan, 1);
  std::uint64_t item = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  for (; item < std::uint64_t{call.block_count} * tokens; item += warps) {
    const CallBlock& block = call.blocks[item / tokens];
    const auto token = static_cast<std::uint32_t>(item % tokens);
    for (std::uint64_t i = 0; i < fragments; ++i) {
      const Fragment found = fragment(call.plan, i, &token, 1);
      const std::uint64_t engine = call.tensors[found.tensor] + found.engine_offset +
                                   call.pages[block.first_page + found.page] * found.page_stride;
      const PoolPiece& piece = *piece_at(call.pieces + block.first_piece, found.pool_offset);
      const std::uint64_t pool = address_in(piece, found.pool_offset);
      copy_words(gathers != 0 ? pool : engine, gathers != 0 ? engine : pool, found.bytes, lane);
    }
  }
}
