// What a growable pool has beyond its first device: its expansions, in the order of their blocks.
//
// The keeper's table lies in its area. A successor copies it into its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pool/format/access.h"

namespace cachalot::pool {

struct Expansion {
  PoolId serial;            // of this device in this pool: drawn when it was prepared
  std::uint64_t bytes = 0;  // of blocks, a multiple of 2 MiB
  std::string path;         // the same on all machines

  bool operator==(const Expansion&) const = default;
};

struct ExpansionTable {
  std::uint64_t version = 0;         // never the same for two tables
  std::uint32_t leaving = kNoBlock;  // blocks from here on are given up; kNoBlock: none
  std::vector<Expansion> expansions;
  // That keepers began without. Their blocks are gone; what lies there is this pool's to remove.
  std::vector<Expansion> lost;
};

// Blocks, from 0 on, that lie wholly on the first device and these expansions.
std::uint32_t blocks_on(const Access& access, std::span<const Expansion> expansions);

// Bytes of blocks that a pool with these expansions may still get.
std::uint64_t room_to_grow(const Access& access, std::span<const Expansion> expansions);

// The version of the table that the keeper of this area and epoch has written. Nothing: none that can be read.
// @cost a line
std::optional<std::uint64_t> read_table_version(const Access& access, std::uint32_t area,
                                                std::uint32_t epoch);

// Blocks, from 0 on, that this keeper hands out. Where it says nothing that can be read: those of the first device.
std::uint32_t read_blocks(const Access& access, std::uint32_t area, std::uint32_t epoch);

// That table, all of it as of one moment. Numbers are within the geometry. @threads any
std::optional<ExpansionTable> read_table(const Access& access, std::uint32_t area,
                                         std::uint32_t epoch);

// Writes the rows before the line that counts them. Not complete on return. @threads the keeper's
// @param  first_new  the rows before it are as they were written; so are those of `lost`, or no table names them
void write_table(const Access& access, std::uint32_t area, std::uint32_t epoch,
                 const ExpansionTable& table, std::size_t first_new);

}  // namespace cachalot::pool
