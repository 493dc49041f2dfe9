// Which of four ways a call's bytes go, by the size and the number of its fragments: a table, made of what others
// measured and of estimates.
//
// PCIe 5.0 x16, 50 to 54 GB/s; nothing of it measured with this code yet:
//   threads       a warp's item costs about a microsecond of latency to the pool, which 128 warps hide;
//                 any size and alignment. Its cost is the multiprocessors it takes from the engine: beside a
//                 prefill a kernel waited 1.6 ms for one (LMCache 5067).
//   bulk          one thread a block sets a transfer going every 0.2 us (77 instructions of PTX, most of
//                 them dependent, while its warp has looked up 32 of them): 4 of them reach 50 GB/s from
//                 2.5 KiB a transfer on.
//   batch         no multiprocessor; 0.5 us a copy to submit (vLLM 48434). 10,000 copies of 28 KiB in one call have
//                 27.5 GB/s, of 64 KiB 38.8 (42212): as if the transfer began after these 5 ms. So calls are cut
//                 (kBatchCopies). Copies to the device of 4 to 24 KiB: 5 to 7 GB/s (42212). A kernel of
//                 Triton's is faster from 16 to 64 copies of 1 to 24 KiB on, and from about 100 of 28 KiB
//                 (57343, 57555: H100, A30).
//   copy engine   the same, 1.5 to 2 us a copy to submit: 75 to 100 KB worth of transfer, a tenth of
//                 1 MiB. Beluga: 10.55 us for one of 16 KiB, 2.68 us of it moving.
//
// @source Beluga (arXiv 2511.20172) §3, O6; CUDA driver API reference; vLLM, LMCache: the threads named above
#pragma once

#include <cstdint>

namespace cachalot::kv {

enum class Way {
  kChoose,      // by the table
  kThreads,     // a kernel's loads and stores
  kBulk,        // a kernel's bulk transfers; by threads where something is not aligned to 16 bytes
  kBatch,       // copies of the driver's, many in a call; one a call on the legacy stream
  kCopyEngine,  // copies of the driver's, one a call
};

struct WayFacts {
  std::uint64_t shortest_bytes = 0;  // of the call's fragments
  std::uint64_t fragments = 0;       // of the call, before any are merged or cut
  bool aligned = false;              // all to 16 bytes, on both sides
  bool has_bulk = false;             // sm_90 and later
  bool can_batch = false;            // a driver of CUDA 12.8 and later, and not the legacy stream
  // The pool is mapped past the host's caches: then copies by the driver below 24 KB take a way
  // through the processor that is slow there (O6).
  bool bypasses_caches = false;
};

// From so many bytes a fragment on. To be measured: tools/check-gpu. A kernel of ours is launched sooner than one of
// Triton's, so few copies are fewer here.
struct WayRow {
  std::uint64_t from_bytes;
  std::uint64_t most_batched;  // up to so many fragments a call: kBatch, where it can be
  Way way;                     // else
};
inline constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};
inline constexpr WayRow kWays[] = {
    {0, 16, Way::kThreads},
    {4 << 10, 16, Way::kBulk},
    {28 << 10, 64, Way::kBulk},
    {32 << 10, kAnyNumber, Way::kBulk},
    {1 << 20, kAnyNumber, Way::kCopyEngine},
};
inline constexpr std::uint64_t kLeastBypassingCopyBytes = 24 << 10;

// What `wanted` comes to.
constexpr Way choose_way(const WayFacts& facts, Way wanted) {
  Way way = wanted;
  if (wanted == Way::kChoose) {
    for (const WayRow& row : kWays) {
      if (facts.shortest_bytes < row.from_bytes) break;
      way = facts.can_batch && facts.fragments <= row.most_batched ? Way::kBatch : row.way;
    }
  }
  if (way == Way::kBatch && !facts.can_batch) way = Way::kCopyEngine;
  const bool slow = facts.bypasses_caches && facts.shortest_bytes < kLeastBypassingCopyBytes;
  if ((way == Way::kBatch || way == Way::kCopyEngine) && slow) way = Way::kBulk;
  if (way == Way::kBulk && !(facts.aligned && facts.has_bulk)) way = Way::kThreads;
  return way;
}

// Copies in one call of the driver's: 128 us to submit, in which the call before transfers; from 32 KiB a copy on, that
// takes longer. A driver has crashed with 51,828 in one call (vLLM 49276).
inline constexpr std::uint32_t kBatchCopies = 256;

// Of a stage in shared memory; a thread block has kStages (kv/fused/copy_bulk.h), 64 KiB in all.
inline constexpr std::uint32_t kStageBytes = 8 << 10;

// Thread blocks of a launch, so that the engine's own kernels keep the other multiprocessors: where one of
// ours is, a kernel that needs a multiprocessor's memory or registers whole has to wait for it. So they are
// few, and each has much in flight.
//   in bulk     a thirty-second, at most 4. H100, H200 (132), B200 (148): 4, of 7 x 8 KiB in flight each:
//               224 KiB, twice what 50 GB/s need at 2.2 us
//   by threads  a sixteenth, at most 8. A100 (108): 6; H200: 8, of 512 threads x 64 bytes: 256 KiB
constexpr std::uint32_t default_thread_blocks(Way way, std::uint32_t multiprocessors) {
  const std::uint32_t most = way == Way::kBulk ? 4 : 8;
  const std::uint32_t share = multiprocessors / (way == Way::kBulk ? 32 : 16);
  return share < 1 ? 1 : share > most ? most : share;
}

}  // namespace cachalot::kv
