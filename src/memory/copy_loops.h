// The loops of memory/copy.h, written once over a vector type.
//
// A file that includes this is compiled for the instructions of its Vector, which lives in that
// file's anonymous namespace: so do the instances, and none of this code can be taken for another
// machine's. No standard function that the linker might share is called from here.
//
// Vector: Reg, kBytes; load and store (any alignment), stream (aligned), stream_narrow (aligned to
// 16 bytes), accumulate and scramble (XXH3).
//
// A byte is loaded once: what is stored is what was hashed, also when a writer changes the source
// meanwhile (readers of a pool are validated afterwards, not kept out).
#pragma once

#include <immintrin.h>

#include "memory/copy.h"
#include "memory/fused_hash.h"
#include "memory/xxh3.h"

namespace cachalot::memory {

enum class To { kNowhere, kStore, kStream, kStreamNarrow };

template <class V>
struct CopyLoops {
  using Reg = typename V::Reg;
  static constexpr std::size_t kRegs = kLineBytes / V::kBytes;
  static constexpr std::size_t kBlockBytes = xxh3::kStripesPerBlock * kLineBytes;
  using Byte = unsigned char;

  struct LineRegs {
    Reg regs[kRegs];
  };

  template <To kTo>
  [[gnu::always_inline]] static void put(Byte* to, const LineRegs& data) {
    for (std::size_t r = 0; r < kRegs; ++r) {
      if constexpr (kTo == To::kStore) V::store(to + r * V::kBytes, data.regs[r]);
      if constexpr (kTo == To::kStream) V::stream(to + r * V::kBytes, data.regs[r]);
      if constexpr (kTo == To::kStreamNarrow) V::stream_narrow(to + r * V::kBytes, data.regs[r]);
    }
  }

  // Whole lines, few enough that they fit the registers together: all loads first, then all stores,
  // which is a tenth faster than in turn where the source comes from DRAM. The empty asm makes the
  // compiler forget where a register came from: it can neither load it a second time nor turn the
  // loop around this into a memcpy of its own making.
  template <To kTo, bool kHash, std::size_t kLines>
  [[gnu::always_inline]] static void group(Byte* to, const Byte* from, LineRegs& sum,
                                           const Byte* secret) {
    LineRegs data[kLines];
    for (std::size_t i = 0; i < kLines; ++i) data[i] = load(from + i * kLineBytes);
    for (std::size_t i = 0; i < kLines; ++i) put<kTo>(to + i * kLineBytes, data[i]);
    if constexpr (kHash) {
      for (std::size_t i = 0; i < kLines; ++i) {
        for (std::size_t r = 0; r < kRegs; ++r) {
          sum.regs[r] = V::accumulate(sum.regs[r], data[i].regs[r], secret + 8 * i + r * V::kBytes);
        }
      }
    }
  }

  [[gnu::always_inline]] static LineRegs load(const Byte* from) {
    LineRegs data;
    for (std::size_t r = 0; r < kRegs; ++r) {
      data.regs[r] = V::load(from + r * V::kBytes);
      asm volatile("" : "+v"(data.regs[r]));
    }
    return data;
  }

  template <To kTo, bool kHash>
  [[gnu::always_inline]] static void line(Byte* to, const Byte* from, LineRegs& sum,
                                          const Byte* secret) {
    group<kTo, kHash, 1>(to, from, sum, secret);
  }

  [[gnu::always_inline]] static void scramble(LineRegs& sum) {
    for (std::size_t r = 0; r < kRegs; ++r) {
      sum.regs[r] = V::scramble(sum.regs[r], xxh3::kSecret + xxh3::kScrambleSecret + r * V::kBytes);
    }
  }

  // 16 lines, the secret's places constant.
  template <To kTo, bool kHash, bool kPrefetch>
  [[gnu::always_inline]] static void block(Byte* to, const Byte* from, LineRegs& sum) {
    constexpr std::size_t kGroup = kRegs == 4 ? 2 : 4;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < xxh3::kStripesPerBlock; i += kGroup) {
      if constexpr (kPrefetch) {
        for (std::size_t ahead = i; ahead < i + kGroup; ++ahead) {
          __builtin_prefetch(from + ahead * kLineBytes + kPrefetchBytes, 0, 3);
        }
      }
      group<kTo, kHash, kGroup>(to + i * kLineBytes, from + i * kLineBytes, sum,
                                xxh3::kSecret + 8 * i);
    }
    if constexpr (kHash) scramble(sum);
  }

  // Lines that are not a whole block; `stripe` is the place of the first in its block.
  template <To kTo, bool kHash>
  static void few(Byte* to, const Byte* from, std::size_t lines, LineRegs& sum,
                  std::size_t stripe) {
    for (std::size_t i = 0; i < lines; ++i) {
      line<kTo, kHash>(to + i * kLineBytes, from + i * kLineBytes, sum,
                       xxh3::kSecret + 8 * (stripe + i));
    }
    if constexpr (kHash) {
      if (stripe + lines == xxh3::kStripesPerBlock) scramble(sum);
    }
  }

