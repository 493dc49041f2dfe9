#include "pool/check/entry_check.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "pool/expansion/expansion_memory.h"
#include "pool/format/notes.h"
#include "pool/keeper/ledger.h"
#include "pool/keeper/takeover/parallel_parts.h"
#include "pool/reader/payload_check.h"

namespace cachalot::pool {

using memory::Line;

namespace {

std::uint64_t bit_of(std::uint32_t slot) {
  return std::uint64_t{1} << (slot % kBucketSlots);
}

Home home_of(const Entry& entry, std::uint32_t slots) {
  return pool::home_of({entry.hash_low, entry.hash_high}, entry.namespace_id, slots);
}

bool has_one_hash(const Entry& a, const Entry& b) {
  return a.hash_low == b.hash_low && a.hash_high == b.hash_high && a.namespace_id == b.namespace_id;
}

// Blocks on all devices that the keeper had, also on those that are lost, and on one that is given up.
std::uint32_t count_named(const Access& access, const Predecessor& predecessor) {
  const auto table = read_table(access, predecessor.area, predecessor.epoch);
  return table ? blocks_on(access, table->expansions) : access.geometry.blocks;
}

}  // namespace

EntryCheck::EntryCheck(const Access& access, const Predecessor& predecessor,
                       const std::vector<bool>& is_known, FaultLog& log)
    : access_(access),
      view_{predecessor.highest_epoch, predecessor.min_epoch, predecessor.area, 0},
      is_taken_over_(predecessor.epoch != 0),
      is_lost_(predecessor.is_lost),
      area_(predecessor.area),
      is_known_(is_known),
      log_(log),
      accessible_(access.expansions == nullptr
                      ? access.geometry.blocks
                      : access.expansions->follow(access, predecessor.area, predecessor.epoch)),
      named_(count_named(access, predecessor)),
      ledger_(access.geometry.blocks),
      blocks_(access.geometry.blocks),
      has_bad_payload_(access.geometry.blocks) {}

EntryCheck::Figures EntryCheck::run(std::uint32_t threads) {
  if (is_taken_over_) read_ledger();
  for (std::uint32_t first = 0; first < access_.geometry.directory_slots; first += kBucketSlots)
    check_bucket(first);
  if (threads != 0) check_payloads(threads);
  check_tree();
  count_blocks();
  return figures_;
}

void EntryCheck::read_ledger() {
  const std::uint32_t blocks = access_.geometry.blocks;
  for (std::uint32_t first = 0; first < blocks; first += kLedgerRecordsPerLine) {
    const std::uint64_t at = access_.layout.ledger_line(area_, first);
    const std::uint32_t end = std::min(blocks, first + kLedgerRecordsPerLine);
    LedgerLine line{};
    if (!access_.region.read_as(at, line)) {
      log_.add(
          {FaultKind::kLedgerLine, 0, at, first, kNoBlock,
           "blocks " + std::to_string(first) + " to " + std::to_string(end - 1) + ": wrong CRC"});
      std::fill(ledger_.begin() + first, ledger_.begin() + end,
                LedgerRecord{0, 0, kUnknownHolder, LedgerState::kQuarantined, 0});
      continue;
    }
    for (std::uint32_t block = first; block < end; ++block) {
      LedgerRecord& record = ledger_[block] = line.records[block - first];
      const bool is_held =
          record.state == LedgerState::kGranted || record.state == LedgerState::kQuarantined;
      const bool has_holder =
          record.holder < access_.geometry.clients || record.holder == kUnknownHolder;
      if (record.state <= LedgerState::kBad && (has_holder || !is_held)) continue;
      log_.add({FaultKind::kLedgerContent, 0, at, block, kNoBlock,
                "block " + std::to_string(block) + ": state " +
                    std::to_string(static_cast<unsigned>(record.state)) + ", holder " +
                    std::to_string(record.holder)});
    }
  }
}

void EntryCheck::tell(FaultKind kind, std::uint32_t slot, const Entry& entry,
                      const std::string& what) {
  log_.add({kind, 0, access_.layout.entry(slot), entry.block, slot,
            "entry of block " + std::to_string(entry.block) + ", generation " +
                std::to_string(entry.generation) + ", epoch " + std::to_string(entry.epoch) + ": " +
                what});
}

void EntryCheck::check_bucket(std::uint32_t first) {
  Line lines[kBucketSlots];
  Entry entries[kBucketSlots];
  bool is_sealed[kBucketSlots], live[kBucketSlots];
  access_.domain().read_lines(access_.region.at(access_.layout.entry(first)), kBucketSlots, lines);
  for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
    const std::uint64_t at = access_.layout.entry(first + i);
    is_sealed[i] = access_.region.checks(lines[i], at) || access_.region.read(at, lines[i]);
    entries[i] = memory::as<Entry>(lines[i]);
    live[i] = is_sealed[i] && counts(entries[i], first + i);
    if (!is_sealed[i])
      log_.add({FaultKind::kEntryLine, 0, at, kNoBlock, first + i, "an entry: wrong CRC"});
  }
  check_hashes(first, entries, live);
  check_reach(first, entries, is_sealed, live);
  for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
    if (live[i]) claim(entries[i], first + i);
  }
}

