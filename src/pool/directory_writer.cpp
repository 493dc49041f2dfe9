#include "pool/directory_writer.h"

#include <bit>

namespace cachalot::pool {
namespace {

std::uint64_t bit_of(std::uint32_t slot) { return std::uint64_t{1} << (slot % kBucketSlots); }

}  // namespace

DirectoryWriter::DirectoryWriter(const Access& access, const BlockTable& blocks, std::uint32_t epoch)
    : access_(&access),
      blocks_(&blocks),
      epoch_(epoch),
      block_at_(access.geometry.directory_slots, kNoBlock),
      spill_(access.geometry.directory_slots, 0) {}

std::uint32_t DirectoryWriter::find(const BlockHash& hash, std::uint32_t namespace_id) const {
  const Home home = home_of(hash, namespace_id, slots());
  const auto is_it = [&](std::uint32_t slot) {
    const std::uint32_t block = block_at_[slot];
    return block != kNoBlock && blocks_->record(block).hash == hash &&
           blocks_->use(block).namespace_id == namespace_id;
  };
  if (is_it(home.slot)) return block_at_[home.slot];
  for (std::uint64_t spill = spill_[home.slot]; spill != 0; spill &= spill - 1) {
    const std::uint32_t slot = home.bucket + static_cast<std::uint32_t>(std::countr_zero(spill));
    if (is_it(slot)) return block_at_[slot];
  }
  return kNoBlock;
}

std::uint32_t DirectoryWriter::choose_slot(const BlockHash& hash, std::uint32_t namespace_id) const {
  const Home home = home_of(hash, namespace_id, slots());
  // From home on, so that the second access is near the first.
  for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
    const std::uint32_t slot = home.bucket + (home.slot - home.bucket + i) % kBucketSlots;
    if (block_at_[slot] == kNoBlock) return slot;
  }
  return kNoSlot;
}

void DirectoryWriter::write_slot(std::uint32_t slot) {
  Entry entry{};
  entry.block = entry.parent = kNoBlock;
  entry.state = kEntryFree;
  entry.spill = spill_[slot];
  entry.epoch = epoch_;
  if (const std::uint32_t block = block_at_[slot]; block != kNoBlock) {
    const BlockTable::Record& record = blocks_->record(block);
    const BlockTable::Use& use = blocks_->use(block);
    entry.hash_low = record.hash.low;
    entry.hash_high = record.hash.high;
    entry.block = block;
    entry.parent = record.parent;
    entry.length = record.length;
    entry.generation = use.generation;
    entry.namespace_id = use.namespace_id;
    entry.checksum = record.checksum;
    entry.state = kEntryLive;
    entry.flags = record.flags;
  }
  access_->region.publish(access_->layout.entry(slot), entry);
}

void DirectoryWriter::publish(std::uint32_t block) {
  const std::uint32_t slot = blocks_->record(block).slot;
  block_at_[slot] = block;
  write_slot(slot);
  const std::uint32_t home =
      home_of(blocks_->record(block).hash, blocks_->use(block).namespace_id, slots()).slot;
  if (home == slot) return;
  spill_[home] |= bit_of(slot);
  access_->domain().order();
  write_slot(home);
}

void DirectoryWriter::retract(std::uint32_t block) {
  const BlockTable::Record& record = blocks_->record(block);
  const std::uint32_t slot = record.slot;
  const std::uint32_t home = home_of(record.hash, blocks_->use(block).namespace_id, slots()).slot;
  block_at_[slot] = kNoBlock;
  write_slot(slot);
  if (home == slot) return;
  spill_[home] &= ~bit_of(slot);
  access_->domain().order();
  write_slot(home);
}

void DirectoryWriter::adopt(std::uint32_t block) {
  const std::uint32_t slot = blocks_->record(block).slot;
  block_at_[slot] = block;
  const std::uint32_t home =
      home_of(blocks_->record(block).hash, blocks_->use(block).namespace_id, slots()).slot;
  if (home != slot) spill_[home] |= bit_of(slot);
}

void DirectoryWriter::sweep() {
  for (std::uint32_t slot = 0; slot < slots(); ++slot) write_slot(slot);
}

bool DirectoryWriter::is_valid() const {
  std::uint32_t standing = 0;
  for (std::uint32_t slot = 0; slot < slots(); ++slot) {
    const std::uint32_t block = block_at_[slot];
    if (block == kNoBlock) continue;
    ++standing;
    const BlockTable::Record& record = blocks_->record(block);
    if (blocks_->use(block).state != BlockState::kLive || record.slot != slot ||
        find(record.hash, blocks_->use(block).namespace_id) != block) {
      return false;
    }
  }
  return standing == blocks_->count(BlockState::kLive);
}

}  // namespace cachalot::pool
