// Making 2 MiB pages of a file in memory, and seeing whether there are some.
#pragma once

#include <cstdint>

namespace cachalot::device_memory {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

// Makes each whole 2 MiB of this part of the file one page, around what is present (MADV_COLLAPSE).
// Around a single page of 4 KiB it takes 0.1 ms, around 512 of them 2 ms.
// @return whether all of them are huge now; false on Linux before 6.1
bool collapse(int fd, std::uint64_t offset, std::uint64_t bytes);

// Whether this kernel can collapse at all, whatever came of it.
bool kernel_collapses();

// Whether the 2 MiB there, mapped and touched, are one entry of the page table.
bool is_huge(int fd, std::uint64_t offset);

}  // namespace cachalot::device_memory
