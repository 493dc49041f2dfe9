#include "pool/sizing.h"

#include <cinttypes>

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kMostBlocks = 0xfffffffeu;

}  // namespace

std::uint64_t total_bytes(const Geometry& geometry) {
  return geometry.device_bytes * geometry.devices;
}

Result<Geometry> with_capacity(const Geometry& shape, std::uint64_t capacity_blocks,
                               std::optional<std::uint64_t> spare) {
  if (capacity_blocks == 0 || capacity_blocks > kMostBlocks) {
    return Error::make(Code::kInvalidArgument,
                       "the capacity: %" PRIu64 " blocks is not within 1 to %" PRIu64,
                       capacity_blocks, kMostBlocks);
  }
  const std::uint64_t beyond = spare.value_or(
      rated_spare_blocks(shape.engine_clients(), capacity_blocks, shape.block_bytes));
  std::uint64_t blocks = 0;
  if (__builtin_add_overflow(capacity_blocks, beyond, &blocks) || blocks > kMostBlocks) {
    return Error::make(Code::kInvalidArgument,
                       "the capacity: %" PRIu64 " blocks and %" PRIu64
                       " spare ones are more than %" PRIu64 " blocks",
                       capacity_blocks, beyond, kMostBlocks);
  }
  Geometry geometry = shape;
  geometry.capacity_blocks = static_cast<std::uint32_t>(capacity_blocks);
  geometry.blocks = static_cast<std::uint32_t>(blocks);
  geometry.directory_slots = rated_directory_slots(geometry.capacity_blocks);
  CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  return geometry;
}

// All parts of a pool grow with its capacity.
Result<Geometry> fitting(const Geometry& shape, std::uint64_t bytes) {
  CACHALOT_TRY_ASSIGN(Geometry best, with_capacity(shape, 1));
  if (total_bytes(best) > bytes) {
    return Error::make(Code::kInvalidArgument,
                       "%" PRIu64 " bytes are too few for a pool: one block of %" PRIu64
                       " bytes and %u client slots take %" PRIu64,
                       bytes, shape.block_bytes, shape.engine_clients(), total_bytes(best));
  }
  std::uint64_t fits = 1, too_many = kMostBlocks + 1;
  while (too_many - fits > 1) {
    const std::uint64_t middle = fits + (too_many - fits) / 2;
    const Result<Geometry> geometry = with_capacity(shape, middle);
    if (geometry && total_bytes(*geometry) <= bytes) {
      best = *geometry;
      fits = middle;
    } else {
      too_many = middle;
    }
  }
  // More blocks would fit, and no pool has them: to make a smaller one than was asked for would be no answer.
  if (total_bytes(best) < bytes && !with_capacity(shape, too_many)) {
    return Error::make(Code::kInvalidArgument,
                       "%" PRIu64 " bytes are too many: the largest pool of blocks of %" PRIu64
                       " bytes takes %" PRIu64 " (%u blocks)",
                       bytes, shape.block_bytes, total_bytes(best), best.capacity_blocks);
  }
  return best;
}

Result<Geometry> with_room_to_grow(const Geometry& first, std::uint64_t most_bytes,
                                   bool keeps_bytes) {
  CACHALOT_TRY_ASSIGN(const Geometry most, fitting(first, most_bytes));
  if (most.capacity_blocks <= first.capacity_blocks) {
    return Error::make(Code::kInvalidArgument,
                       "%" PRIu64 " bytes have room for %u blocks, the pool begins with %u",
                       most_bytes, most.capacity_blocks, first.capacity_blocks);
  }
  CACHALOT_TRY_ASSIGN(Geometry geometry,
                      with_capacity(first, most.capacity_blocks, first.spare_blocks()));
  geometry.growable = true;
  CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  CACHALOT_TRY_ASSIGN(const Layout layout, lay_out(geometry));
  const std::uint64_t data = std::uint64_t{first.blocks} * first.block_bytes;
  const std::uint64_t wanted =
      keeps_bytes ? first.device_bytes
                  : layout.data_offset + (data + memory::kStripeBytes - 1) / memory::kStripeBytes *
                                             memory::kStripeBytes;
  if (wanted < geometry.device_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "%" PRIu64
                       " bytes to begin with are too few: the lines of a pool of up to "
                       "%" PRIu64 " bytes and one block take %" PRIu64,
                       wanted, most_bytes, geometry.device_bytes);
  }
  geometry.device_bytes = wanted;
  return geometry;
}

}  // namespace cachalot::pool
