// The memory of those blocks of a growable pool that its first device has no room for, as this process has it.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "pool/expansion/expansion_table.h"
#include "pool/format/access.h"

namespace cachalot::pool {

// @threads any
class ExpansionMemory {
 public:
  virtual ~ExpansionMemory() = default;

  // Maps what the table of this keeper names, where it is not mapped yet.
  // @return  blocks, from 0 on, that may be accessed: not those that are given up, nor those on a device that cannot be
  //          mapped here, and only the first device's where the table cannot be read
  // @cost    a line; where the table has changed, also its rows, and the opening of devices
  virtual std::uint32_t follow(const Access& access, std::uint32_t area, std::uint32_t epoch) = 0;

  // For the keeper, which decides: maps these, in this order.
  // @param  why_not  of the first one that is not
  // @return how many of them, from the first on, are mapped now
  virtual std::size_t map(const Access& access, std::span<const Expansion> expansions,
                          Status& why_not) = 0;

  // Writes what is mapped back to its devices, and waits. @errors as os::flush_to_file
  virtual Status flush() = 0;

  // One of these, as map() has mapped them, whose path does not lead to it any more. @cost looking each path up
  virtual std::optional<std::string> find_removed(std::span<const Expansion> expansions) const = 0;

  // What the device at `path` says of itself.
  // @errors as os::SharedFile::open; kInvalidArgument: it was not prepared for this pool
  virtual Result<Expansion> look_at(const Access& access, const std::string& path) const = 0;
};

}  // namespace cachalot::pool
