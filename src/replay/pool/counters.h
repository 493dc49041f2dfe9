// What an engine counts while it replays, readable by the parent at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace cachalot::replay {

enum class ReplayCounter : std::uint32_t {
  kRequests,
  kInputTokens,
  kHitTokens,  // min(hit blocks * block_tokens, input tokens) of each request
  kBlocks,
  kHitBlocks,
  kRemoteHitBlocks,   // of kHitBlocks, those that another engine wrote
  kStorageHitBlocks,  // of kHitBlocks, those that came from storage for this request
  kPeerHitBlocks,     // likewise from the pools of other hosts
  kWrittenBlocks,     // published
  kDuplicateBlocks,   // computed, but another engine's was published before
  kUnstoredBlocks,    // missing, and not stored: no room, or the prefix was evicted meanwhile
  kBytesRead,         // out of the pool, discarded ones included
  kBytesWritten,      // into the pool, duplicates that were copied included
  kCheckedBlocks,
  kCheckedBytes,
  kVerifyErrors,  // blocks with a wrong byte
  kStaleReads,    // reads that ended at a block which was reused meanwhile
  kDamagedReads,  // reads that ended at a block whose checksum does not match
  kLookupNs,      // where the time went; waiting for a request to arrive is in none of them
  kFetchNs,       // waiting for blocks from storage and peers
  kArchiveNs,     // waiting for the storage to keep up
  kReadNs,
  kVerifyNs,
  kComputeNs,
  kWriteNs,
  kCount
};

// @threads one writes; any may read
class ReplayCounters {
 public:
  static constexpr std::uint32_t kCount = static_cast<std::uint32_t>(ReplayCounter::kCount);

  void add(ReplayCounter counter, std::uint64_t n) {
    std::atomic<std::uint64_t>& value = values_[static_cast<std::uint32_t>(counter)];
    value.store(value.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t operator[](ReplayCounter counter) const {
    return values_[static_cast<std::uint32_t>(counter)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kCount> values_{};
};

}  // namespace cachalot::replay
