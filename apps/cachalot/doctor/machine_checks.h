// What this machine has for a pool: memory, shared memory, huge pages, limits, processor, clock, NUMA nodes, devices.
#pragma once

#include <string>

#include "findings.h"

namespace cachalot::apps {

// @param root  where /proc, /sys and /dev are looked for; empty: here
// @cost small files
Findings check_machine(const std::string& root);

// NVIDIA's driver, its devices, and whether it page-locks shared memory.
// @cost initializes the driver: up to seconds
Findings check_gpus(const std::string& root);

}  // namespace cachalot::apps
