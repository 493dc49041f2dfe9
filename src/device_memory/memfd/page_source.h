// Files that live in memory, by where their pages come from.
//
//   source    | file                              | pages of 2 MiB by
//   kHugetlb  | memfd, MFD_HUGETLB                | the machine's reserve (vm.nr_hugepages)
//   kTmpfs    | without a name, in a directory    | the mount: huge=always, within_size
//   kCollapse | memfd                             | MADV_COLLAPSE, Linux 6.1; no privilege needed
//   kSmall    | memfd                             | none: 4 KiB pages
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

#include "os/file_descriptor.h"

namespace cachalot::device_memory {

enum class PageSource : std::uint8_t { kHugetlb, kTmpfs, kCollapse, kSmall };

// "hugetlb", "tmpfs", "collapse", "small".
const char* page_source_name(PageSource source);

// An empty file that goes away with its last descriptor and mapping.
// @param  directory  for kTmpfs
// @errors kNotFound, kPermission, kInvalidArgument: the directory; kUnsupported
Result<os::FileDescriptor> open_page_file(PageSource source, const std::string& directory);

// What is left of the machine's reserve of 2 MiB pages.
std::uint64_t free_hugetlb_bytes();

}  // namespace cachalot::device_memory
