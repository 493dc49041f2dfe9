// Names for processes and boots that never come back for another one: a pid is recycled, a pid with
// its start time is not; the boot id says whether either still means anything.
//
// All of it holds between processes of the same Namespaces only. Processes of two pid namespaces see
// different pids, and the kernel shifts every start time by the offset of the reader's time namespace:
// compare namespaces() before believing in a death.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::os {

struct Uuid {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Uuid&) const = default;
};

// 128 bits from the kernel's generator. @errors kIo
Result<Uuid> random_uuid();

// Another value after every boot of this machine. @errors kIo: no /proc
Result<Uuid> boot_id();

// This machine's name, the same after every boot: of /etc/machine-id and the firmware's product UUID, as far as
// they can be read. Zeros: neither can. Copies of a virtual machine may have one name.
Uuid machine_id();

std::uint32_t own_pid();

// Where a pid and a start time mean the same: the inode numbers of two namespaces, their low halves.
struct Namespaces {
  std::uint32_t pid = 0;
  std::uint32_t time = 0;  // 0: the kernel has no time namespaces
  bool operator==(const Namespaces&) const = default;
};

// Those of this process. @errors kIo: no /proc
Result<Namespaces> namespaces();

// When the process started, in clock ticks since boot. @errors kNotFound: no such process; kIo
Result<std::uint64_t> process_start_time(std::uint32_t pid);

// False only if the process is known to be gone, so that it can store no more: no such pid, another
// start time, or a zombie of which no thread runs. What cannot be found out counts as alive.
bool process_alive(std::uint32_t pid, std::uint64_t start_time);

}  // namespace cachalot::os
