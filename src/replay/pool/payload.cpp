#include "replay/pool/payload.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"
#include "memory/cpu.h"
#include "memory/line.h"

namespace cachalot::replay {
namespace {

using memory::Isa;
using memory::kLineBytes;

constexpr std::size_t kWords = kLineBytes / sizeof(std::uint64_t);
constexpr std::size_t kStampWords = 5;
constexpr std::size_t kSampleLines = 16;

// A line as the compiler moves it: in one register, in two, or in four.
using Words [[gnu::vector_size(64)]] = std::uint64_t;

// word(i) = shift_mix(start + i * step).
struct Pattern {
  explicit Pattern(const BlockHash& hash)
      : start(base::mix64(hash.low ^ 0x9e3779b97f4a7c15u)), step(base::mix64(hash.high) | 1) {}

  std::uint64_t word(std::uint64_t i) const {
    const std::uint64_t x = start + i * step;
    return x ^ (x >> 29);
  }

  std::uint64_t start, step;
};

[[gnu::always_inline]] inline void first_line(const Pattern& pattern, std::size_t line, Words& x) {
  for (std::size_t i = 0; i < kWords; ++i) {
    x[i] = pattern.start + (line * kWords + i) * pattern.step;
  }
}

[[gnu::always_inline]] inline void fill_lines(const Pattern& pattern, std::byte* to,
                                              std::size_t lines) {
  Words x;
  first_line(pattern, 0, x);
  const std::uint64_t step = kWords * pattern.step;
  for (std::size_t line = 0; line < lines; ++line) {
    const Words word = x ^ (x >> 29);
    std::memcpy(to + line * kLineBytes, &word, kLineBytes);
    x += step;
  }
}

// True if lines first, first + every, … below `lines` are as they must be.
[[gnu::always_inline]] inline bool check_lines(const Pattern& pattern, const std::byte* from,
                                               std::size_t first, std::size_t every,
                                               std::size_t lines) {
  Words x;
  first_line(pattern, first, x);
  const std::uint64_t step = every * kWords * pattern.step;
  Words wrong{};
  for (std::size_t line = first; line < lines; line += every) {
    Words found;
    std::memcpy(&found, from + line * kLineBytes, kLineBytes);
    wrong |= found ^ (x ^ (x >> 29));
    x += step;
  }
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < kWords; ++i) any |= wrong[i];
  return any == 0;
}

// One set of loops an instruction path, as in memory/copy.h.
struct Loops {
  void (*fill)(const Pattern&, std::byte*, std::size_t);
  bool (*check)(const Pattern&, const std::byte*, std::size_t, std::size_t, std::size_t);
};

void fill_sse2(const Pattern& p, std::byte* to, std::size_t lines) {
  fill_lines(p, to, lines);
}
[[gnu::target("avx2")]] void fill_avx2(const Pattern& p, std::byte* to, std::size_t lines) {
  fill_lines(p, to, lines);
}
[[gnu::target("avx512f")]] void fill_avx512(const Pattern& p, std::byte* to, std::size_t lines) {
  fill_lines(p, to, lines);
}
bool check_sse2(const Pattern& p, const std::byte* from, std::size_t first, std::size_t every,
                std::size_t lines) {
  return check_lines(p, from, first, every, lines);
}
[[gnu::target("avx2")]] bool check_avx2(const Pattern& p, const std::byte* from, std::size_t first,
                                        std::size_t every, std::size_t lines) {
  return check_lines(p, from, first, every, lines);
}
[[gnu::target("avx512f")]] bool check_avx512(const Pattern& p, const std::byte* from,
                                             std::size_t first, std::size_t every,
                                             std::size_t lines) {
  return check_lines(p, from, first, every, lines);
}

const Loops& loops() {
  static constexpr Loops kSse2{fill_sse2, check_sse2};
  static constexpr Loops kAvx2{fill_avx2, check_avx2};
  static constexpr Loops kAvx512{fill_avx512, check_avx512};
  if (memory::isa_available(Isa::kAvx512)) return kAvx512;
  return memory::isa_available(Isa::kAvx2) ? kAvx2 : kSse2;
}

std::uint64_t word_at(std::span<const std::byte> bytes, std::uint64_t i) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
  return word;
}

std::uint64_t check_word(const BlockHash& hash, const PayloadStamp& stamp) {
  return base::mix64(base::mix64(hash.low ^ stamp.writer) + base::mix64(hash.high ^ stamp.count));
}

// The first wrong byte of line 0, or kNoByte.
std::uint64_t check_first_line(const BlockHash& hash, const Pattern& pattern, std::uint64_t engines,
                               const PayloadStamp& stamp, std::span<const std::byte> from) {
  const std::uint64_t expected[kWords] = {
      hash.low,        hash.high,       stamp.writer,   stamp.count, check_word(hash, stamp),
      pattern.word(5), pattern.word(6), pattern.word(7)};
  for (std::size_t i = 0; i < kWords; ++i) {
    const bool is_writer_wrong = i == 2 && stamp.writer >= engines;
    if (is_writer_wrong || word_at(from, i) != expected[i]) return i * sizeof(std::uint64_t);
  }
  return PayloadCheck::kNoByte;
}

// Slow, for the block that did not check. kNoByte: it does now.
std::uint64_t find_wrong_byte(const Pattern& pattern, std::span<const std::byte> from) {
  for (std::uint64_t i = kWords; i < from.size() / sizeof(std::uint64_t); ++i) {
    const std::uint64_t wrong = word_at(from, i) ^ pattern.word(i);
    if (wrong != 0) return i * sizeof wrong + static_cast<unsigned>(__builtin_ctzll(wrong)) / 8;
  }
  return PayloadCheck::kNoByte;
}

}  // namespace

void fill_payload(const BlockHash& hash, const PayloadStamp& stamp, std::span<std::byte> to) {
  CACHALOT_CHECK(!to.empty() && to.size() % kLineBytes == 0);
  loops().fill(Pattern(hash), to.data(), to.size() / kLineBytes);
  const std::uint64_t head[kStampWords] = {hash.low, hash.high, stamp.writer, stamp.count,
                                           check_word(hash, stamp)};
  std::memcpy(to.data(), head, sizeof head);
}

PayloadCheck check_payload(const BlockHash& hash, std::uint64_t engines, VerifyMode mode,
                           std::span<const std::byte> from) {
  CACHALOT_CHECK(!from.empty() && from.size() % kLineBytes == 0);
  const Pattern pattern(hash);
  PayloadCheck check;
  check.stamp = {word_at(from, 2), word_at(from, 3)};
  if (mode == VerifyMode::kOff) return check;
  const std::size_t lines = from.size() / kLineBytes;
  check.first_bad_byte = check_first_line(hash, pattern, engines, check.stamp, from);
  const std::size_t every = mode == VerifyMode::kFull ? 1 : kSampleLines;
  const std::size_t last = lines - 1;
  const std::size_t seen = last / every + 1 + (last % every != 0 ? 1 : 0);
  check.checked_bytes = seen * kLineBytes;
  const bool rest_is_ok = loops().check(pattern, from.data(), every, every, lines) &&
                          (last == 0 || loops().check(pattern, from.data(), last, 1, lines));
  if (check.ok() && !rest_is_ok) {
    // What was wrong a moment ago is wrong even if it reads well now.
    check.first_bad_byte = std::min<std::uint64_t>(find_wrong_byte(pattern, from), from.size());
  }
  return check;
}

}  // namespace cachalot::replay
