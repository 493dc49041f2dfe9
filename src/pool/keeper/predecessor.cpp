#include "pool/keeper/predecessor.h"

#include <algorithm>
#include <array>

#include "pool/keeper/keeper_line.h"

namespace cachalot::pool {
namespace {

// A keeper may have ruled whose line is lost, both copies of it: then nothing of what is in the pool
// can be trusted, nor are its writers known.
// @param one_finished  whether a line says that a keeper's takeover was finished once
void look_for_lost_epoch(const Access& access, bool one_finished, Predecessor& predecessor) {
  std::uint32_t lost = 0;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area)
    lost = std::max(lost, newest_epoch_in_area(access, area));
  if (predecessor.highest_epoch == 0 || lost > predecessor.highest_epoch) {
    lost = std::max(lost, newest_epoch_in_directory(access));
  }
  const bool is_unknown = one_finished && predecessor.epoch == 0;
  if (lost <= predecessor.highest_epoch && !is_unknown) return;
  lost = std::max(lost, predecessor.highest_epoch);
  predecessor = {};
  predecessor.is_lost = true;
  predecessor.latest_area = kKeeperSlots - 1;
  // No keeper has this epoch, so that nothing counts while it is min_epoch. The highest one has no successor.
  constexpr std::uint32_t kHighest = 0xffffffffu;
  predecessor.highest_epoch = predecessor.min_epoch = lost == kHighest ? lost : lost + 1;
}

}  // namespace

namespace {

using KeeperLines = std::array<KeeperLine, kKeeperSlots>;

KeeperLines read_keeper_lines(const Access& access) {
  KeeperLines lines{};
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area)
    lines[area] = read_keeper_line(access, area);
  return lines;
}

bool say_the_same(const KeeperLines& a, const KeeperLines& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const KeeperLine& one, const KeeperLine& other) {
                      return one.epoch == other.epoch && one.min_epoch == other.min_epoch;
                    });
}

Predecessor predecessor_in(const Access& access, const KeeperLines& lines) {
  Predecessor predecessor;
  predecessor.latest_area = kKeeperSlots - 1;
  bool one_finished = false;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    const KeeperLine& line = lines[area];
    one_finished |= line.min_epoch != 0;
    if (line.epoch > predecessor.highest_epoch) {
      predecessor.highest_epoch = line.epoch;
      predecessor.latest_area = area;
    }
    if (line.min_epoch == line.epoch && line.epoch > predecessor.epoch) {
      predecessor.epoch = line.epoch;
      predecessor.min_epoch = line.min_epoch;
      predecessor.area = area;
      predecessor.boot_id_low = line.boot_id_low;
      predecessor.boot_id_high = line.boot_id_high;
      predecessor.is_flushed = (line.flags & kKeeperFlushed) != 0;
    }
  }
  look_for_lost_epoch(access, one_finished, predecessor);
  return predecessor;
}

}  // namespace

// No lock keeps a keeper of another machine from announcing itself meanwhile: what it writes then would look like the
// traces of one whose line is lost. So the lines must be the same before and after.
Predecessor find_predecessor(const Access& access) {
  for (KeeperLines lines = read_keeper_lines(access);;) {
    const Predecessor predecessor = predecessor_in(access, lines);
    const KeeperLines now = read_keeper_lines(access);
    if (say_the_same(lines, now)) return predecessor;
    lines = now;
  }
}

// Not the area of the last keeper that finished: its ledger is needed until the new one is complete. And
// none whose process still runs: it would write into it when it wakes up.
Result<std::uint32_t> next_keeper_area(const Access& access, std::uint32_t avoid_areas) {
  const Predecessor predecessor = find_predecessor(access);
  for (std::uint32_t next = 1; next <= kKeeperSlots; ++next) {
    const std::uint32_t area = (predecessor.latest_area + next) % kKeeperSlots;
    if (predecessor.epoch != 0 && area == predecessor.area) continue;
    if ((avoid_areas >> area & 1) == 0) return area;
  }
  return Error::make(Code::kBusy,
                     "pool: all its %u keeper areas are in use by processes that still run",
                     kKeeperSlots);
}

}  // namespace cachalot::pool
