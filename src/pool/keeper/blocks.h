// All blocks of the pool and how their state changes: table, ledger and limbo, kept in step.
//
//     free --grant--> granted --publish--> live --retire--> free, or limbo while a pinned read may see it
//      ^                 |  \--end_grants--> quarantined --release--> free or limbo
//      |-----free--------|                                   limbo --settle_limbo--> free
//
// A block whose generation can grow no more becomes bad instead of free: the next use would repeat an
// identity. A block from usable() on becomes absent instead of free.
//
// Invariants
//   1. Those of BlockTable.
//   2. A block that changed since the last flush_ledger() is noted for the next one, unless its new record
//      says the same (ledger.h).
//
// @threads  one, but for a takeover's (BlockTable::claim_live, write_ledger)
#pragma once

#include <cstdint>

#include "pool/format/access.h"
#include "pool/format/requests.h"
#include "pool/keeper/block_table.h"
#include "pool/keeper/ledger.h"
#include "pool/keeper/limbo.h"

namespace cachalot::pool {

class Blocks {
 public:
  explicit Blocks(const Access& access)
      : access_(access),
        table_(access.geometry.blocks),
        ledger_(access, table_),
        limbo_(access),
        usable_(access.layout.first_blocks),
        there_(usable_) {}
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  // Once, before anything is written: the keeper area of the ledger.
  void rule(std::uint32_t area) { ledger_.rule(area); }

  const BlockTable& table() const { return table_; }
  BlockTable& table() { return table_; }
  Limbo& limbo() { return limbo_; }
  std::uint32_t count(BlockState state) const { return table_.count(state); }

  // Blocks, from 0 on, that are handed out, and how many of them may be live at once.
  std::uint32_t usable() const { return usable_; }
  std::uint32_t capacity() const { return usable_ - access_.geometry.spare_blocks(); }
  // Before a takeover: how many its blocks are.
  // @param usable  at least the first device's
  // @param there   all that have memory: those from `usable` on are on a device that is given up
  void begin_with(std::uint32_t usable, std::uint32_t there) {
    usable_ = usable;
    there_ = there;
  }
  // Free blocks from `usable` on become absent, absent ones before it free. @cost a look at every block
  void set_usable(std::uint32_t usable);
  // Blocks from `first` on in this state, and those that clients may store into or read. @cost a look at each of them
  std::uint32_t count_from(std::uint32_t first, BlockState state) const;
  std::uint32_t count_in_use(std::uint32_t first) const;

  // A block that was just taken from the queue of free ones gets the next generation.
  BlockUse grant(std::uint32_t block, std::uint32_t client, std::uint32_t incarnation);
  // Whether this client's incarnation holds this use of a block.
  bool holds(std::uint32_t client, std::uint32_t incarnation, const BlockUse& use) const;
  // A granted block stays its holder's for another use: a new generation, recorded before the answer (W3).
  // False if it has none left: then it is bad, and held no more.
  bool renew(std::uint32_t block);
  // A granted block whose record is complete is live from now on.
  void publish(std::uint32_t block, std::uint32_t namespace_id) {
    table_.set_namespace(block, namespace_id);
    table_.set_state(block, BlockState::kLive);
    ledger_.touch(block);
  }
  // A block that no reader has seen in this use.
  void free(std::uint32_t block) {
    const bool is_worn_out = table_.use(block).generation == kLastGeneration;
    const bool is_absent = !is_worn_out && block >= usable_;
    table_.set_state(block, is_worn_out ? BlockState::kBad
                            : is_absent ? BlockState::kAbsent
                                        : BlockState::kFree);
    ledger_.touch(block);
    if (!is_worn_out && !is_absent) table_.push_free(block);
  }
  // A block that readers may have seen: free when no pinned read can be at it any more. That is one
  // that was evicted, and also one that a client held under the last keeper: its commit may have
  // reached the directory after the successor's scan, and counted until that one raised min_epoch.
  void retire(std::uint32_t block) {
    if (!limbo_.has_readers()) return free(block);
    table_.set_state(block, BlockState::kLimbo);
    ledger_.touch(block);
    limbo_.add(block);
  }
  // Blocks that no pinned read can see any more become free.
  // @cost nothing if the limbo is empty; else a complete() and the lines of all pins
  void settle_limbo();

  // Ends all grants of an incarnation: retired if there is evidence that it has stopped storing
  // (`is_drained`), else quarantined. Flushes the ledger, ordered.
  // @return blocks @cost a look at every block
  std::uint32_t end_grants(std::uint32_t client, std::uint32_t incarnation, bool is_drained);
  // Retires all quarantined blocks of holders [first, end). Flushes the ledger, ordered.
  // @return blocks @cost a look at every block
  std::uint32_t release(std::uint32_t first_holder, std::uint32_t end_holder);

  // Writes the ledger lines of all blocks that have changed. Neither ordered nor complete on return.
  void flush_ledger() { ledger_.flush(); }

  // For a takeover.
  void write_ledger(std::uint32_t first, std::uint32_t end) { ledger_.write(first, end); }
  void quarantine_all();
  // What is free goes into the queue, unless a pinned read may still see what was there before.
  void offer_free();

 private:
  const Access& access_;
  BlockTable table_;
  Ledger ledger_;
  Limbo limbo_;
  std::uint32_t usable_;
  std::uint32_t there_;  // at the takeover
};

}  // namespace cachalot::pool
