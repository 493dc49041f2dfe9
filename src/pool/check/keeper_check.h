// Checks what keepers write apart from ledger and directory: their lines, namespaces, views of clients, reports.
//
// @threads any
#pragma once

#include <vector>

#include "pool/check/fault.h"
#include "pool/format/access.h"
#include "pool/format/statistics.h"
#include "pool/keeper/predecessor.h"

namespace cachalot::pool {

// Calls f(offset) for each line of an area that only reports: KeeperInfoLine, counters of the keeper and of
// namespaces, state of the storage.
template <class F>
void for_each_report_line(const Access& access, std::uint32_t area, F&& f) {
  f(access.layout.keeper_info(area));
  for (std::uint32_t i = 0; i < KeeperCounters::kLines; ++i)
    f(access.layout.keeper_counters(area) + i * memory::kLineBytes);
  for (std::uint32_t i = 0; i < kMaxNamespaces; ++i) {
    const std::uint64_t at = access.layout.namespace_counters(area, i, access.geometry.clients);
    if (at != 0) f(at);
  }
  constexpr std::uint32_t kFirstStorageLine = 40, kStorageLines = 4;
  for (std::uint32_t i = 0; i < kStorageLines; ++i)
    f(access.layout.keeper_line(area) + (kFirstStorageLine + i) * memory::kLineBytes);
}

// The lines of all areas' keepers.
void check_keeper_lines(const Access& access, const Predecessor& predecessor, FaultLog& log);

// What else stands in the area of the last keeper that finished its takeover.
// @return is_known[id - 1]: entries of this namespace count
std::vector<bool> check_keeper_area(const Access& access, const Predecessor& predecessor,
                                    FaultLog& log);

}  // namespace cachalot::pool
