#include "pool/keeper/keeper_line.h"

#include <algorithm>
#include <cstring>

namespace cachalot::pool {
namespace {

using memory::Line;

// Apart from the CRC, which depends on the place.
bool says_the_same(const KeeperLine& a, const KeeperLine& b) {
  return std::memcmp(&a, &b, offsetof(KeeperLine, crc)) == 0;
}

bool mend(const Access& access, std::uint64_t offset, const KeeperLine& line) {
  KeeperLine now{};
  if (access.region.read_as(offset, now) && says_the_same(now, line)) return false;
  access.region.publish(offset, line);
  access.domain().complete();
  return true;
}

}  // namespace

void publish_keeper_line(const Access& access, std::uint32_t keeper, const KeeperLine& line) {
  access.region.publish(access.layout.keeper_line_copy(keeper), line);
  access.domain().complete();
  access.region.publish(access.layout.keeper_line(keeper), line);
  access.domain().complete();
}

std::uint32_t mend_keeper_line(const Access& access, std::uint32_t keeper, const KeeperLine& line) {
  return std::uint32_t{mend(access, access.layout.keeper_line_copy(keeper), line)} +
         mend(access, access.layout.keeper_line(keeper), line);
}

KeeperLine read_keeper_line(const Access& access, std::uint32_t keeper) {
  KeeperLine line{}, copy{};
  if (!access.region.read_as(access.layout.keeper_line(keeper), line)) line = {};
  if (!access.region.read_as(access.layout.keeper_line_copy(keeper), copy)) copy = {};
  const bool copy_is_newer =
      copy.epoch != line.epoch ? copy.epoch > line.epoch : copy.min_epoch > line.min_epoch;
  return copy_is_newer ? copy : line;
}

std::uint32_t newest_epoch_in_area(const Access& access, std::uint32_t keeper) {
  std::uint32_t newest = 0;
  for (std::uint32_t client = 0; client < access.geometry.clients; ++client) {
    ViewLine view{};
    if (access.region.read_as(access.layout.view_line(keeper, client), view))
      newest = std::max(newest, view.epoch);
  }
  for (std::uint32_t i = 0; i < kMaxNamespaces; ++i) {
    NamespaceLine line{};
    if (!access.region.read_as(access.layout.namespace_line(keeper, i), line)) continue;
    if (line.id == i + 1) newest = std::max(newest, line.epoch);
  }
  return newest;
}

std::uint32_t newest_epoch_in_directory(const Access& access) {
  constexpr std::uint32_t kBatch = 64;
  std::uint32_t newest = 0;
  Line lines[kBatch];
  for (std::uint32_t first = 0; first < access.geometry.directory_slots; first += kBatch) {
    access.domain().read_lines(access.region.at(access.layout.entry(first)), kBatch, lines);
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      if (!access.region.checks(lines[i], access.layout.entry(first + i))) continue;
      newest = std::max(newest, memory::as<Entry>(lines[i]).epoch);
    }
  }
  return newest;
}

}  // namespace cachalot::pool
