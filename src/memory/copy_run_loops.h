// The loops of memory/copy.h over many runs; memory/copy_loops.h has those over one, and says how a
// file that includes this is compiled.
//
// A copy of many runs loses at each run's start: the hardware prefetcher has not caught up, and a
// prefetch a fixed distance ahead of the copy points behind the run. So the prefetch walks through
// the sequence of runs, ahead of the copy, in one of two ways (measured: docs/design/kv.md):
//
//   near  every line, kPrefetchBytes ahead, into the first-level cache: runs that follow each other
//         in the source, where the hardware carries on, and short ones
//   far   only lines of the runs to come, kFarBytes ahead, into the second-level cache, for the
//   first
//         has no room for so much: longer runs from places apart
#pragma once

#include "memory/copy_loops.h"

namespace cachalot::memory {

template <class V>
struct CopyRunLoops : CopyLoops<V> {
  using Loops = CopyLoops<V>;
  using typename Loops::Byte;
  using typename Loops::LineRegs;
  static constexpr std::size_t kGroup = Loops::kRegs == 4 ? 2 : 4;

  static constexpr std::size_t kFarBytes = 8192;
  static constexpr std::size_t kFarFromBytes = 8192;  // runs as long as this, or longer

  struct Ahead {
    const CopyRun* run;
    const CopyRun* const end;
    std::size_t at = 0;
    const bool far;

    Ahead(const CopyRun* first, std::size_t count)
        : run(first), end(first + count), far(count > 1 && are_far(first[0], first[1])) {
      skip(far ? kFarBytes : kPrefetchBytes);
    }

    static bool are_far(const CopyRun& one, const CopyRun& next) {
      return one.bytes >= kFarFromBytes &&
             static_cast<const Byte*>(one.from) + one.bytes != next.from;
    }
    void skip(std::size_t bytes) {
      while (run != end && at + bytes >= run->bytes) {
        bytes -= run->bytes - at;
        at = 0;
        ++run;
      }
      at += run == end ? 0 : bytes;
    }
    // The copy is at `left` bytes before the end of `current`, whose lines need no prefetch (far).
    void follow(const CopyRun* current, std::size_t left) {
      if (run > current) return;
      run = current;
      at = current->bytes - left;
      skip(kFarBytes);
    }
    [[gnu::always_inline]] void prefetch(std::size_t lines) {
      for (; lines != 0 && run != end; --lines) {
        const Byte* const line = static_cast<const Byte*>(run->from) + at;
        far ? __builtin_prefetch(line, 0, 2) : __builtin_prefetch(line, 0, 3);
        at += kLineBytes;
        if (at >= run->bytes) {
          at = 0;
          ++run;
        }
      }
    }
  };

  // Whole lines of a run; `stripe` is the place of the first in its XXH3 block. @return that of the
  // line behind them
  template <To kTo, bool kHash>
  [[gnu::always_inline]] static std::size_t run_lines(const CopyRun* run, std::size_t lines,
                                                      LineRegs& sum, std::size_t stripe,
                                                      Ahead& ahead) {
    auto* to = static_cast<Byte*>(run->to);
    const auto* from = static_cast<const Byte*>(run->from);
    while (lines != 0) {
      const std::size_t room = kHash ? xxh3::kStripesPerBlock - stripe : kGroup;
      const Byte* const secret = kHash ? xxh3::kSecret + 8 * stripe : nullptr;
      std::size_t step = lines >= kGroup && room >= kGroup ? kGroup : 1;
      const bool inside = ahead.far && lines * kLineBytes > kFarBytes;
      if (inside && stripe == 0) {
        step = xxh3::kStripesPerBlock;
        Loops::template block<kTo, kHash, true>(to, from, sum);
      } else {
        if (ahead.far && !inside) ahead.follow(run, lines * kLineBytes);
        if (!inside) ahead.prefetch(step);
        if (step == kGroup) {
          Loops::template group<kTo, kHash, kGroup>(to, from, sum, secret);
        } else {
          Loops::template group<kTo, kHash, 1>(to, from, sum, secret);
        }
        if constexpr (kHash) {
          stripe += step;
          if (stripe == xxh3::kStripesPerBlock) {
            Loops::scramble(sum);
            stripe = 0;
          }
        }
      }
      to += step * kLineBytes;
      from += step * kLineBytes;
      lines -= step;
    }
    return stripe;
  }

