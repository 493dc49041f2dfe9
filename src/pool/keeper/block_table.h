// What the keeper knows of every block, in its own memory: state, identity, and the entry it
// published. From this the directory and the ledger are written, never the other way round, except
// at a takeover.
//
// Invariants (is_valid)
//   1. free + granted + quarantined + limbo + live + bad + absent = all blocks.
//   2. A block's generation only grows; with the keeper's epoch it is the identity of one use.
//   3. live <= the capacity.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/huge_allocator.h"
#include "block_hash/block_hash.h"
#include "pool/format/format.h"

namespace cachalot::pool {

// Absent: it has no memory, or is on a device that is given up.
enum class BlockState : std::uint8_t {
  kFree,
  kGranted,
  kLive,
  kLimbo,
  kQuarantined,
  kBad,
  kAbsent
};
inline constexpr std::uint32_t kBlockStates = 7;

class BlockTable {
 public:
  // What a recency touch is checked against: 8 bytes a block, so that 1 M blocks fit in a cache.
  struct Use {
    std::uint32_t generation = 0;
    std::uint16_t namespace_id = 0;
    BlockState state = BlockState::kFree;
  };
  static_assert(sizeof(Use) == 8);

  struct Record {
    BlockHash hash;
    std::uint64_t checksum = 0;
    std::uint32_t length = 0;
    std::uint32_t slot = 0;           // in the directory, while live
    std::uint32_t parent = kNoBlock;  // while live
    std::uint32_t incarnation = 0;
    std::uint16_t holder = 0;  // client slot, while granted or quarantined
    std::uint16_t flags = 0;   // of the entry
  };

  explicit BlockTable(std::uint32_t blocks)
      : uses_(blocks), records_(blocks), free_ring_(blocks), counts_{} {
    counts_[0] = blocks;
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(uses_.size()); }
  const Use& use(std::uint32_t block) const { return uses_[block]; }
  Record& record(std::uint32_t block) { return records_[block]; }
  const Record& record(std::uint32_t block) const { return records_[block]; }
  std::uint32_t count(BlockState state) const { return counts_[static_cast<std::size_t>(state)]; }

  void set_state(std::uint32_t block, BlockState state) {
    --counts_[static_cast<std::size_t>(uses_[block].state)];
    ++counts_[static_cast<std::size_t>(state)];
    uses_[block].state = state;
  }
  void set_generation(std::uint32_t block, std::uint32_t generation) {
    uses_[block].generation = generation;
  }
  void set_namespace(std::uint32_t block, std::uint32_t namespace_id) {
    uses_[block].namespace_id = static_cast<std::uint16_t>(namespace_id);
  }

  // For a takeover's threads, before any other thread looks: claims a block as live, without counting it.
  // False if another entry has claimed it. recount() follows. @threads any
  bool claim_live(std::uint32_t block) {
    return std::atomic_ref(uses_[block].state)
               .exchange(BlockState::kLive, std::memory_order_relaxed) != BlockState::kLive;
  }
  void recount();

  // Freed blocks are reused first-in first-out: the longer a block rests, the rarer a reader is
  // that looked it up before and has to throw its bytes away.
  void push_free(std::uint32_t block) {
    free_ring_[(free_first_ + free_count_++) % free_ring_.size()] = block;
  }
  std::uint32_t pop_free() {
    if (free_count_ == 0) return kNoBlock;
    const std::uint32_t block = free_ring_[free_first_];
    free_first_ = free_first_ + 1 == free_ring_.size() ? 0 : free_first_ + 1;
    --free_count_;
    return block;
  }

  void prefetch_use(std::uint32_t block) const { __builtin_prefetch(&uses_[block]); }
  // For a block number that was not checked yet.
  void prefetch_all(std::uint32_t block) const {
    if (block >= uses_.size()) return;
    __builtin_prefetch(&uses_[block]);
    __builtin_prefetch(&records_[block]);
    __builtin_prefetch(reinterpret_cast<const char*>(&records_[block]) + sizeof(Record) - 1);
  }

  // Invariant 1, and that every free block is in the queue once.
  bool is_valid() const;

  std::uint64_t memory_bytes() const {
    return uses_.size() * (sizeof(Use) + sizeof(Record) + sizeof(std::uint32_t));
  }

 private:
  base::HugeVector<Use> uses_;
  base::HugeVector<Record> records_;
  base::HugeVector<std::uint32_t> free_ring_;
  std::size_t free_first_ = 0, free_count_ = 0;
  std::uint32_t counts_[kBlockStates];
};

}  // namespace cachalot::pool
