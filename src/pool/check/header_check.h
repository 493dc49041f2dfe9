// Checks the header lines of a pool's devices, and finds out what a damaged one said.
//
// A line with one wrong byte is found by its CRC: all 16,320 lines that differ in one byte are tried, and one that
// checks is taken if it is the only one. A line that is damaged more is taken from another device, whose lines
// say the same but for the index.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/coherence.h"
#include "pool/check/fault.h"
#include "pool/format/access.h"

namespace cachalot::pool {

// What the two lines at a device's beginning are.
struct HeaderLines {
  bool is_pool = false;  // the magic is right, or a line checks once one byte of it is mended
  bool is_header_good = false, is_geometry_good = false;
  std::optional<HeaderLine> header;  // as it is, or mended
  std::optional<GeometryLine> geometry;
};
HeaderLines look_at_header(memory::Domain& domain, const std::byte* base);

struct HeaderReport {
  // What the header says, or must have said, of device 0; nothing: no device has it.
  std::optional<Header> first;
  std::vector<std::string> paths;  // of all devices
  std::vector<bool> is_good;       // of device i: both its lines say what they must
  // False: files that are too short are faults, and the rest cannot be read.
  bool has_all_bytes = true;
};

// Reads the headers of a pool's devices.
// @param  paths  as Pool::open
// @errors kNotAPool, kVersionMismatch: no device says that it is one of this version; kInvalidArgument: one was added
//         later; as os::SharedFile::open
Result<HeaderReport> check_headers(const std::vector<std::string>& paths, FaultLog& log);

// Writes the lines of the devices that are not good again.
// @param access  with a region of all devices, of the pool that `report.first` describes
void mend_headers(const Access& access, const HeaderReport& report);

}  // namespace cachalot::pool
