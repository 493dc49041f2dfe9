#include "pool/format/format.h"

#include <algorithm>

namespace cachalot::pool {
namespace {

using memory::kLineBytes;
using memory::kStripeBytes;

// Adds up sections; remembers whether a size overflowed, so that one check at the end is enough.
class Cursor {
 public:
  // Appends count * unit bytes, page-aligned; returns where they begin.
  std::uint64_t take(std::uint64_t count, std::uint64_t unit) {
    const std::uint64_t begin = at_;
    std::uint64_t bytes = 0;
    overflowed_ |= __builtin_mul_overflow(count, unit, &bytes);
    overflowed_ |= __builtin_add_overflow(bytes, kPageBytes - 1, &bytes);
    overflowed_ |= __builtin_add_overflow(at_, bytes & ~(kPageBytes - 1), &at_);
    return begin;
  }
  std::uint64_t at() const { return at_; }
  bool overflowed() const { return overflowed_; }

 private:
  std::uint64_t at_ = 0;
  bool overflowed_ = false;
};

Status check_range(const char* name, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return Error::make(Code::kInvalidArgument, "%s: %llu is not within %llu to %llu", name,
                     static_cast<unsigned long long>(value), static_cast<unsigned long long>(low),
                     static_cast<unsigned long long>(high));
}

Status check_domain(const Geometry& g) {
  switch (g.domain) {
    case memory::DomainKind::kCoherent:
    case memory::DomainKind::kNoncoherent:
    case memory::DomainKind::kLossy:
      if (g.noncoherent_devices == 0) return {};
      break;
    case memory::DomainKind::kMixed: {
      const std::uint32_t devices = g.growable ? 2 : g.devices;
      const bool are_devices = devices == 64 || g.noncoherent_devices >> devices == 0;
      // The metadata is on the first one.
      if (are_devices && g.noncoherent_devices != 0 && !g.is_noncoherent(0)) return {};
      break;
    }
    default:
      return Error::make(Code::kInvalidArgument, "coherence domain: %u is none",
                         static_cast<unsigned>(g.domain));
  }
  return Error::make(Code::kInvalidArgument,
                     "coherence domain: %s, with noncoherent devices %#llx of %u: expected some in "
                     "a mixed one, and never the first",
                     memory::domain_name(g.domain),
                     static_cast<unsigned long long>(g.noncoherent_devices), g.devices);
}

Status check_values(const Geometry& g) {
  CACHALOT_TRY(check_range("devices", g.devices, 1, kMaxDevices));
  CACHALOT_TRY(check_range("block bytes", g.block_bytes, kLineBytes, 0xffffffc0u));
  if (g.block_bytes % kLineBytes != 0) {
    return Error::make(Code::kInvalidArgument, "block bytes: %llu is not a multiple of 64",
                       static_cast<unsigned long long>(g.block_bytes));
  }
  CACHALOT_TRY(check_range("blocks", g.blocks, 1, kNoBlock - 1));
  CACHALOT_TRY(check_range("capacity in blocks", g.capacity_blocks, 1, g.blocks));
  CACHALOT_TRY(check_range("directory slots", g.directory_slots, kBucketSlots, kNoBlock - 63));
  if (g.directory_slots % kBucketSlots != 0) {
    return Error::make(Code::kInvalidArgument, "directory slots: %u is not a multiple of %u",
                       g.directory_slots, kBucketSlots);
  }
  CACHALOT_TRY(check_range("client slots", g.clients, 1, kMaxClients));
  CACHALOT_TRY(check_range("hosts", g.hosts, 1, g.clients));
  CACHALOT_TRY(check_range("note bytes", g.note_bytes, 0, kMaxNoteBytes));
  if (g.note_bytes % kLineBytes != 0) {
    return Error::make(Code::kInvalidArgument, "note bytes: %u is not a multiple of 64",
                       g.note_bytes);
  }
  if (g.growable && g.devices != 1) {
    return Error::make(Code::kInvalidArgument,
                       "devices: %u for a pool that may grow, expected 1: more are added later",
                       g.devices);
  }
  return check_domain(g);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// All places, and in `needed` the bytes a device must have. Values are checked.
Result<Layout> place(const Geometry& g, std::uint64_t& needed) {
  Layout layout{};
  Cursor area;
  area.take(1, kPageBytes);
  layout.namespaces_in_area = area.take(kMaxNamespaces, kLineBytes);
  layout.names_in_area = area.take(kMaxNamespaces, kNameLines * kLineBytes);
  layout.views_in_area = area.take(g.clients, kPageBytes);
  layout.responses_in_area = area.take(g.clients, std::uint64_t{kRingLines} * kLineBytes);
  layout.ledger_in_area = area.take(
      (std::uint64_t{g.blocks} + kLedgerRecordsPerLine - 1) / kLedgerRecordsPerLine, kLineBytes);
  if (g.growable) {
    layout.expansions_in_area =
        area.take((kMaxExpansions + 1) * (1 + kPathLines), std::uint64_t{kLineBytes});
  }
  layout.keeper_area_bytes = area.at();

  Cursor device;
  device.take(1, kPageBytes);  // header
  layout.keeper_areas = device.take(kKeeperSlots, layout.keeper_area_bytes);
  layout.client_pages = device.take(g.clients, kPageBytes);
  layout.doorbell_page = device.take(1, kPageBytes);
  layout.request_rings = device.take(g.clients, std::uint64_t{kRingLines} * kLineBytes);
  layout.directory = device.take(g.directory_slots, kLineBytes);
  layout.notes = device.take(g.blocks, g.note_bytes);
  layout.metadata_bytes = device.at();
  layout.data_offset = round_up(layout.metadata_bytes, kStripeBytes);
  layout.other_data_offset = kStripeBytes;

  // Every device gives the same number of stripes, so device 0, which has the metadata, decides.
  std::uint64_t data = 0;
  bool overflowed = area.overflowed() || device.overflowed();
  overflowed |= __builtin_mul_overflow(std::uint64_t{g.blocks}, g.block_bytes, &data);
  overflowed |= data > (std::uint64_t{1} << 62);
  if (overflowed) {
    return Error::make(Code::kInvalidArgument,
                       "pool: %u blocks of %llu bytes are more than 2^62 bytes", g.blocks,
                       static_cast<unsigned long long>(g.block_bytes));
  }
  const std::uint64_t stripes = (data + kStripeBytes - 1) / kStripeBytes;
  layout.data_bytes_per_device = (stripes + g.devices - 1) / g.devices * kStripeBytes;
  const std::uint64_t first =
      g.growable ? round_up((g.spare_blocks() + std::uint64_t{1}) * g.block_bytes, kStripeBytes)
                 : layout.data_bytes_per_device;
  needed = layout.data_offset + std::min(first, layout.data_bytes_per_device);
  return layout;
}

}  // namespace

Result<Layout> lay_out(const Geometry& geometry) {
  CACHALOT_TRY(check_values(geometry));
  if (geometry.device_bytes % kStripeBytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "device size: %llu bytes are not a multiple of 2 MiB",
                       static_cast<unsigned long long>(geometry.device_bytes));
  }
  std::uint64_t needed = 0;
  CACHALOT_TRY_ASSIGN(Layout layout, place(geometry, needed));
  if (geometry.device_bytes < needed) {
    return Error::make(Code::kInvalidArgument,
                       "device size: %llu bytes are too few: %u blocks of %llu bytes on %u devices "
                       "need %llu bytes a device",
                       static_cast<unsigned long long>(geometry.device_bytes), geometry.blocks,
                       static_cast<unsigned long long>(geometry.block_bytes), geometry.devices,
                       static_cast<unsigned long long>(needed));
  }
  layout.first_blocks = geometry.blocks;
  if (geometry.growable) {
    layout.first_blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        geometry.blocks, (geometry.device_bytes - layout.data_offset) / geometry.block_bytes));
  }
  return layout;
}

