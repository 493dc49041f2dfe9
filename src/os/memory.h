// How much memory this process can still have: what is beyond it is paid for by some process's life
// (the kernel's out-of-memory killer), since memory that is asked for is only given when it is touched.
#pragma once

#include <cstdint>
#include <string>

namespace cachalot::os {

struct AvailableMemory {
  std::uint64_t bytes = ~std::uint64_t{0};  // the largest number: nothing says how much
  std::string limited_by = {};              // for messages: the machine, or a control group
  std::uint64_t limit = ~std::uint64_t{0};  // of that control group, used or not
};

// What the machine has left, swap included, and no more than any control group that this process is in
// may still take (versions 1 and 2; file pages, which can be given back, count as free).
// @param root  where /proc and /sys are looked for; for tests
// @cost  some small files
AvailableMemory available_memory(const std::string& root = "");

// What the machine has left, swap included.
std::uint64_t available_machine_bytes(const std::string& root = "");

// How many addresses this process may have (RLIMIT_AS, `ulimit -v`); the largest number: no limit.
std::uint64_t address_space_limit();

}  // namespace cachalot::os
