// Chunks of physical memory, all of one size, with reference counts.
//
//   on the device ── fill_ready(), take() ──▶ ready ── take() ──▶ used, n references
//        ◀──── give_back() ───────────────────┘ ◀──── the last drop() ───┘
//
// 1. Every chunk has a credit of the budget, from before it is created until after it was released.
// 2. A used chunk has one reference for each vTensor that maps it and each recorded block that it
//    belongs to. It is not reused before the last one was dropped, which comes after it was unmapped.
// 3. take() gets all or nothing. Ready chunks come without a call of the driver; what is missing is
//    created, and counted: in steady state it is none. It does not fail for want of what fill_ready()
//    has in hand: that is waited for.
//
// @threads any; no lock is held while the device works
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "device_memory/backend.h"
#include "vtensor/chunk_budget.h"

namespace cachalot::vtensor {

struct Chunk {
  device_memory::Handle handle;
  std::uint64_t place = 0;  // in the store's table
};

struct ChunkCounts {
  std::uint64_t used = 0;        // with a reference
  std::uint64_t ready = 0;       // without, at hand
  std::uint64_t references = 0;  // of all used ones
  std::uint64_t peak_used = 0;
  std::uint64_t created_late = 0;  // by take(): nothing was ready
};

class ChunkStore {
 public:
  // Both outlive the store.
  ChunkStore(device_memory::Backend& backend, ChunkBudget& budget, std::uint64_t chunk_bytes)
      : backend_(backend), budget_(budget), chunk_bytes_(chunk_bytes) {}
  // Releases what is ready. What is still used stays with the backend, and so do its credits.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Appends `count` chunks to `chunks`, with a reference each.
  // @errors kNoSpace: budget or device have too few; `detail` says how many are missing
  Status take(std::uint64_t count, std::vector<Chunk>& chunks);
  void share(std::span<const Chunk> chunks);
  // @return how many became ready by it
  std::uint64_t drop(std::span<const Chunk> chunks);

  // Creates until `count` are ready, one call of the driver after the other.
  // @return whether there are; false: no credit, or the device is full
  bool fill_ready(std::uint64_t count);
  // Releases up to `count` ready chunks to the device, and gives their credits back.
  // @return how many
  std::uint64_t give_back(std::uint64_t count);

  // Counts the chunks that drop() and fill_ready() have made ready: whether another take() is worth trying.
  std::uint64_t arrived() const;

  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  ChunkCounts counts() const;

 private:
  struct Place {
    device_memory::Handle handle;
    std::uint64_t references = 0;
  };

  Result<device_memory::Handle> create();
  void add_ready(device_memory::Handle handle);
  Status create_missing(std::uint64_t missing, std::vector<device_memory::Handle>& created);

  device_memory::Backend& backend_;
  ChunkBudget& budget_;
  const std::uint64_t chunk_bytes_;

  mutable std::mutex mutex_;  // of all below
  std::vector<Place> places_;
  std::vector<std::uint64_t> ready_;   // places
  std::vector<std::uint64_t> vacant_;  // places without a handle
  std::condition_variable filled_;
  std::uint64_t filling_ = 0;  // chunks that fill_ready() creates now
  std::uint64_t arrived_ = 0;
  ChunkCounts counts_;
};

}  // namespace cachalot::vtensor
