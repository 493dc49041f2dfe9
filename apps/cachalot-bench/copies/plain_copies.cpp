#include "plain_copies.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/rng.h"
#include "memory/cpu.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::size_t kLine = memory::kLineBytes;
// Source lines are asked for this far ahead: alone, the prefetcher stops at every page.
constexpr std::size_t kAhead = 2048;

[[gnu::target("avx512f")]] void stream_avx512(char* to, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    _mm_prefetch(from + at + kAhead, _MM_HINT_T0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

[[gnu::target("avx2")]] void stream_avx2(char* to, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    _mm_prefetch(from + at + kAhead, _MM_HINT_T0);
    for (std::size_t half = 0; half < kLine; half += 32) {
      const auto* source = reinterpret_cast<const __m256i*>(from + at + half);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + half), _mm256_loadu_si256(source));
    }
  }
}

void stream_sse2(char* to, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 16) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(source));
  }
}

void stream(void* to, const void* from, std::size_t bytes) {
  auto* const out = static_cast<char*>(to);
  const auto* const in = static_cast<const char*>(from);
  static const memory::Isa isa = memory::usable_isa(memory::Isa::kAuto);
  switch (isa) {
    case memory::Isa::kAvx512:
      return stream_avx512(out, in, bytes);
    case memory::Isa::kAvx2:
      return stream_avx2(out, in, bytes);
    default:
      return stream_sse2(out, in, bytes);
  }
}

void rep_movsb(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

}  // namespace

const char* copy_name(Copy copy) {
  switch (copy) {
    case Copy::kMemcpy:
      return "memcpy";
    case Copy::kNonTemporal:
      return "non-temporal";
    case Copy::kRepMovsb:
      return "rep movsb";
    case Copy::kCount:
      break;
  }
  return "?";
}

void copy_plain(Copy copy, void* to, const void* from, std::size_t bytes) {
  switch (copy) {
    case Copy::kMemcpy:
      std::memcpy(to, from, bytes);
      break;
    case Copy::kNonTemporal:
      stream(to, from, bytes);
      break;
    case Copy::kRepMovsb:
      rep_movsb(to, from, bytes);
      break;
    case Copy::kCount:
      break;
  }
}

void flush_lines(const void* at, std::size_t bytes) {
  static const bool can_overlap = memory::has_clflushopt();  // asking takes microseconds in a VM
  auto* const lines = static_cast<char*>(const_cast<void*>(at));
  for (std::size_t i = 0; i < bytes; i += kLine) {
    if (can_overlap) {
      asm volatile("clflushopt %0" : "+m"(*static_cast<volatile char*>(lines + i)));
    } else {
      _mm_clflush(lines + i);
    }
  }
}

void copy_in(Copy copy, memory::DomainKind domain, void* to, const void* from, std::size_t bytes) {
  copy_plain(copy, to, from, bytes);
  if (domain != memory::DomainKind::kCoherent && copy != Copy::kNonTemporal) flush_lines(to, bytes);
  _mm_sfence();
}

void copy_out(Copy copy, memory::DomainKind domain, void* to, const void* from, std::size_t bytes) {
  if (domain != memory::DomainKind::kCoherent) {
    _mm_mfence();
    flush_lines(from, bytes);
    _mm_mfence();
  }
  copy_plain(copy, to, from, bytes);
  _mm_sfence();
}

void fill_randomly(std::byte* at, std::uint64_t bytes) {
  base::Rng rng(3);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t word = rng.next();
    const std::uint64_t length = std::min<std::uint64_t>(sizeof word, bytes - done);
    std::memcpy(at + done, &word, length);
    done += length;
  }
}

void PrivateMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

Result<PrivateMemory> PrivateMemory::make(std::uint64_t bytes) {
  constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes));
  if (memory == nullptr) {
    return Error::make(Code::kNoSpace, "bench: cannot allocate %llu bytes of memory",
                       static_cast<unsigned long long>(bytes));
  }
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return PrivateMemory(memory, bytes);
}

}  // namespace cachalot::apps::bench
