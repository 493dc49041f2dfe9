#include "pool/keeper/directory_writer.h"

#include <algorithm>
#include <bit>

#include "base/fail_point.h"

namespace cachalot::pool {
namespace {

std::uint64_t bit_of(std::uint32_t slot) {
  return std::uint64_t{1} << (slot % kBucketSlots);
}

}  // namespace

DirectoryWriter::DirectoryWriter(const Access& access, const BlockTable& blocks)
    : access_(&access),
      blocks_(&blocks),
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

std::uint32_t DirectoryWriter::choose_slot(const BlockHash& hash,
                                           std::uint32_t namespace_id) const {
  const Home home = home_of(hash, namespace_id, slots());
  // From home on, so that the second access is near the first.
  for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
    const std::uint32_t slot = home.bucket + (home.slot - home.bucket + i) % kBucketSlots;
    if (block_at_[slot] == kNoBlock) return slot;
  }
  return kNoSlot;
}

Entry DirectoryWriter::entry_of(std::uint32_t slot) const {
  Entry entry{};
  entry.block = entry.parent = kNoBlock;
  entry.state = kEntryFree;
  entry.spill = spill_[slot];
  if (const std::uint32_t block = block_at_[slot]; block != kNoBlock) {
    const BlockTable::Record& record = blocks_->record(block);
    const BlockTable::Use& use = blocks_->use(block);
    entry.hash_low = record.hash.low;
    entry.hash_high = record.hash.high;
    entry.block = block;
    entry.parent = record.parent;
    entry.length = record.length;
    entry.epoch = epoch_;
    entry.generation = use.generation;
    entry.namespace_id = use.namespace_id;
    entry.checksum = record.checksum;
    entry.state = kEntryLive;
    entry.flags = record.flags;
  }
  return entry;
}

std::uint32_t DirectoryWriter::scrub(std::uint32_t count) {
  constexpr std::uint32_t kBatch = 64;
  std::uint32_t written = 0;
  std::uint32_t first = scrub_at_;
  const std::uint32_t end = std::min(slots(), first + count);
  scrub_at_ = end == slots() ? 0 : end;
  for (; first < end; first += kBatch) {
    const std::uint32_t n = std::min(kBatch, end - first);
    memory::Line lines[kBatch];
    access_->domain().read_lines(access_->region.at(access_->layout.entry(first)), n, lines);
    for (std::uint32_t i = 0; i < n; ++i) {
      memory::Line right = memory::to_line(entry_of(first + i));
      access_->region.seal(right, access_->layout.entry(first + i));
      if (lines[i] == right) continue;
      write_slot(first + i);
      ++written;
    }
  }
  if (written != 0) observers_.tell([](BlockObserver& observer) { observer.on_repaired(); });
  return written;
}

void DirectoryWriter::publish(std::uint32_t block) {
  const std::uint32_t slot = blocks_->record(block).slot;
  block_at_[slot] = block;
  write_slot(slot);
  const std::uint32_t home =
      home_of(blocks_->record(block).hash, blocks_->use(block).namespace_id, slots()).slot;
  if (home != slot) {
    base::reach(base::FailPoint::kEntryWritten);
    spill_[home] |= bit_of(slot);
    access_->domain().order();
    write_slot(home);
    base::reach(base::FailPoint::kSpillWritten);
  }
  if (observers_.empty()) return;
  // Observers hand the block to other threads, which look it up at once: all lines that lead to it come first.
  access_->domain().order();
  tell_published(block);
}

void DirectoryWriter::tell_published(std::uint32_t block) {
  const BlockTable::Record& record = blocks_->record(block);
  const BlockTable::Use& use = blocks_->use(block);
  const PublishedBlock published{
      record.hash, {block, use.generation}, record.parent, use.namespace_id};
  observers_.tell([&](BlockObserver& observer) { observer.on_published(published); });
}

void DirectoryWriter::retract(std::uint32_t block) {
  const BlockTable::Record& record = blocks_->record(block);
  const std::uint32_t slot = record.slot;
  const std::uint32_t home = home_of(record.hash, blocks_->use(block).namespace_id, slots()).slot;
  block_at_[slot] = kNoBlock;
  write_slot(slot);
  observers_.tell([&](BlockObserver& observer) { observer.on_removed(block, record.hash); });
  base::reach(base::FailPoint::kTombstoneWritten);
  if (home == slot) return;
  spill_[home] &= ~bit_of(slot);
  access_->domain().order();
  write_slot(home);
}

bool DirectoryWriter::adopt(std::uint32_t block) {
  const BlockTable::Record& record = blocks_->record(block);
  const std::uint32_t namespace_id = blocks_->use(block).namespace_id;
  if (find(record.hash, namespace_id) != kNoBlock) return false;
  block_at_[record.slot] = block;
  const std::uint32_t home = home_of(record.hash, namespace_id, slots()).slot;
  if (home != record.slot) spill_[home] |= bit_of(record.slot);
  return true;
}

void DirectoryWriter::disown(std::uint32_t block) {
  const BlockTable::Record& record = blocks_->record(block);
  block_at_[record.slot] = kNoBlock;
  const std::uint32_t home = home_of(record.hash, blocks_->use(block).namespace_id, slots()).slot;
  if (home != record.slot) spill_[home] &= ~bit_of(record.slot);
}

void DirectoryWriter::sweep(std::uint32_t first, std::uint32_t end) {
  constexpr std::uint32_t kAhead = 24;
  for (std::uint32_t slot = first; slot < end; ++slot) {
    if (slot == slots() / 2) base::reach(base::FailPoint::kTakeoverHalfSwept);
    if (slot + kAhead < end) blocks_->prefetch_all(block_at_[slot + kAhead]);
    write_slot(slot);
  }
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