// As EntryScan::counts(), and says why not.
bool EntryCheck::counts(const Entry& entry, std::uint32_t slot) {
  const Geometry& geometry = access_.geometry;
  if (entry.state == kEntryFree || is_lost_) return false;
  const auto is_on_lost_device = [this](std::uint32_t block) {
    return block >= accessible_ && block < named_;
  };
  // The device's line says it.
  if (entry.state == kEntryLive &&
      (is_on_lost_device(entry.block) ||
       (entry.block < accessible_ && is_on_lost_device(entry.parent)))) {
    ++figures_.lost_blocks;
    return false;
  }
  const bool is_in_range = entry.state == kEntryLive && entry.block < accessible_ &&
                           entry.length != 0 && entry.length <= geometry.block_bytes &&
                           (entry.parent < accessible_ || entry.parent == kNoBlock);
  const auto no = [&](FaultKind kind, const std::string& what) {
    tell(kind, slot, entry, what);
    ++figures_.lost_blocks;
    return false;
  };
  if (!is_in_range) {
    return no(FaultKind::kEntryContent, "state " + std::to_string(entry.state) + ", length " +
                                            std::to_string(entry.length) + ", parent " +
                                            std::to_string(entry.parent) + ": out of range");
  }
  if (entry.epoch > view_.epoch) {
    return no(FaultKind::kEntryEpoch,
              "no keeper has had its epoch, the highest is " + std::to_string(view_.epoch));
  }
  if (!view_.admits(entry.epoch)) {
    tell(FaultKind::kVoidEntry, slot, entry,
         "epochs below " + std::to_string(view_.min_epoch) + " are void");
    return false;
  }
  if (home_of(entry, geometry.directory_slots).bucket != slot / kBucketSlots * kBucketSlots)
    return no(FaultKind::kEntryBucket, "its hash has another bucket");
  const std::uint32_t id = entry.namespace_id;
  if (id == 0 || id > is_known_.size() || !is_known_[id - 1])
    return no(FaultKind::kEntryNamespace, "namespace " + std::to_string(id) + " is not known");
  const LedgerRecord& record = ledger_[entry.block];
  if (entry.generation < record.generation) {
    return no(FaultKind::kEntryGeneration,
              "the ledger has generation " + std::to_string(record.generation));
  }
  const bool is_out_of_use =
      record.state == LedgerState::kFree || record.state == LedgerState::kBad;
  if (is_out_of_use && entry.generation == record.generation) {
    tell(FaultKind::kLedgerState, slot, entry,
         record.state == LedgerState::kFree ? "the ledger says free" : "the ledger says bad");
  }
  return true;
}

// Of two entries for one block the newer counts.
void EntryCheck::claim(const Entry& entry, std::uint32_t slot) {
  Block& block = blocks_[entry.block];
  if (block.slot != kNoBlock) {
    tell(FaultKind::kBlockTwice, slot, entry,
         "slot " + std::to_string(block.slot) + " has an entry for this block, too");
    ++figures_.lost_blocks;
    if (entry.generation <= block.generation) return;
  }
  block = {slot, entry.parent, entry.generation};
}

void EntryCheck::check_hashes(std::uint32_t first, const Entry* entries, const bool* live) {
  for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
    for (std::uint32_t other = 0; live[i] && other < i; ++other) {
      if (!live[other] || !has_one_hash(entries[i], entries[other])) continue;
      tell(FaultKind::kHashTwice, first + i, entries[i],
           "slot " + std::to_string(first + other) + " has an entry for this hash, too");
    }
  }
}

void EntryCheck::check_reach(std::uint32_t first, const Entry* entries, const bool* is_sealed,
                             const bool* live) {
  const std::uint32_t slots = access_.geometry.directory_slots;
  for (std::uint32_t i = 0; i < kBucketSlots; ++i) {
    const std::uint32_t slot = first + i;
    if (live[i]) {
      const Home home = home_of(entries[i], slots);
      const std::uint32_t at_home = home.slot - first;
      const bool is_found =
          home.slot == slot || !is_sealed[at_home] || (entries[at_home].spill & bit_of(slot)) != 0;
      if (!is_found) {
        tell(FaultKind::kHiddenEntry, slot, entries[i],
             "its home slot " + std::to_string(home.slot) + " has no bit for it");
      }
    }
    for (std::uint32_t other = 0; is_sealed[i] && other < kBucketSlots; ++other) {
      if ((entries[i].spill & bit_of(first + other)) == 0 || !is_sealed[other]) continue;
      if (live[other] && home_of(entries[other], slots).slot == slot && other != i) continue;
      log_.add({FaultKind::kSpillBit, 0, access_.layout.entry(slot), kNoBlock, slot,
                "bit " + std::to_string(other) + " of slot " + std::to_string(slot) +
                    ": no entry stands there whose home is this slot"});
    }
  }
}

