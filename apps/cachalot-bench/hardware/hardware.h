// The questions that Beluga (arXiv 2511.20172) asked of a CXL pool, asked of this machine's memory. Its figures stand
// beside: they are of other hardware (Xeon 8575C, XConn switch), for orientation and not as a target.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

// Writes and reads of 16 KiB by each way to keep caches coherent by software (its Table 4).
Status bench_coherence(const Settings& settings, Report& report);
// Latency of writes and reads of 64 bytes to 4 MiB (its Figure 5).
Status bench_sweep(const Settings& settings, Report& report);
// Blocks chosen with skew, on devices of limited bandwidth, with and without interleaving (its Figures 7 and 13).
Status bench_skew(const Settings& settings, Report& report);
// Small reads and writes while another thread moves bulk data (its Figure 8).
Status bench_background(const Settings& settings, Report& report);

// Bytes a second by devices, cores and direction.
Status bench_devices(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
