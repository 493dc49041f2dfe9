#include "pool/reader/validated_read.h"

#include <algorithm>

namespace cachalot::pool {

using memory::Line;
using memory::Rule;

ValidatedRead ValidatedRead::look_up(const Access& access, std::span<const BlockHash> hashes,
                                     std::uint32_t namespace_id, std::span<Found> room,
                                     bool verifies) {
  KeeperView view;
  const std::size_t hits = DirectoryReader(access).lookup(hashes, namespace_id, view, room);
  return ValidatedRead(access, view, room.first(hits), verifies);
}

ValidatedRead::Outcome ValidatedRead::validate(bool is_pinned) {
  // The rejected one too: was it reused, or is it damaged? It lies right after found().
  const std::span<const Found> looked_at(found_.data(), found_.size() + has_rejected_);
  const std::size_t unchanged = is_pinned ? looked_at.size() : count_unchanged(looked_at);
  Outcome outcome;
  outcome.stale = looked_at.size() - unchanged;
  outcome.is_damaged = has_rejected_ && outcome.stale == 0;
  shorten(unchanged);
  outcome.valid = found_.size();
  has_rejected_ = false;
  return outcome;
}

// How many of the leading entries are unchanged and still count; none if another keeper rules.
std::size_t ValidatedRead::count_unchanged(std::span<const Found> found) const {
  const Access& access = reader_.access();
  if (access.domain().broken(Rule::kR6ValidateAfterReading)) return found.size();
  constexpr std::size_t kBatch = 128;
  Line lines[kBatch + kKeeperSlots];
  const void* addresses[kBatch + kKeeperSlots];
  std::size_t unchanged = 0;
  while (unchanged < found.size()) {
    const std::size_t n = std::min(found.size() - unchanged, kBatch);
    for (std::size_t i = 0; i < n; ++i) {
      addresses[i] = access.region.at(access.layout.entry(found[unchanged + i].slot));
    }
    for (std::uint32_t k = 0; k < kKeeperSlots; ++k) {
      addresses[n + k] = access.region.at(access.layout.keeper_line(k));
    }
    access.domain().gather_lines(addresses, n + kKeeperSlots, lines);
    const KeeperView now = reader_.ruling(lines + n);
    if (now.epoch != view_.epoch) return 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Found& one = found[unchanged + i];
      const std::uint64_t offset = access.layout.entry(one.slot);
      const auto entry = memory::as<Entry>(lines[i]);
      const bool is_same = access.domain().broken(Rule::kValidateGenerationOnly)
                               ? entry.generation == one.entry.generation
                               : same_entry(entry, one.entry);
      if (!is_same || !now.admits(one.entry.epoch) || !access.region.checks(lines[i], offset)) {
        return unchanged + i;
      }
    }
    unchanged += n;
  }
  return unchanged;
}

}  // namespace cachalot::pool
