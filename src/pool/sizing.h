// How many bytes a pool takes in all, and how many blocks fit into a size: for all that make pools.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>

#include "pool/format/format.h"

namespace cachalot::pool {

// Slots of a new pool for engines' clients, unless it is told otherwise. An engine takes one for its scheduler and one for
// each rank; a slot that is not used costs 100 KiB.
inline constexpr std::uint32_t kDefaultClients = 64;

// Bytes of all devices together.
std::uint64_t total_bytes(const Geometry& geometry);

// The geometry of a pool of so many blocks.
// @param shape  domain, block_bytes, clients, hosts, devices and note_bytes count; the rest is filled in
// @param spare  blocks beyond the capacity; nothing: rated_spare_blocks()
// @errors kInvalidArgument: a value out of range
Result<Geometry> with_capacity(const Geometry& shape, std::uint64_t capacity_blocks,
                               std::optional<std::uint64_t> spare = {});

// The same with as many blocks as a pool of at most `bytes` in all has room for.
// @errors kInvalidArgument: not even one, or more than a pool can have; says how many bytes that takes
Result<Geometry> fitting(const Geometry& shape, std::uint64_t bytes);

// The geometry of a pool that begins as `first`, and may grow until it takes `most_bytes` in all.
// @param keeps_bytes  the first device has as many bytes as `first`, and fewer blocks, because the lines of a larger pool
//                     take more; else as many blocks, and more bytes
// @errors kInvalidArgument: that is no more than it has already; the lines leave no room for blocks; several devices
Result<Geometry> with_room_to_grow(const Geometry& first, std::uint64_t most_bytes,
                                   bool keeps_bytes);

}  // namespace cachalot::pool