  // `bytes` from the stripe `stripe` of a block on, none of them the hash's last.
  template <To kTo, bool kHash>
  static void run(Byte* to, const Byte* from, std::size_t bytes, LineRegs& sum,
                  std::size_t stripe) {
    const Byte* const end = from + bytes;
    if (stripe != 0) {
      std::size_t lines = xxh3::kStripesPerBlock - stripe;
      if (lines > bytes / kLineBytes) lines = bytes / kLineBytes;
      few<kTo, kHash>(to, from, lines, sum, stripe);
      from += lines * kLineBytes;
      if constexpr (kTo != To::kNowhere) to += lines * kLineBytes;
      if (from == end) return;
    }
    std::size_t left = static_cast<std::size_t>(end - from);
    while (left >= kBlockBytes) {
      if (left >= kBlockBytes + kPrefetchBytes) {
        block<kTo, kHash, true>(to, from, sum);
      } else {
        block<kTo, kHash, false>(to, from, sum);
      }
      from += kBlockBytes;
      if constexpr (kTo != To::kNowhere) to += kBlockBytes;
      left -= kBlockBytes;
    }
    if (left != 0) few<kTo, kHash>(to, from, left / kLineBytes, sum, 0);
  }

  template <To kTo>
  static void bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) {
    auto* out = static_cast<Byte*>(to);
    const auto* in = static_cast<const Byte*>(from);
    if (hash == nullptr) {
      LineRegs unused;
      run<kTo, false>(out, in, bytes, unused, 0);
    } else if (hash->is_short()) {
      copy_short<kTo>(out, in, bytes, *hash);
    } else if (bytes != 0) {
      copy_long<kTo>(out, in, bytes, *hash);
    }
  }

  // XXH3 takes up to three lines as a whole: they are kept until finish().
  template <To kTo>
  static void copy_short(Byte* to, const Byte* from, std::size_t bytes, FusedHash& hash) {
    for (std::size_t at = 0; at < bytes; at += kLineBytes) {
      const LineRegs data = load(from + at);
      put<kTo>(to + at, data);
      if (hash.done_bytes_ < sizeof hash.small_) {
        put<To::kStore>(hash.small_ + hash.done_bytes_, data);
      }
      hash.done_bytes_ += kLineBytes;
    }
  }

  static LineRegs load_sum(const FusedHash& hash) {
    LineRegs sum;
    const auto* kept = reinterpret_cast<const Byte*>(hash.accumulators_);
    for (std::size_t r = 0; r < kRegs; ++r) sum.regs[r] = V::load(kept + r * V::kBytes);
    return sum;
  }
  static void keep_sum(FusedHash& hash, const LineRegs& sum) {
    auto* kept = reinterpret_cast<Byte*>(hash.accumulators_);
    for (std::size_t r = 0; r < kRegs; ++r) V::store(kept + r * V::kBytes, sum.regs[r]);
  }

  template <To kTo>
  static void copy_long(Byte* to, const Byte* from, std::size_t bytes, FusedHash& hash) {
    LineRegs sum = load_sum(hash);
    const std::size_t stripe = hash.done_bytes_ / kLineBytes % xxh3::kStripesPerBlock;
    hash.done_bytes_ += bytes;
    const bool ends = hash.done_bytes_ == hash.total_bytes_;
    const std::size_t ordinary = ends ? bytes - kLineBytes : bytes;
    run<kTo, true>(to, from, ordinary, sum, stripe);
    if (ends) {
      Byte* const last = kTo == To::kNowhere ? nullptr : to + ordinary;
      line<kTo, true>(last, from + ordinary, sum, xxh3::kSecret + xxh3::kLastSecret);
    }
    keep_sum(hash, sum);
  }

  template <To kTo>
  static void write_lines(void* to, const Line* lines, std::size_t count) {
    LineRegs unused;
    for (std::size_t i = 0; i < count; ++i) {
      line<kTo, false>(static_cast<Byte*>(to) + i * kLineBytes,
                       reinterpret_cast<const Byte*>(lines + i), unused, nullptr);
    }
  }

  static void load_lines(const void* from, std::size_t count, Line* lines) {
    LineRegs unused;
    for (std::size_t i = 0; i < count; ++i) {
      line<To::kStore, false>(reinterpret_cast<Byte*>(lines + i),
                              static_cast<const Byte*>(from) + i * kLineBytes, unused, nullptr);
    }
  }

  static void gather_lines(const void* const* from, std::size_t first, std::size_t last,
                           std::size_t count, Line* lines) {
    const std::size_t head = count < kPrefetchLines ? count : kPrefetchLines;
    for (std::size_t i = first; i < head; ++i) __builtin_prefetch(from[i], 0, 3);
    for (std::size_t i = first; i < last; ++i) {
      if (i + kPrefetchLines < count) __builtin_prefetch(from[i + kPrefetchLines], 0, 3);
      load_lines(from[i], 1, lines + i);
    }
  }

  static constexpr CopyKernels kernels(Isa isa) {
    return {.isa = isa,
            .whole_lines = kRegs == 1,
            .store = bulk<To::kStore>,
            .stream = bulk<To::kStream>,
            .stream_narrow = bulk<To::kStreamNarrow>,
            .hash = bulk<To::kNowhere>,
            .store_runs = nullptr,  // these three: memory/copy_run_loops.h
            .stream_runs = nullptr,
            .stream_narrow_runs = nullptr,
            .store_lines = write_lines<To::kStore>,
            .stream_lines = write_lines<To::kStream>,
            .load_lines = load_lines,
            .gather_lines = gather_lines};
  }
};

}  // namespace cachalot::memory
