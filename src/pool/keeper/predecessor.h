// What the last keeper that finished its own takeover left behind: the epochs and the area that a new keeper
// starts from.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "pool/format/access.h"

namespace cachalot::pool {

struct Predecessor {
  std::uint32_t epoch = 0;  // 0: the pool is new
  std::uint32_t min_epoch = 0;
  std::uint32_t highest_epoch = 0;  // of any keeper, finished or not
  std::uint32_t latest_area = 0;    // that one's
  std::uint32_t area = 0;
  bool is_lost = false;  // a keeper ruled whose lines are lost
  // Of the machine that the finished one ran on, and whether all payloads were written back when it stopped.
  std::uint64_t boot_id_low = 0, boot_id_high = 0;
  bool is_flushed = false;
};

// @cost the lines of all keeper areas; the whole directory where a keeper's lines may be lost
Predecessor find_predecessor(const Access& access);

// The area that Reign::announce() would take now. Bit k of `avoid_areas`: area k is in use by another process.
// @errors kBusy: none is free
Result<std::uint32_t> next_keeper_area(const Access& access, std::uint32_t avoid_areas);

}  // namespace cachalot::pool
