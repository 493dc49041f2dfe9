// A line is four loads and four stores. What every x86-64 has; see memory/copy_loops.h.
#include "memory/copy_run_loops.h"

namespace cachalot::memory {
namespace {

struct Sse2 {
  using Reg = __m128i;
  static constexpr std::size_t kBytes = 16;

  static Reg load(const void* at) { return _mm_loadu_si128(static_cast<const __m128i_u*>(at)); }
  static void store(void* at, Reg value) { _mm_storeu_si128(static_cast<__m128i_u*>(at), value); }
  static void stream(void* at, Reg value) { _mm_stream_si128(static_cast<__m128i*>(at), value); }

  static void stream_narrow(void* at, Reg value) { stream(at, value); }

  // sum[i] += low32(data[i] ^ secret[i]) * high32(...) + data[i ^ 1]
  static Reg accumulate(Reg sum, Reg data, const void* secret) {
    const Reg keyed = _mm_xor_si128(data, load(secret));
    const Reg product = _mm_mul_epu32(keyed, _mm_srli_epi64(keyed, 32));
    const Reg swapped = _mm_shuffle_epi32(data, 0x4e);
    return _mm_add_epi64(sum, _mm_add_epi64(product, swapped));
  }

  // sum = (sum ^ sum >> 47 ^ secret) * kPrime32_1
  static Reg scramble(Reg sum, const void* secret) {
    const Reg prime = _mm_set1_epi64x(static_cast<long long>(xxh3::kPrime32_1));
    const Reg mixed = _mm_xor_si128(_mm_xor_si128(sum, _mm_srli_epi64(sum, 47)), load(secret));
    const Reg high = _mm_mul_epu32(_mm_srli_epi64(mixed, 32), prime);
    return _mm_add_epi64(_mm_mul_epu32(mixed, prime), _mm_slli_epi64(high, 32));
  }
};

}  // namespace

constexpr CopyKernels kCopySse2 = CopyRunLoops<Sse2>::kernels(Isa::kSse2);

}  // namespace cachalot::memory
