#include "pool/format/access.h"

#include <algorithm>

namespace cachalot::pool {

using memory::kLineBytes;
using memory::Line;

Result<Access> make_access(const PoolId& id, const Geometry& geometry, const memory::PoolView& view,
                           memory::Domain& domain) {
  CACHALOT_TRY_ASSIGN(const Layout layout, lay_out(geometry));
  if (view.bases.size() != geometry.devices || view.bytes_each < geometry.device_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "pool: %zu devices of %llu bytes are mapped, its header says %u of %llu",
                       view.bases.size(), static_cast<unsigned long long>(view.bytes_each),
                       geometry.devices, static_cast<unsigned long long>(geometry.device_bytes));
  }
  std::vector<std::uint64_t> starts(geometry.devices, layout.other_data_offset);
  starts[0] = layout.data_offset;
  CACHALOT_TRY_ASSIGN(memory::Interleave interleave,
                      memory::Interleave::make(std::move(starts), layout.data_bytes_per_device));
  const memory::SealedRegion region(domain, view.bases[0], memory::LineSeal(id.low, id.high));
  return Access{id, geometry, layout, view, region, std::move(interleave)};
}

namespace {

// Writes `count` lines from `offset` on, each made by make(index).
template <class Make>
void write_sealed_run(const Access& access, std::uint64_t offset, std::uint64_t count,
                      Make&& make) {
  constexpr std::uint64_t kBatch = 64;
  Line lines[kBatch];
  for (std::uint64_t done = 0; done < count; done += kBatch) {
    const std::uint64_t n = std::min(kBatch, count - done);
    const std::uint64_t at = offset + done * kLineBytes;
    for (std::uint64_t i = 0; i < n; ++i) {
      lines[i] = make(done + i);
      access.region.seal(lines[i], at + i * kLineBytes);
    }
    access.domain().write_lines(access.region.at(at), lines, n);
  }
}

void write_blank_run(const Access& access, std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t kBatch = 64;
  const Line blank[kBatch] = {};
  for (std::uint64_t at = begin; at < end; at += kBatch * kLineBytes) {
    const std::uint64_t n = std::min(kBatch, (end - at) / kLineBytes);
    access.domain().write_lines(access.region.at(at), blank, n);
  }
}

}  // namespace

void write_header(memory::Domain& domain, std::byte* base, const Header& header) {
  const Geometry& g = header.geometry;
  HeaderLine first{};
  first.magic = kMagic;
  first.version = version_of(g);
  first.domain = static_cast<std::uint32_t>(g.domain);
  first.uuid_low = header.id.low;
  first.uuid_high = header.id.high;
  first.device_index = header.device_index;
  first.devices = g.devices;
  first.device_bytes = g.device_bytes;
  first.noncoherent_devices = g.noncoherent_devices;
  GeometryLine geometry{};
  geometry.block_bytes = g.block_bytes;
  geometry.blocks = g.blocks;
  geometry.capacity_blocks = g.capacity_blocks;
  geometry.directory_slots = g.directory_slots;
  geometry.clients = g.clients;
  geometry.hosts = g.hosts;
  geometry.keeper_slots = kKeeperSlots;
  geometry.ring_lines = kRingLines;
  geometry.namespaces = kMaxNamespaces;
  geometry.created_unix_s = header.created_unix_s;
  geometry.note_bytes = g.note_bytes;
  geometry.growable = g.growable ? 1 : 0;
  const memory::SealedRegion target(domain, base, memory::LineSeal(header.id.low, header.id.high));
  target.publish(kLineBytes, geometry);
  domain.order();
  target.publish(0, first);
}

void format_pool(const Access& access, std::uint64_t created_unix_s) {
  const Geometry& g = access.geometry;
  // Everything of an earlier pool between header and directory goes: an old line could still check
  // if another pool has the same uuid.
  write_blank_run(access, 0, access.layout.directory);
  write_sealed_run(access, access.layout.directory, g.directory_slots, [](std::uint64_t) {
    Entry free{};
    free.block = free.parent = kNoBlock;
    free.state = kEntryFree;
    return memory::to_line(free);
  });
  access.domain().complete();

  for (std::uint32_t device = g.devices; device-- > 0;) {
    write_header(access.domain(), access.view.bases[device],
                 {access.id, g, device, created_unix_s});
  }
  // Others will be told of the pool by its path, not through the pool.
  access.domain().complete();
}

Header header_of(const HeaderLine& header, const GeometryLine& geometry) {
  Header result;
  result.id = {header.uuid_low, header.uuid_high};
  result.device_index = header.device_index;
  result.created_unix_s = geometry.created_unix_s;
  result.geometry = {static_cast<memory::DomainKind>(header.domain),
                     header.devices,
                     header.device_bytes,
                     geometry.block_bytes,
                     geometry.blocks,
                     geometry.capacity_blocks,
                     geometry.directory_slots,
                     geometry.clients,
                     geometry.hosts,
                     geometry.note_bytes,
                     geometry.growable == 1,
                     header.noncoherent_devices};
  return result;
}

Result<Header> read_header(memory::Domain& domain, const std::byte* base, std::uint64_t bytes,
                           const char* name) {
  if (bytes < memory::kStripeBytes) {
    return Error::make(Code::kNotAPool, "%s: has %llu bytes, no pool is smaller than 2 MiB", name,
                       static_cast<unsigned long long>(bytes));
  }
  Line lines[2];
  domain.read_lines(base, 2, lines);
  const auto header = memory::as<HeaderLine>(lines[0]);
  const auto geometry = memory::as<GeometryLine>(lines[1]);
  if (header.magic != kMagic) {
    return Error::make(Code::kNotAPool, "%s: is not a pool: its magic is %016llx, not %016llx",
                       name, static_cast<unsigned long long>(header.magic),
                       static_cast<unsigned long long>(kMagic));
  }
  if (header.version != kFormatVersion && header.version != kGrowableVersion) {
    return Error::make(Code::kVersionMismatch,
                       "%s: is a pool of format version %u, this program knows %u and %u", name,
                       header.version, kFormatVersion, kGrowableVersion);
  }
  const memory::LineSeal seal(header.uuid_low, header.uuid_high);
  if (!seal.checks(lines[0], 0) || !seal.checks(lines[1], kLineBytes)) {
    return Error::make(Code::kCorrupt, "%s: the pool's header is damaged: its CRC is wrong", name);
  }
  if (geometry.keeper_slots != kKeeperSlots || geometry.ring_lines != kRingLines ||
      geometry.namespaces != kMaxNamespaces) {
    return Error::make(Code::kVersionMismatch,
                       "%s: has %u keeper slots, rings of %u lines, %u namespaces; "
                       "this program knows %u, %u, %u",
                       name, geometry.keeper_slots, geometry.ring_lines, geometry.namespaces,
                       kKeeperSlots, kRingLines, kMaxNamespaces);
  }
  const Header read = header_of(header, geometry);
  if (header.version == version_of(read.geometry)) return read;
  return Error::make(Code::kCorrupt,
                     "%s: the pool's header is damaged: format version %u, and %s it may grow",
                     name, header.version, read.geometry.growable ? "it says that" : "not that");
}

}  // namespace cachalot::pool
