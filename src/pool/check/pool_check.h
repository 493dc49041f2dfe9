// Checks a whole pool: everything behind its headers (header_check.h), as the next keeper would read it.
//
// It only reads. While a keeper serves or clients are attached, a scan sees lines of different moments:
// check_served_pool() counts only what several passes find in the same place.
#pragma once

#include <cstdint>

#include "pool/check/entry_check.h"
#include "pool/check/fault.h"
#include "pool/format/access.h"

namespace cachalot::pool {

struct CheckReport {
  std::uint32_t epoch = 0;  // of the last keeper; 0: the pool never had one
  EntryCheck::Figures figures;
};

// @param threads  that verify payloads and notes; 0: these are not read
// @cost  reads all metadata once, and all payloads that have a checksum
CheckReport check_pool(const Access& access, std::uint32_t threads, FaultLog& log);

// @cost  as above; up to three times if there are faults
CheckReport check_served_pool(const Access& access, std::uint32_t threads, FaultLog& log);

}  // namespace cachalot::pool
