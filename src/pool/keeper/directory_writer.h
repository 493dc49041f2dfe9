// The keeper's hand on the directory: where entries go, and the lines that say so.
//
// Only the ruling keeper has one (R1). Its own arrays are the truth; lines are written from them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/huge_allocator.h"
#include "pool/format/access.h"
#include "pool/keeper/block_observer.h"
#include "pool/keeper/block_table.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

class DirectoryWriter {
 public:
  DirectoryWriter(const Access& access, const BlockTable& blocks);
  // They hear of every change.
  BlockObservers& observers() { return observers_; }
  const BlockObservers& observers() const { return observers_; }
  // Once, before anything is written: the epoch that entries get.
  void rule(std::uint32_t epoch) { epoch_ = epoch; }

  // The live block with this hash, or kNoBlock.
  std::uint32_t find(const BlockHash& hash, std::uint32_t namespace_id) const;

  // Chooses a slot for a hash: its home if free, else another of the bucket; kNoSlot: bucket full.
  static constexpr std::uint32_t kNoSlot = 0xffffffffu;
  std::uint32_t choose_slot(const BlockHash& hash, std::uint32_t namespace_id) const;

  // Writes the entry of a block whose record is complete into its slot, then, if that is not its
  // home, the home line's bit: a reader never follows a bit to an entry that is not there yet.
  void publish(std::uint32_t block);

  // Writes a tombstone over a block's entry, then clears its home's bit. Not complete on return.
  void retract(std::uint32_t block);

  // Takes a live block over where its record says it stands (takeover); sweep() writes it.
  // False, and nothing done, if its hash stands there already.
  bool adopt(std::uint32_t block);
  // Takes it out again, before sweep().
  void disown(std::uint32_t block);
  // Writes slots [first, end) again, with this keeper's epoch (takeover). @threads any, for slots of
  // different buckets
  void sweep(std::uint32_t first, std::uint32_t end);
  // The block that stands in a slot, or kNoBlock.
  std::uint32_t stands_at(std::uint32_t slot) const { return block_at_[slot]; }

  // Compares the next `count` slots, round and round, with what they should say, and writes those again
  // that differ: a keeper that woke up after its time may have written them. @return lines written
  std::uint32_t scrub(std::uint32_t count);

  // The blocks whose entries stand in the bucket of `hash`.
  template <class F>
  void for_each_in_bucket(const BlockHash& hash, std::uint32_t namespace_id, F&& f) const {
    const Home home = home_of(hash, namespace_id, slots());
    for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
      if (block_at_[home.bucket + i] != kNoBlock) f(block_at_[home.bucket + i]);
    }
  }

  // Every live block stands where its record says, in the bucket of its hash, and is found.
  bool is_valid() const;
  std::uint64_t memory_bytes() const {
    return block_at_.size() * (sizeof(std::uint32_t) + sizeof(std::uint64_t));
  }

 private:
  std::uint32_t slots() const { return static_cast<std::uint32_t>(block_at_.size()); }
  Entry entry_of(std::uint32_t slot) const;
  void tell_published(std::uint32_t block);
  void write_slot(std::uint32_t slot) {
    access_->region.publish(access_->layout.entry(slot), entry_of(slot));
  }

  const Access* access_;
  const BlockTable* blocks_;
  BlockObservers observers_;
  std::uint32_t epoch_ = 0;
  std::uint32_t scrub_at_ = 0;
  base::HugeVector<std::uint32_t> block_at_;  // by slot
  base::HugeVector<std::uint64_t> spill_;     // by slot: whose home it is
};

}  // namespace cachalot::pool
