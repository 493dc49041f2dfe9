// Which of four ways a call's bytes go, by the size of its fragments: a table, from measurements on an H100 and an H200 (PCIe
// 5.0 x16, docs/gpu). There one large copy has 55 GB/s, and no kernel more than 51 (gather) and 50 (scatter).
//
//   threads       any size and alignment: 8 multiprocessors have 46 to 50 GB/s from 2 KiB on, and 27 to 43 at 256 bytes
//   bulk          4 multiprocessors have 49 to 51 GB/s from 8 KiB on; at 4 KiB half as much as threads. It slows a
//                 kernel that fills the GPU by 1.6 %, threads by 3.6 %. It waits for a multiprocessor whose kernel has
//                 left it enough shared memory.
//   batch         no multiprocessor. A copy takes 0.4 to 1.9 us to submit, not the same on every machine: 16 to 36 GB/s at
//                 16 KiB, 33 to 44 at 64 KiB, 52 from 256 KiB on. To the device a copy of 8 to 24 KiB takes 3 to 5 us.
//   copy engine   the same, 2 to 3 us a copy
//
// The number of fragments makes no difference that is worth a row: 16 copies of 1 KiB take 17 us by threads and 22 in a
// batch, 16 of 32 KiB 27 and 32.
//
// @source Beluga (arXiv 2511.20172) §3, O6; CUDA driver API reference
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

// Bytes of all copies by the ways that they went.
struct WayBytes {
  std::uint64_t threads = 0, bulk = 0, batch = 0, copy_engine = 0;
};

struct WayFacts {
  std::uint64_t shortest_bytes = 0;  // of the call's fragments
  bool aligned = false;              // all to 16 bytes, on both sides
  bool has_bulk = false;             // sm_90 and later
  bool can_batch = false;            // a driver of CUDA 12.8 and later, and not the legacy stream
  // The pool is mapped past the host's caches: then copies by the driver below 24 KB take a way
  // through the processor that is slow there (O6).
  bool bypasses_caches = false;
};

// From so many bytes a fragment on.
struct WayRow {
  std::uint64_t from_bytes;
  Way way;
  Way without_batches;
};
inline constexpr WayRow kWays[] = {
    {0, Way::kThreads, Way::kThreads},
    {8 << 10, Way::kBulk, Way::kBulk},
    {256 << 10, Way::kBatch, Way::kBulk},
    {1 << 20, Way::kBatch, Way::kCopyEngine},
};
inline constexpr std::uint64_t kLeastBypassingCopyBytes = 24 << 10;

// What `wanted` comes to.
constexpr Way choose_way(const WayFacts& facts, Way wanted) {
  Way way = wanted;
  if (wanted == Way::kChoose) {
    for (const WayRow& row : kWays) {
      if (facts.shortest_bytes < row.from_bytes) break;
      way = facts.can_batch ? row.way : row.without_batches;
    }
  }
  if (way == Way::kBatch && !facts.can_batch) way = Way::kCopyEngine;
  const bool slow = facts.bypasses_caches && facts.shortest_bytes < kLeastBypassingCopyBytes;
  if ((way == Way::kBatch || way == Way::kCopyEngine) && slow) way = Way::kBulk;
  if (way == Way::kBulk && !(facts.aligned && facts.has_bulk)) way = Way::kThreads;
  return way;
}

// Copies in one call of the driver's. The device begins when the call ends, so the first call is shorter, and a call is
// submitted while the one before copies. A driver has crashed with 51,828 in one call (vLLM 49276).
inline constexpr std::uint32_t kFirstBatchCopies = 16, kBatchCopies = 64;

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
