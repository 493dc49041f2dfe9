#include "pool/keeper/blocks.h"

#include <vector>

namespace cachalot::pool {

using memory::Rule;

BlockUse Blocks::grant(std::uint32_t block, std::uint32_t client, std::uint32_t incarnation) {
  const std::uint32_t generation = table_.use(block).generation + 1;
  table_.set_generation(block, generation);
  table_.set_state(block, BlockState::kGranted);
  table_.record(block).holder = static_cast<std::uint16_t>(client);
  table_.record(block).incarnation = incarnation;
  ledger_.touch(block);
  return {block, generation};
}

bool Blocks::holds(std::uint32_t client, std::uint32_t incarnation, const BlockUse& use) const {
  if (use.block >= table_.size()) return false;
  const BlockTable::Use& known = table_.use(use.block);
  const BlockTable::Record& record = table_.record(use.block);
  return known.state == BlockState::kGranted && known.generation == use.generation &&
         record.holder == client && record.incarnation == incarnation;
}

bool Blocks::renew(std::uint32_t block) {
  const std::uint32_t generation = table_.use(block).generation;
  ledger_.touch(block);
  if (generation == kLastGeneration) {
    table_.set_state(block, BlockState::kBad);
    return false;
  }
  if (!access_.domain().broken(Rule::kReturnedBlockKeepsGeneration)) {
    table_.set_generation(block, generation + 1);
  }
  return true;
}

void Blocks::set_usable(std::uint32_t usable) {
  usable_ = usable;
  std::vector<std::uint32_t> still_free;
  for (std::uint32_t block; (block = table_.pop_free()) != kNoBlock;) {
    if (block < usable) {
      still_free.push_back(block);
    } else {
      table_.set_state(block, BlockState::kAbsent);
    }
  }
  for (const std::uint32_t block : still_free) table_.push_free(block);
  for (std::uint32_t block = 0; block < usable; ++block) {
    if (table_.use(block).state == BlockState::kAbsent) free(block);
  }
  ledger_.flush();
}

std::uint32_t Blocks::count_in_use(std::uint32_t first) const {
  std::uint32_t count = 0;
  for (std::uint32_t block = first; block < table_.size(); ++block) {
    const BlockState state = table_.use(block).state;
    count += state == BlockState::kGranted || state == BlockState::kLive ||
             state == BlockState::kLimbo || state == BlockState::kQuarantined;
  }
  return count;
}

std::uint32_t Blocks::count_from(std::uint32_t first, BlockState state) const {
  std::uint32_t count = 0;
  for (std::uint32_t block = first; block < table_.size(); ++block)
    count += table_.use(block).state == state;
  return count;
}

void Blocks::settle_limbo() {
  if (limbo_.is_empty()) return;
  access_.domain().complete();  // the tombstones, before the pins are read
  for (const std::uint32_t block : limbo_.settle()) free(block);
  ledger_.flush();
}

std::uint32_t Blocks::end_grants(std::uint32_t client, std::uint32_t incarnation, bool is_drained) {
  std::uint32_t ended = 0;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    const BlockTable::Record& record = table_.record(block);
    if (table_.use(block).state != BlockState::kGranted || record.holder != client ||
        record.incarnation != incarnation) {
      continue;
    }
    ++ended;
    if (is_drained) {
      retire(block);
    } else {
      table_.set_state(block, BlockState::kQuarantined);
      ledger_.touch(block);
    }
  }
  ledger_.flush();
  access_.domain().order();
  return ended;
}

std::uint32_t Blocks::release(std::uint32_t first_holder, std::uint32_t end_holder) {
  std::uint32_t released = 0;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    if (table_.use(block).state != BlockState::kQuarantined) continue;
    const std::uint32_t holder = table_.record(block).holder;
    if (holder < first_holder || holder >= end_holder) continue;
    retire(block);
    ++released;
  }
  ledger_.flush();
  access_.domain().order();
  return released;
}

void Blocks::quarantine_all() {
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    table_.record(block).holder = kUnknownHolder;
    table_.set_state(block, BlockState::kQuarantined);
  }
}

void Blocks::offer_free() {
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    if (table_.use(block).state != BlockState::kFree) continue;
    // Also on a device that is given up: it stays until these reads have ended.
    if (limbo_.has_readers() && block < there_) {
      table_.set_state(block, BlockState::kLimbo);
      limbo_.add(block);
    } else if (block >= usable_) {
      table_.set_state(block, BlockState::kAbsent);
    } else if (table_.use(block).generation == kLastGeneration) {
      table_.set_state(block, BlockState::kBad);
    } else {
      table_.push_free(block);
    }
  }
  settle_limbo();
}

}  // namespace cachalot::pool
