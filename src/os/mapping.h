// Memory of a shared file, mapped into this process until the Mapping goes out of scope.
//
// 1. data() is aligned to 2 MiB or to the file's own page size, whichever is larger.
// 2. The memory stays mapped after its SharedFile is closed or removed.
// 3. Behind bytes() there may be addresses that are kept for more: without access until map_at() maps a file there.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace cachalot::os {

inline constexpr std::uint64_t kSmallPageBytes = 4096;
inline constexpr std::uint64_t kMapAlignmentBytes = std::uint64_t{2} << 20;

// What the mapping is made of when map() returns. Benchmarks print it: the first touch of a page,
// and every TLB miss after it, differ by a factor of 10 to 80.
enum class PageMode {
  kSmall,            // 4 KiB pages, or nothing present yet
  kMixed,            // some of it in transparent huge pages
  kTransparentHuge,  // all whole 2 MiB of it in transparent huge pages
  kHugetlb,          // reserved huge pages of hugetlbfs
  kDax,              // device memory mapped directly, no page cache
};

const char* page_mode_name(PageMode mode);

struct MapOptions {
  bool dont_fork = true;   // MADV_DONTFORK: a forked child cannot store into it
  bool huge_pages = true;  // MADV_HUGEPAGE and MADV_COLLAPSE, where the kernel can
  bool populate = false;   // all page-table entries now; fails where a touch would be SIGBUS
  bool read_only = false;  // PROT_READ
  std::uint64_t address_bytes =
      0;  // keep so many addresses in all, from the first byte on; 0: as many as are mapped
};

// What is mapped, as os/shared_file.cpp found it out.
struct MapSource {
  int fd;
  const char* path;                            // for messages
  std::uint64_t page_bytes = kSmallPageBytes;  // of the file: a huge page, a device's alignment
  PageMode pages = PageMode::kSmall;           // kSmall: page cache, which can become huge
  std::uint64_t offset = 0;                    // of the first byte to map, a multiple of page_bytes
};

// Bytes of the mapping that holds this address which the page table has in entries of 2 MiB; 0 where
// the system does not say. @cost  reads /proc/self/smaps up to there
std::uint64_t huge_bytes_at(const std::byte* data);

// Writes what was stored into these bytes of a shared mapping back to its file, and waits. Memory file systems have
// nothing to write.
// @param  path  for messages
// @errors kUnsupported: a devdax device, which has no such operation; kIo
Status flush_to_file(std::byte* data, std::uint64_t bytes, const char* path);

// Maps bytes of a file over addresses that a Mapping keeps, which ends it, too. Whatever was mapped there before
// is replaced at once: no access in between fails.
// @param  where  a multiple of the source's page_bytes, as `bytes` is
// @errors kInvalidArgument: they are not; kNoSpace; kPermission
Status map_at(std::byte* where, const MapSource& source, std::uint64_t bytes,
              const MapOptions& options);

class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` bytes of a file shared, from the source's offset on; they must exist.
  // @errors kInvalidArgument: no bytes, or more than an address space has; kNoSpace; kPermission
  static Result<Mapping> map_shared(const MapSource& source, std::uint64_t bytes,
                                    const MapOptions& options);
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  PageMode page_mode() const { return page_mode_; }

 private:
  Mapping(std::byte* data, std::uint64_t bytes, std::uint64_t mapped_bytes,
          std::uint64_t address_bytes, PageMode mode)
      : data_(data),
        bytes_(bytes),
        mapped_bytes_(mapped_bytes),
        address_bytes_(address_bytes),
        page_mode_(mode) {}
  void use_huge_pages();
  Status populate(const char* path, bool for_writing);
  void swap(Mapping& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(address_bytes_, other.address_bytes_);
    std::swap(page_mode_, other.page_mode_);
  }

  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t mapped_bytes_ = 0;   // bytes_ in whole pages of the file
  std::uint64_t address_bytes_ = 0;  // those, and what is kept behind them
  PageMode page_mode_ = PageMode::kSmall;
};

}  // namespace cachalot::os
