#include "pool/expansion/expansion_table.h"

#include <algorithm>
#include <cstring>

namespace cachalot::pool {
namespace {

using memory::kLineBytes;
using memory::kStripeBytes;

std::uint64_t path_line(const Access& access, std::uint32_t area, std::size_t index,
                        std::uint32_t part) {
  return access.layout.expansion_line(area, static_cast<std::uint32_t>(index)) +
         (1 + part) * kLineBytes;
}

std::optional<ExpansionsLine> read_first_line(const Access& access, std::uint32_t area,
                                              std::uint32_t epoch) {
  ExpansionsLine line{};
  if (access.layout.expansions_in_area == 0 || epoch == 0 ||
      !access.region.read_as(access.layout.expansions_line(area), line) || line.epoch != epoch ||
      line.count > kMaxExpansions) {
    return {};
  }
  return line;
}

// Those of lost devices are counted from the other end, so that a device that is added takes none of their rows.
std::size_t row_of_lost(std::size_t index) {
  return kMaxExpansions - 1 - index;
}

std::optional<std::string> read_path(const Access& access, std::uint32_t area, std::uint32_t epoch,
                                     std::size_t index) {
  std::string path;
  for (std::uint32_t part = 0; part < kPathLines; ++part) {
    NameLine line{};
    if (!access.region.read_as(path_line(access, area, index, part), line) || line.epoch != epoch)
      return {};
    path.append(line.text, strnlen(line.text, kNameLineBytes));
  }
  return path;
}

std::optional<Expansion> read_row(const Access& access, std::uint32_t area, std::uint32_t epoch,
                                  std::size_t index) {
  ExpansionLine line{};
  const std::uint64_t at = access.layout.expansion_line(area, static_cast<std::uint32_t>(index));
  if (!access.region.read_as(at, line) || line.epoch != epoch) return {};
  if (line.bytes == 0 || line.bytes % kStripeBytes != 0 ||
      line.bytes > access.layout.data_bytes_per_device)
    return {};
  const std::optional<std::string> path = read_path(access, area, epoch, index);
  if (!path) return {};
  return Expansion{{line.serial_low, line.serial_high}, line.bytes, *path};
}

void write_row(const Access& access, std::uint32_t area, std::uint32_t epoch, std::size_t index,
               const Expansion& expansion) {
  ExpansionLine line{};
  line.serial_low = expansion.serial.low;
  line.serial_high = expansion.serial.high;
  line.bytes = expansion.bytes;
  line.epoch = epoch;
  access.region.publish(access.layout.expansion_line(area, static_cast<std::uint32_t>(index)),
                        line);
  for (std::uint32_t part = 0; part < kPathLines; ++part) {
    NameLine text{};
    const std::size_t at = std::min<std::size_t>(part * kNameLineBytes, expansion.path.size());
    std::memcpy(text.text, expansion.path.data() + at,
                std::min<std::size_t>(kNameLineBytes, expansion.path.size() - at));
    text.epoch = epoch;
    access.region.publish(path_line(access, area, index, part), text);
  }
}

std::uint64_t data_bytes(const Access& access, std::span<const Expansion> expansions) {
  std::uint64_t bytes = access.geometry.device_bytes - access.layout.data_offset;
  for (const Expansion& expansion : expansions) bytes += expansion.bytes;
  return bytes;
}

}  // namespace

std::uint32_t blocks_on(const Access& access, std::span<const Expansion> expansions) {
  if (!access.geometry.growable) return access.geometry.blocks;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(
      access.geometry.blocks, data_bytes(access, expansions) / access.geometry.block_bytes));
}

std::uint64_t room_to_grow(const Access& access, std::span<const Expansion> expansions) {
  if (!access.geometry.growable || expansions.size() >= kMaxExpansions) return 0;
  const std::uint64_t there = data_bytes(access, expansions);
  return access.layout.data_bytes_per_device - std::min(there, access.layout.data_bytes_per_device);
}

std::optional<std::uint64_t> read_table_version(const Access& access, std::uint32_t area,
                                                std::uint32_t epoch) {
  const std::optional<ExpansionsLine> line = read_first_line(access, area, epoch);
  if (!line) return {};
  return line->version;
}

std::uint32_t read_blocks(const Access& access, std::uint32_t area, std::uint32_t epoch) {
  if (!access.geometry.growable) return access.geometry.blocks;
  const std::optional<ExpansionsLine> line = read_first_line(access, area, epoch);
  if (!line) return access.layout.first_blocks;
  return std::clamp(line->blocks, access.layout.first_blocks, access.geometry.blocks);
}

// A row is written again only after a table without it was published. So rows that were read between two looks at
// the same first line are of that table.
std::optional<ExpansionTable> read_table(const Access& access, std::uint32_t area,
                                         std::uint32_t epoch) {
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::optional<ExpansionsLine> line = read_first_line(access, area, epoch);
    if (!line) return {};
    ExpansionTable table{line->version, line->leaving, {}, {}};
    std::uint64_t room = access.layout.data_bytes_per_device;
    for (std::size_t i = 0; i < line->count; ++i) {
      std::optional<Expansion> row = read_row(access, area, epoch, i);
      if (!row || row->bytes > room) break;
      room -= row->bytes;
      table.expansions.push_back(*std::move(row));
    }
    const std::uint32_t lost = std::min(line->lost, kMaxExpansions - line->count);
    for (std::size_t i = 0; i < lost; ++i) {
      if (std::optional<Expansion> row = read_row(access, area, epoch, row_of_lost(i)))
        table.lost.push_back(*std::move(row));
    }
    const std::optional<ExpansionsLine> again = read_first_line(access, area, epoch);
    if (again && again->version == line->version && table.expansions.size() == line->count)
      return table;
  }
  return {};
}

void write_table(const Access& access, std::uint32_t area, std::uint32_t epoch,
                 const ExpansionTable& table, std::size_t first_new) {
  for (std::size_t i = first_new; i < table.expansions.size(); ++i)
    write_row(access, area, epoch, i, table.expansions[i]);
  for (std::size_t i = 0; i < table.lost.size(); ++i)
    write_row(access, area, epoch, row_of_lost(i), table.lost[i]);
  access.domain().order();
  ExpansionsLine line{};
  line.version = table.version;
  line.epoch = epoch;
  line.count = static_cast<std::uint32_t>(table.expansions.size());
  line.lost = static_cast<std::uint32_t>(table.lost.size());
  line.leaving = table.leaving;
  line.blocks = std::min(blocks_on(access, table.expansions), table.leaving);
  access.region.publish(access.layout.expansions_line(area), line);
}

}  // namespace cachalot::pool
