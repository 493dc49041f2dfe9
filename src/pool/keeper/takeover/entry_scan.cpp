#include "pool/keeper/takeover/entry_scan.h"

#include "pool/keeper/takeover/parallel_parts.h"

namespace cachalot::pool {

using memory::Line;
using memory::Rule;

EntryScan::EntryScan(const Access& access, const Predecessor& predecessor,
                     std::span<const LedgerRecord> inherited, const Namespaces& namespaces,
                     BlockTable& blocks, std::uint32_t usable, DirectoryWriter& directory)
    : access_(access),
      view_{predecessor.highest_epoch, predecessor.min_epoch, predecessor.area, 0},
      inherited_(inherited),
      namespaces_(namespaces),
      blocks_(blocks),
      usable_(usable),
      directory_(directory) {}

void EntryScan::run(std::uint32_t threads) {
  std::vector<std::vector<std::uint32_t>> contested(threads);
  in_parallel_parts(threads, access_.geometry.directory_slots, kBucketSlots,
                    [&](std::uint32_t part, std::uint32_t first, std::uint32_t end) {
                      read_slots(first, end, contested[part]);
                    });
  blocks_.recount();
  for (const auto& slots : contested) {
    for (const std::uint32_t slot : slots) settle(slot);
  }
}

void EntryScan::read_slots(std::uint32_t first, std::uint32_t end,
                           std::vector<std::uint32_t>& contested) {
  constexpr std::uint32_t kBatch = 64;
  static_assert(kBucketSlots % kBatch == 0);  // the number of slots is a multiple of it
  Line lines[kBatch];
  for (; first < end; first += kBatch) {
    access_.domain().read_lines(access_.region.at(access_.layout.entry(first)), kBatch, lines);
    // The misses of a bucket's blocks are overlapped: first all are asked for, then used.
    std::uint32_t live[kBatch], count = 0;
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint64_t offset = access_.layout.entry(first + i);
      if (!access_.region.checks(lines[i], offset) && !access_.region.read(offset, lines[i]))
        continue;
      const auto entry = memory::as<Entry>(lines[i]);
      if (entry.state != kEntryLive) continue;
      live[count++] = i;
      blocks_.prefetch_all(entry.block);
      if (entry.block < inherited_.size()) __builtin_prefetch(&inherited_[entry.block]);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto entry = memory::as<Entry>(lines[live[i]]);
      const std::uint32_t slot = first + live[i];
      if (!counts(entry, slot)) continue;
      if (!blocks_.claim_live(entry.block)) {
        contested.push_back(slot);
        continue;
      }
      adopt(entry, slot);
      // Two entries for one hash would make one of them unreachable.
      if (!directory_.adopt(entry.block)) contested.push_back(slot);
    }
  }
}

bool EntryScan::counts(const Entry& entry, std::uint32_t slot) const {
  const Geometry& geometry = access_.geometry;
  if (entry.state != kEntryLive || !view_.admits(entry.epoch) || entry.block >= usable_ ||
      entry.length == 0 || entry.length > geometry.block_bytes ||
      !namespaces_.is_known(entry.namespace_id) ||
      (entry.parent >= usable_ && entry.parent != kNoBlock)) {
    return false;
  }
  const Home home =
      home_of({entry.hash_low, entry.hash_high}, entry.namespace_id, geometry.directory_slots);
  if (home.bucket != slot / kBucketSlots * kBucketSlots) return false;
  // W4
  return entry.generation >= inherited_[entry.block].generation ||
         access_.domain().broken(Rule::kForgetGenerationAtTakeover);
}

void EntryScan::adopt(const Entry& entry, std::uint32_t slot) {
  BlockTable::Record& record = blocks_.record(entry.block);
  record.hash = {entry.hash_low, entry.hash_high};
  record.checksum = entry.checksum;
  record.length = entry.length;
  record.slot = slot;
  record.parent = entry.parent;
  record.flags = entry.flags;
  blocks_.set_generation(entry.block, entry.generation);
  blocks_.set_namespace(entry.block, entry.namespace_id);
}

// An entry whose block another entry has claimed, or whose hash stands in its bucket already: of two
// uses of a block the newer counts; of two blocks for one hash the one that came first.
void EntryScan::settle(std::uint32_t slot) {
  Entry entry{};
  if (!access_.region.read_as(access_.layout.entry(slot), entry) || !counts(entry, slot)) return;
  if (directory_.stands_at(slot) == entry.block) return;
  const BlockTable::Record& record = blocks_.record(entry.block);
  const bool is_adopted = blocks_.use(entry.block).state == BlockState::kLive &&
                          directory_.stands_at(record.slot) == entry.block;
  if (is_adopted) {
    if (blocks_.use(entry.block).generation >= entry.generation) return;
    directory_.disown(entry.block);
  }
  adopt(entry, slot);
  const bool is_kept = directory_.adopt(entry.block);
  blocks_.set_state(entry.block, is_kept ? BlockState::kLive : BlockState::kFree);
}

}  // namespace cachalot::pool
