// The copy loops under the coherence domains, one set per instruction path.
//
// These move bytes and nothing more: no fence, no flush, no order. What has to stand around them is
// the domains' business (memory/coherence.cpp), and no other code calls them on shared memory.
#pragma once

#include <cstddef>

#include "memory/copy_run.h"
#include "memory/cpu.h"
#include "memory/line.h"

namespace cachalot::memory {

class FusedHash;

struct CopyKernels {
  // @shape bytes: a multiple of 64; hash: may be null (not for `hash`)
  using Bulk = void (*)(void* to, const void* from, std::size_t bytes, FusedHash* hash);

  Isa isa;
  bool whole_lines;  // a line is one load and one store instruction

  Bulk store;          // cached stores; both sides may be anywhere
  Bulk stream;         // non-temporal stores; `to` is 64-byte aligned
  Bulk stream_narrow;  // non-temporal 16-byte stores; `to` is 16-byte aligned
  Bulk hash;           // no stores: `to` is not looked at

  // The same for runs that come one after the other. The source is prefetched across their ends,
  // where the hardware prefetcher stops: that is what short runs cost otherwise.
  // @shape bytes of every run: as Bulk; `store_runs` without a hash takes any number
  using Runs = void (*)(const CopyRun* runs, std::size_t count, FusedHash* hash);

  Runs store_runs;
  Runs stream_runs;
  Runs stream_narrow_runs;

  // Lines in the pool are 64-byte aligned.
  void (*store_lines)(void* to, const Line* lines, std::size_t count);
  void (*stream_lines)(void* to, const Line* lines, std::size_t count);
  void (*load_lines)(const void* from, std::size_t count, Line* lines);
  // Scattered lines [first, last) of `count`, their misses overlapped with each other and, if
  // called piece by piece from 0 on, with those of the pieces that follow.
  void (*gather_lines)(const void* const* from, std::size_t first, std::size_t last,
                       std::size_t count, Line* lines);
};

// The loops for `isa`, or for the widest path below it that this machine has.
const CopyKernels& copy_kernels(Isa isa);

extern const CopyKernels kCopySse2;
extern const CopyKernels kCopyAvx2;
extern const CopyKernels kCopyAvx512;

// How far ahead of the copy a source is prefetched, beyond the page's end too, where the hardware
// prefetcher stops. Measured (docs/design/memory.md): flat from 2 to 4 KiB. The first lines are not
// prefetched: the core runs ahead of its misses by more than that itself, and 32 prefetches before
// the first load cost up to a sixth of a 16 KiB copy.
inline constexpr std::size_t kPrefetchBytes = 3072;
// The same for scattered lines: more than a core has misses in flight, so that none waits for the
// loop. A caller that looks at each line as it comes hints and gathers in small pieces instead (pool/directory).
inline constexpr std::size_t kPrefetchLines = 64;

}  // namespace cachalot::memory