void EntryCheck::check_payloads(std::uint32_t threads) {
  std::atomic<std::uint64_t> payloads{0}, bytes{0}, without{0}, notes{0};
  in_parallel_parts(
      threads, access_.geometry.blocks, 1,
      [&](std::uint32_t, std::uint32_t block, std::uint32_t end) {
        std::vector<std::uint32_t> tokens;
        for (; block < end; ++block) {
          const std::uint32_t slot = blocks_[block].slot;
          Entry entry{}, after{};
          if (slot == kNoBlock || !access_.region.read_as(access_.layout.entry(slot), entry) ||
              entry.state != kEntryLive || entry.block != block ||
              entry.length > access_.geometry.block_bytes) {  // it is another one by now
            continue;
          }
          const BlockUse use{block, entry.generation};
          const BlockHash hash{entry.hash_low, entry.hash_high};
          const bool has_note = note_names(access_, use, hash);
          const bool is_note_bad = has_note && !read_note(access_, use, hash, tokens);
          const bool has_checksum = (entry.flags & kEntryHasChecksum) != 0;
          const bool is_bad =
              has_checksum && !payload_matches(access_, block, entry.length, entry.checksum);
          notes += has_note;
          payloads += has_checksum;
          bytes += has_checksum ? entry.length : 0;
          without += !has_checksum;
          // R6: an entry that has changed meanwhile proves nothing.
          if ((!is_bad && !is_note_bad) ||
              !access_.region.read_as(access_.layout.entry(slot), after) ||
              !same_entry(entry, after)) {
            continue;
          }
          has_bad_payload_[block] = is_bad;
          const auto place = [&](FaultKind kind, std::uint32_t device, std::uint64_t offset,
                                 const char* what) {
            log_.add({kind, device, offset, block, slot,
                      "block " + std::to_string(block) + ", generation " +
                          std::to_string(entry.generation) + ": " + what});
          };
          if (is_note_bad) {
            place(FaultKind::kNote, 0, note_offset(access_, block),
                  "its note has a wrong checksum");
          }
          if (!is_bad) continue;
          access_.interleave.for_each_extent(
              std::uint64_t{block} * access_.geometry.block_bytes, memory::kLineBytes,
              [&](std::uint32_t device, std::uint64_t offset, std::uint64_t) {
                place(FaultKind::kPayload, device, offset, "its payload has a wrong checksum");
              });
        }
      });
  figures_.payloads = payloads;
  figures_.payload_bytes = bytes;
  figures_.without_checksum = without;
  figures_.notes = notes;
}

// As Takeover::drop_orphans(): a block stays if all blocks above it do.
void EntryCheck::check_tree() {
  enum : std::uint8_t { kUnknown, kOnPath, kKept, kDropped };
  std::vector<std::uint8_t> what(blocks_.size(), kUnknown);
  std::vector<std::uint32_t> path;
  const auto fault = [this](FaultKind kind, std::uint32_t block, const std::string& text) {
    const Block& at = blocks_[block];
    log_.add({kind, 0, access_.layout.entry(at.slot), block, at.slot,
              "block " + std::to_string(block) + ", generation " + std::to_string(at.generation) +
                  ": " + text});
  };
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    std::uint32_t at = block;
    path.clear();
    while (at != kNoBlock && blocks_[at].slot != kNoBlock && what[at] == kUnknown) {
      what[at] = kOnPath;
      path.push_back(at);
      at = blocks_[at].parent;
    }
    if (path.empty()) continue;
    bool is_kept = at == kNoBlock || what[at] == kKept;
    if (at != kNoBlock && blocks_[at].slot == kNoBlock)
      fault(FaultKind::kParentGone, path.back(),
            "its parent, block " + std::to_string(at) + ", is not published");
    if (at != kNoBlock && what[at] == kOnPath)
      fault(FaultKind::kParentCircle, path.back(), "its parents form a circle");
    for (auto node = path.rbegin(); node != path.rend(); ++node) {
      is_kept = is_kept && has_bad_payload_[*node] == 0;
      what[*node] = is_kept ? kKept : kDropped;
      figures_.lost_blocks += !is_kept;
    }
  }
}

void EntryCheck::count_blocks() {
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    const LedgerState state = ledger_[block].state;
    if (blocks_[block].slot != kNoBlock) {
      ++figures_.blocks.live;
    } else if (state == LedgerState::kGranted) {
      ++figures_.blocks.granted;
    } else if (state == LedgerState::kQuarantined) {
      ++figures_.blocks.quarantined;
    } else if (state == LedgerState::kBad) {
      ++figures_.blocks.bad;
    } else {
      ++figures_.blocks.free;
    }
  }
}

}  // namespace cachalot::pool