  // Fewer bytes than a line, in two overlapping halves.
  template <class Word>
  [[gnu::always_inline]] static void ends(Byte* to, const Byte* from, std::size_t bytes) {
    Word first, last;
    __builtin_memcpy(&first, from, sizeof first);
    __builtin_memcpy(&last, from + bytes - sizeof last, sizeof last);
    __builtin_memcpy(to, &first, sizeof first);
    __builtin_memcpy(to + bytes - sizeof last, &last, sizeof last);
  }
  [[gnu::always_inline]] static void few_bytes(Byte* to, const Byte* from, std::size_t bytes) {
    for (; bytes > 32; bytes -= 16, to += 16, from += 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    if (bytes >= 16) return ends<__m128i>(to, from, bytes);
    if (bytes >= 8) return ends<std::uint64_t>(to, from, bytes);
    if (bytes >= 4) return ends<std::uint32_t>(to, from, bytes);
    if (bytes >= 2) return ends<std::uint16_t>(to, from, bytes);
    if (bytes == 1) *to = *from;
  }

  template <To kTo>
  static void runs_plain(const CopyRun* runs, std::size_t count) {
    Ahead ahead(runs, count);
    LineRegs unused;
    for (const CopyRun* run = runs; run != runs + count; ++run) {
      auto* const to = static_cast<Byte*>(run->to);
      const auto* const from = static_cast<const Byte*>(run->from);
      run_lines<kTo, false>(run, run->bytes / kLineBytes, unused, 0, ahead);
      if constexpr (kTo == To::kStore) {
        const std::size_t whole = run->bytes / kLineBytes * kLineBytes;
        if (whole != run->bytes) {
          ahead.prefetch(1);  // the tail counts as a line there too, or the copy would catch up
          few_bytes(to + whole, from + whole, run->bytes - whole);
        }
      }
    }
  }

  // The hash's state stays in registers from run to run.
  template <To kTo>
  static void runs_hashed(const CopyRun* runs, std::size_t count, FusedHash& hash) {
    Ahead ahead(runs, count);
    LineRegs sum = Loops::load_sum(hash);
    std::size_t stripe = hash.done_bytes_ / kLineBytes % xxh3::kStripesPerBlock;
    std::uint64_t left = hash.total_bytes_ - hash.done_bytes_;
    for (const CopyRun* run = runs; run != runs + count; ++run) {
      auto* const to = static_cast<Byte*>(run->to);
      const auto* const from = static_cast<const Byte*>(run->from);
      if (run->bytes == 0) continue;
      const std::size_t ordinary = run->bytes == left ? run->bytes - kLineBytes : run->bytes;
      stripe = run_lines<kTo, true>(run, ordinary / kLineBytes, sum, stripe, ahead);
      if (ordinary != run->bytes) {
        Loops::template line<kTo, true>(to + ordinary, from + ordinary, sum,
                                        xxh3::kSecret + xxh3::kLastSecret);
      }
      left -= run->bytes;
    }
    hash.done_bytes_ = hash.total_bytes_ - left;
    Loops::keep_sum(hash, sum);
  }

  template <To kTo>
  static void runs(const CopyRun* runs, std::size_t count, FusedHash* hash) {
    if (hash == nullptr) return runs_plain<kTo>(runs, count);
    if (!hash->is_short()) return runs_hashed<kTo>(runs, count, *hash);
    for (std::size_t i = 0; i < count; ++i) {
      Loops::template bulk<kTo>(runs[i].to, runs[i].from, runs[i].bytes, hash);
    }
  }

  static constexpr CopyKernels kernels(Isa isa) {
    CopyKernels all = Loops::kernels(isa);
    all.store_runs = runs<To::kStore>;
    all.stream_runs = runs<To::kStream>;
    all.stream_narrow_runs = runs<To::kStreamNarrow>;
    return all;
  }
};

}  // namespace cachalot::memory
