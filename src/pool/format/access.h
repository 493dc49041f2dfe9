// One host's way into a pool: its geometry, where things lie, and the memory they lie in.
//
// Keeper and client are both built on an Access and do not care whether the memory is mapped
// devices or a simulated host's. An Access owns neither memory nor domain.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "memory/coherence.h"
#include "memory/interleave.h"
#include "memory/pool_view.h"
#include "memory/sealed_region.h"
#include "pool/format/format.h"

namespace cachalot::pool {

struct PoolId {
  std::uint64_t low = 0, high = 0;
  bool operator==(const PoolId&) const = default;
};

class ExpansionMemory;

struct Access {
  PoolId id;
  Geometry geometry;
  Layout layout;
  memory::PoolView view;
  memory::SealedRegion region;  // device 0: all metadata
  memory::Interleave interleave;
  ExpansionMemory* expansions = nullptr;  // of a growable pool

  memory::Domain& domain() const { return region.domain(); }

  // Calls f(std::byte* pool_address, bytes) for the extents of the first `bytes` of a block.
  template <class F>
  void for_each_extent(std::uint32_t block, std::uint64_t bytes, F&& f) const {
    interleave.for_each_extent(
        std::uint64_t{block} * geometry.block_bytes, bytes,
        [&](std::uint32_t device, std::uint64_t offset, std::uint64_t length) {
          f(view.bases[device] + offset, length);
        });
  }
};

// Builds the Access of a pool with this geometry. @errors kInvalidArgument as lay_out()
Result<Access> make_access(const PoolId& id, const Geometry& geometry, const memory::PoolView& view,
                           memory::Domain& domain);

// Writes an empty pool: sealed free entries first, the headers last, all of it complete on return.
// What the memory held before is void.
// @cost 64 bytes of stores per directory slot
void format_pool(const Access& access, std::uint64_t created_unix_s);

// What the header of device `index` says of the pool.
struct Header {
  PoolId id;
  Geometry geometry;
  std::uint32_t device_index = 0;
  std::uint64_t created_unix_s = 0;
};

// The format version of pools of this geometry.
constexpr std::uint32_t version_of(const Geometry& geometry) {
  return geometry.growable ? kGrowableVersion : kFormatVersion;
}

// What two header lines say, whether or not they check.
Header header_of(const HeaderLine& header, const GeometryLine& geometry);

// Writes both header lines of the device mapped at `base`, the one with the magic last. Not complete on return.
void write_header(memory::Domain& domain, std::byte* base, const Header& header);

// Reads the header of the device mapped at `base`.
// @errors kNotAPool: wrong magic; kVersionMismatch; kCorrupt: its CRC is wrong
Result<Header> read_header(memory::Domain& domain, const std::byte* base, std::uint64_t bytes,
                           const char* name);

// Whole lines that `bytes` of payload fill.
constexpr std::uint64_t padded_bytes(std::uint64_t bytes) {
  return (bytes + memory::kLineBytes - 1) / memory::kLineBytes * memory::kLineBytes;
}

}  // namespace cachalot::pool
