#include "os/reserve.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "os/mapping.h"
#include "os/memory.h"

namespace cachalot::os {
namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

struct Available {
  std::uint64_t bytes = kNoLimit;
  std::string why = {};  // for messages; empty: the file system says so
};

Error no_space(const char* path, std::uint64_t wanted, const Available& available) {
  Error error =
      Error::make(Code::kNoSpace, "%.120s: %" PRIu64 " bytes wanted, %" PRIu64 " available%.200s",
                  path, wanted, available.bytes, available.why.c_str());
  error.detail = available.bytes;
  return error;
}

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kNoLimit : result;
}

std::uint64_t free_huge_page_bytes(std::uint64_t page_bytes) {
  char name[96];
  std::snprintf(name, sizeof name,
                "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/free_hugepages",
                page_bytes / 1024);
  std::FILE* file = std::fopen(name, "re");
  if (file == nullptr) return kNoLimit;
  std::uint64_t pages = 0;
  const bool read = std::fscanf(file, "%" SCNu64, &pages) == 1;
  std::fclose(file);
  return read ? product(pages, page_bytes) : kNoLimit;
}

// A pool beyond its container's limit would be killed while it is made, and half of it would stay.
void narrow_to_memory(Available& available) {
  const AvailableMemory memory = available_memory();
  if (memory.bytes >= available.bytes) return;
  available.bytes = memory.bytes;
  if (memory.limit == kNoLimit) return;
  available.why = " (" + memory.limited_by + ": memory limit " + std::to_string(memory.limit) + ")";
}

// What the file may grow to; for file systems on disk only what they say themselves.
Available find_available(const struct statfs& fs) {
  const auto block_bytes = static_cast<std::uint64_t>(fs.f_bsize);
  // No blocks: a memfd's internal mount, or a mount without a limit.
  Available available{fs.f_blocks == 0 ? kNoLimit : product(fs.f_bavail, block_bytes)};
  if (fs.f_type == TMPFS_MAGIC) narrow_to_memory(available);
  if (fs.f_type == HUGETLBFS_MAGIC)
    available.bytes = std::min(available.bytes, free_huge_page_bytes(block_bytes));
  return available;
}

Status write_zeros(int fd, const char* path, std::uint64_t bytes) {
  const std::vector<char> zeros(1 << 20);
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t length = std::min<std::uint64_t>(bytes - at, zeros.size());
    const ssize_t written = pwrite(fd, zeros.data(), length, static_cast<off_t>(at));
    if (written < 0 && errno != EINTR) return Error::from_errno(errno, "%.120s: writing", path);
    if (written > 0) at += static_cast<std::uint64_t>(written);
  }
  return {};
}

// In pieces: tmpfs takes back all that a call did when a signal comes, so a call must be short.
// @return 0, or what went wrong
int allocate_all(int fd, std::uint64_t bytes, std::uint64_t page_bytes) {
  const std::uint64_t piece_bytes = std::max<std::uint64_t>(16u << 20, page_bytes);
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t length = std::min(bytes - at, piece_bytes);
    if (fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(length)) == 0) {
      at += length;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool is_not_supported(int os_error) {
  return os_error == EOPNOTSUPP || os_error == ENOSYS;
}

std::uint64_t hole_bytes(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return 0;
  constexpr std::uint64_t kUnit = 512;  // of st_blocks, on every file system
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  return bytes - std::min(bytes, static_cast<std::uint64_t>(status.st_blocks) * kUnit);
}

// The first page of every 2 MiB, and then all of it as one huge page: the kernel makes a huge page
// only around something. An order of magnitude faster than to collapse small pages.
void allocate_huge(int fd, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at + kMapAlignmentBytes <= bytes; at += kMapAlignmentBytes) {
    if (fallocate(fd, 0, static_cast<off_t>(at), 4096) != 0) return;
  }
  // Mapping does it. If it fails, the space is reserved in small pages.
  const auto mapping = Mapping::map_shared({.fd = fd, .path = ""}, bytes, {.huge_pages = true});
  static_cast<void>(mapping);
}

}  // namespace

Status reserve_space(int fd, const char* path, std::uint64_t bytes, bool huge_pages) {
  struct statfs fs {};
  if (fstatfs(fd, &fs) != 0) return Error::from_errno(errno, "%.120s: statfs", path);
  const bool tmpfs = fs.f_type == TMPFS_MAGIC;
  const bool hugetlbfs = fs.f_type == HUGETLBFS_MAGIC;
  const auto page_bytes = static_cast<std::uint64_t>(fs.f_bsize);
  if (hugetlbfs && bytes % page_bytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: %" PRIu64 " bytes is not a multiple of the huge page of %" PRIu64,
                       path, bytes, page_bytes);
  }
  // Past this limit the kernel does not only refuse, it sends a signal that kills.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return no_space(path, bytes, {limit.rlim_cur});
  }
  // Looked at first, because memory that is over-committed is paid for by some process's life.
  const Available available = find_available(fs);
  if ((tmpfs || hugetlbfs) && bytes > available.bytes) return no_space(path, bytes, available);

  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return Error::from_errno(errno, "%.120s: resizing to %" PRIu64 " bytes", path, bytes);
  }
  if (tmpfs && huge_pages) allocate_huge(fd, bytes);
  const int os_error = allocate_all(fd, bytes, page_bytes);
  if (os_error == 0) return {};
  if (is_not_supported(os_error)) return write_zeros(fd, path, bytes);
  const Error error = Error::from_errno(os_error, "%.120s: reserving", path);
  return error.code == Code::kNoSpace ? no_space(path, bytes, available) : error;
}

bool has_holes(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && hole_bytes(status) != 0;
}

Status fill_holes(int fd, const char* path) {
  struct stat status {};
  struct statfs fs {};
  if (fstat(fd, &status) != 0) return Error::from_errno(errno, "%.120s: stat", path);
  if (fstatfs(fd, &fs) != 0) return Error::from_errno(errno, "%.120s: statfs", path);
  const std::uint64_t wanted = hole_bytes(status);
  if (wanted == 0) return {};
  const Available available = find_available(fs);
  const auto too_little = [&] {
    return Error::make(Code::kNoSpace,
                       "%.120s: is a sparse file: %" PRIu64 " bytes more wanted, %" PRIu64
                       " available%.200s",
                       path, wanted, available.bytes, available.why.c_str());
  };
  // Elsewhere a file may be smaller than its bytes because it is compressed.
  const bool is_memory = fs.f_type == TMPFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC;
  if (is_memory && wanted > available.bytes) return too_little();
  const int os_error = allocate_all(fd, static_cast<std::uint64_t>(status.st_size),
                                    static_cast<std::uint64_t>(fs.f_bsize));
  if (os_error == 0 || is_not_supported(os_error)) return {};
  const Error error = Error::from_errno(os_error, "%.120s: reserving", path);
  return error.code == Code::kNoSpace ? too_little() : error;
}

}  // namespace cachalot::os
