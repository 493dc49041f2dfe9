#include "pool/directory.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace cachalot::pool {

using memory::Line;

KeeperView DirectoryReader::ruling(const Line (&lines)[kKeeperSlots]) const {
  KeeperView view;
  for (std::uint32_t keeper = 0; keeper < kKeeperSlots; ++keeper) {
    Line line = lines[keeper];
    const std::uint64_t offset = access_->layout.keeper_line(keeper);
    // A slot that was never used is blank for good and is not worth a second look.
    if (!access_->region.checks(line, offset)) {
      const bool is_blank = std::all_of(std::begin(line.words), std::end(line.words),
                                        [](std::uint64_t word) { return word == 0; });
      if (is_blank || !access_->region.read(offset, line)) continue;
    }
    const auto said = memory::as<KeeperLine>(line);
    if (said.epoch > view.epoch) view = {said.epoch, said.min_epoch, keeper, said.flags};
  }
  return view;
}

KeeperView DirectoryReader::read_keepers() const {
  Line lines[kKeeperSlots];
  const void* addresses[kKeeperSlots];
  for (std::uint32_t k = 0; k < kKeeperSlots; ++k) {
    addresses[k] = access_->region.at(access_->layout.keeper_line(k));
  }
  access_->domain().gather_lines(addresses, kKeeperSlots, lines);
  return ruling(lines);
}

bool DirectoryReader::holds(const Line& line, const BlockHash& hash, std::uint32_t namespace_id,
                            const KeeperView& view) const {
  static_assert(offsetof(Entry, hash_low) == 0 && offsetof(Entry, hash_high) == 8);
  if (line.words[0] != hash.low || line.words[1] != hash.high) return false;
  const auto entry = memory::as<Entry>(line);
  if (entry.state != kEntryLive || entry.namespace_id != namespace_id || !view.admits(entry.epoch)) {
    return false;
  }
  // What comes from the pool is checked before it is used as an index or a size.
  return entry.block < access_->geometry.blocks && entry.length != 0 &&
         entry.length <= access_->geometry.block_bytes;
}

std::size_t DirectoryReader::lookup(std::span<const BlockHash> hashes, std::uint32_t namespace_id,
                                    KeeperView& view, std::span<Found> found) const {
  std::size_t done = 0;
  bool ended = hashes.empty();
  if (ended) view = read_keepers();
  while (!ended && done < hashes.size()) {
    const std::size_t n = std::min(hashes.size() - done, kBatch);
    done += lookup_batch(hashes.subspan(done, n), namespace_id, done == 0 ? &view : nullptr, view,
                         found.subspan(done), ended);
  }
  return done;
}

std::size_t DirectoryReader::lookup_batch(std::span<const BlockHash> hashes,
                                          std::uint32_t namespace_id, KeeperView* read_into,
                                          const KeeperView& view, std::span<Found> found,
                                          bool& ended) const {
  const Layout& layout = access_->layout;
  const std::uint32_t slots = access_->geometry.directory_slots;
  Line lines[kBatch + kKeeperSlots];
  const void* addresses[kBatch + kKeeperSlots];
  std::size_t n = hashes.size();

  for (std::size_t i = 0; i < n; ++i) {
    found[i].slot = home_of(hashes[i], namespace_id, slots).slot;
    addresses[i] = access_->region.at(layout.entry(found[i].slot));
  }
  std::size_t count = n;
  if (read_into != nullptr) {
    for (std::uint32_t k = 0; k < kKeeperSlots; ++k) {
      addresses[count++] = access_->region.at(layout.keeper_line(k));
    }
  }
  access_->domain().gather_lines(addresses, count, lines);
  if (read_into != nullptr) {
    Line keepers[kKeeperSlots];
    std::copy_n(lines + n, kKeeperSlots, keepers);
    *read_into = ruling(keepers);
  }

  // First pass: who is at home. Who is not may stand where the home line's spill bits say.
  struct Elsewhere {
    std::uint32_t index, slot;
  };
  Elsewhere elsewhere[kBatch];
  std::size_t others = 0;
  std::uint64_t is_found[kBatch / 64] = {};
  ended = false;
  for (std::size_t i = 0; i < n; ++i) {
    Line& line = lines[i];
    const std::uint32_t home = found[i].slot;
    const std::uint64_t offset = layout.entry(home);
    const bool good = access_->region.checks(line, offset) || access_->region.read(offset, line);
    if (good && holds(line, hashes[i], namespace_id, view)) {
      found[i].entry = memory::as<Entry>(line);
      is_found[i / 64] |= std::uint64_t{1} << (i % 64);
      continue;
    }
    std::uint64_t spill = good ? memory::as<Entry>(line).spill : 0;
    if (spill == 0) {
      n = i;
      ended = true;
      break;
    }
    if (others + static_cast<std::size_t>(std::popcount(spill)) > kBatch) {
      n = i;  // the rest goes into another batch: there is at least one before it
      ended = i == 0;
      break;
    }
    for (; spill != 0; spill &= spill - 1) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(spill));
      elsewhere[others++] = {static_cast<std::uint32_t>(i), home / kBucketSlots * kBucketSlots + bit};
    }
  }
  if (others == 0) return n;

  for (std::size_t j = 0; j < others; ++j) {
    addresses[j] = access_->region.at(layout.entry(elsewhere[j].slot));
  }
  access_->domain().gather_lines(addresses, others, lines);
  for (std::size_t j = 0; j < others; ++j) {
    const auto [i, slot] = elsewhere[j];
    if (i >= n || !holds(lines[j], hashes[i], namespace_id, view)) continue;
    const std::uint64_t offset = layout.entry(slot);
    if (!access_->region.checks(lines[j], offset) && !access_->region.read(offset, lines[j])) continue;
    if (!holds(lines[j], hashes[i], namespace_id, view)) continue;
    found[i] = {slot, memory::as<Entry>(lines[j])};
    is_found[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if ((is_found[i / 64] >> (i % 64) & 1) == 0) {
      ended = true;
      return i;
    }
  }
  return n;
}

std::size_t DirectoryReader::validate(const KeeperView& view, std::span<const Found> found) const {
  Line lines[kBatch + kKeeperSlots];
  const void* addresses[kBatch + kKeeperSlots];
  std::size_t valid = 0;
  while (valid < found.size()) {
    const std::size_t n = std::min(found.size() - valid, kBatch);
    for (std::size_t i = 0; i < n; ++i) {
      addresses[i] = access_->region.at(access_->layout.entry(found[valid + i].slot));
    }
    for (std::uint32_t k = 0; k < kKeeperSlots; ++k) {
      addresses[n + k] = access_->region.at(access_->layout.keeper_line(k));
    }
    access_->domain().gather_lines(addresses, n + kKeeperSlots, lines);
    Line keepers[kKeeperSlots];
    std::copy_n(lines + n, kKeeperSlots, keepers);
    const KeeperView now = ruling(keepers);
    if (now.epoch != view.epoch) return 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Found& one = found[valid + i];
      const std::uint64_t offset = access_->layout.entry(one.slot);
      if (!same_entry(memory::as<Entry>(lines[i]), one.entry) || !now.admits(one.entry.epoch) ||
          !access_->region.checks(lines[i], offset)) {
        return valid + i;
      }
    }
    valid += n;
  }
  return valid;
}

}  // namespace cachalot::pool
