// Checks the devices that a growable pool got after it was made, as its last keeper named them.
//
// @threads any
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/check/fault.h"
#include "pool/expansion/expansion_table.h"
#include "pool/format/access.h"

namespace cachalot::pool {

struct AddedReport {
  std::vector<Expansion> devices;
  // Whose header lines are damaged, while its serial proves that it is the one: they can be written again.
  std::vector<Expansion> without_header;
};

// A fault for each device that is missing, damaged, of another serial or too short. A keeper may serve the pool.
AddedReport check_added(const Access& access, FaultLog& log);

// Writes their header lines again. Complete on return.
Status mend_added_headers(const Access& access, const AddedReport& report);

// The place of a fault in the address space of a growable pool's first device: on that device, or on one that was added.
void set_device(const Access& access, const AddedReport& report, Fault& fault);

}  // namespace cachalot::pool