Result<std::uint64_t> device_bytes_needed(const Geometry& geometry) {
  CACHALOT_TRY(check_values(geometry));
  std::uint64_t needed = 0;
  CACHALOT_TRY(place(geometry, needed));
  return needed;
}

std::uint64_t rated_spare_blocks(std::uint32_t clients, std::uint64_t capacity_blocks,
                                 std::uint64_t block_bytes) {
  constexpr std::uint64_t kBytesOfClient = 32u << 20, kLeast = 4;
  const std::uint64_t in_bytes = kBytesOfClient / std::max<std::uint64_t>(block_bytes, 1);
  const std::uint64_t of_client = std::clamp<std::uint64_t>(in_bytes, kLeast, 64);
  const std::uint64_t of_small_pool = std::clamp<std::uint64_t>(in_bytes, kLeast, 16);
  return std::min((clients + std::uint64_t{1}) * of_client,
                  std::max(capacity_blocks / 8, of_small_pool));
}

std::uint32_t rated_directory_slots(std::uint32_t capacity_blocks) {
  const std::uint64_t slots = round_up(std::uint64_t{capacity_blocks} * 2, kBucketSlots);
  // Few buckets fill unevenly: a small directory gets four buckets at least.
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(slots, 4 * kBucketSlots, kNoBlock - 63));
}

}  // namespace cachalot::pool
