// A line is two loads and two stores. Compiled for AVX2; see memory/copy_loops.h.
#include "memory/copy_run_loops.h"

namespace cachalot::memory {
namespace {

struct Avx2 {
  using Reg = __m256i;
  static constexpr std::size_t kBytes = 32;

  static Reg load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i_u*>(at)); }
  static void store(void* at, Reg value) {
    _mm256_storeu_si256(static_cast<__m256i_u*>(at), value);
  }
  static void stream(void* at, Reg value) { _mm256_stream_si256(static_cast<__m256i*>(at), value); }

  static void stream_narrow(void* at, Reg value) {
    auto* const to = static_cast<__m128i*>(at);
    _mm_stream_si128(to, _mm256_castsi256_si128(value));
    _mm_stream_si128(to + 1, _mm256_extracti128_si256(value, 1));
  }

  // sum[i] += low32(data[i] ^ secret[i]) * high32(...) + data[i ^ 1]
  static Reg accumulate(Reg sum, Reg data, const void* secret) {
    const Reg keyed = _mm256_xor_si256(data, load(secret));
    const Reg product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const Reg swapped = _mm256_shuffle_epi32(data, 0x4e);
    return _mm256_add_epi64(sum, _mm256_add_epi64(product, swapped));
  }

  // sum = (sum ^ sum >> 47 ^ secret) * kPrime32_1
  static Reg scramble(Reg sum, const void* secret) {
    const Reg prime = _mm256_set1_epi64x(static_cast<long long>(xxh3::kPrime32_1));
    const Reg mixed =
        _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), load(secret));
    const Reg high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
  }
};

}  // namespace

constexpr CopyKernels kCopyAvx2 = CopyRunLoops<Avx2>::kernels(Isa::kAvx2);

}  // namespace cachalot::memory
