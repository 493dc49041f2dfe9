// A line is one load and one store. Compiled for AVX-512F; see memory/copy_loops.h.
#include "memory/copy_run_loops.h"

namespace cachalot::memory {
namespace {

struct Avx512 {
  using Reg = __m512i;
  static constexpr std::size_t kBytes = 64;

  static Reg load(const void* at) { return _mm512_loadu_si512(at); }
  static void store(void* at, Reg value) { _mm512_storeu_si512(at, value); }
  static void stream(void* at, Reg value) { _mm512_stream_si512(static_cast<__m512i*>(at), value); }

  static void stream_narrow(void* at, Reg value) {
    auto* const to = static_cast<__m128i*>(at);
    _mm_stream_si128(to, _mm512_castsi512_si128(value));
    _mm_stream_si128(to + 1, _mm512_extracti32x4_epi32(value, 1));
    _mm_stream_si128(to + 2, _mm512_extracti32x4_epi32(value, 2));
    _mm_stream_si128(to + 3, _mm512_extracti32x4_epi32(value, 3));
  }

  // sum[i] += low32(data[i] ^ secret[i]) * high32(...) + data[i ^ 1]
  static Reg accumulate(Reg sum, Reg data, const void* secret) {
    const Reg keyed = _mm512_xor_si512(data, load(secret));
    const Reg product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    const Reg swapped = _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(0x4e));
    return _mm512_add_epi64(sum, _mm512_add_epi64(product, swapped));
  }

  // sum = (sum ^ sum >> 47 ^ secret) * kPrime32_1
  static Reg scramble(Reg sum, const void* secret) {
    const Reg prime = _mm512_set1_epi64(static_cast<long long>(xxh3::kPrime32_1));
    const Reg mixed =
        _mm512_xor_si512(_mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47)), load(secret));
    const Reg high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
  }
};

}  // namespace

constexpr CopyKernels kCopyAvx512 = CopyRunLoops<Avx512>::kernels(Isa::kAvx512);

}  // namespace cachalot::memory
