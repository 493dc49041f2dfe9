#include "device_memory/memfd/page_source.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <cerrno>
#include <fstream>

// Missing in the headers of some systems we build on.
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace cachalot::device_memory {
namespace {

Result<os::FileDescriptor> open_memfd(unsigned flags) {
  os::FileDescriptor fd(memfd_create("cachalot-vmm", MFD_CLOEXEC | flags));
  if (!fd) return Error::from_errno(errno, "memfd_create with flags 0x%x", flags);
  return fd;
}

Result<os::FileDescriptor> open_in(const std::string& directory) {
  struct statfs fs {};
  if (statfs(directory.c_str(), &fs) != 0) {
    return Error::from_errno(errno, "%.120s: statfs", directory.c_str());
  }
  if (fs.f_type != TMPFS_MAGIC) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: file system 0x%lx; expected a directory on tmpfs",
                       directory.c_str(), static_cast<unsigned long>(fs.f_type));
  }
  os::FileDescriptor fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd) return Error::from_errno(errno, "%.120s: making a file in it", directory.c_str());
  return fd;
}

}  // namespace

const char* page_source_name(PageSource source) {
  switch (source) {
    case PageSource::kHugetlb:
      return "hugetlb";
    case PageSource::kTmpfs:
      return "tmpfs";
    case PageSource::kCollapse:
      return "collapse";
    case PageSource::kSmall:
      return "small";
  }
  return "unknown";
}

Result<os::FileDescriptor> open_page_file(PageSource source, const std::string& directory) {
  if (source == PageSource::kHugetlb) return open_memfd(MFD_HUGETLB | MFD_HUGE_2MB);
  if (source == PageSource::kTmpfs) return open_in(directory);
  return open_memfd(0);
}

std::uint64_t free_hugetlb_bytes() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  std::uint64_t pages = 0;
  return file >> pages ? pages << 21 : 0;
}

}  // namespace cachalot::device_memory
