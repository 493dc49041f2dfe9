#include "os/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "os/memory.h"

// Younger than the headers of some systems we build on; older kernels answer EINVAL.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace cachalot::os {
namespace {

// Far above any address space, far below where sums of sizes overflow.
constexpr std::uint64_t kMaxMapBytes = std::uint64_t{1} << 60;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// For advice that takes seconds for a large mapping: between two pieces a signal gets its turn.
bool advise_in_pieces(std::byte* data, std::uint64_t bytes, int advice) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{256} << 20;  // whole huge pages
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    if (madvise(data + at, std::min(bytes - at, kPieceBytes), advice) != 0) return false;
  }
  return true;
}

// With MAP_SYNC on a DAX file system, so that what is flushed is also findable after a power loss.
bool map_fixed(void* where, std::uint64_t bytes, const MapSource& source, int protection) {
  const auto offset = static_cast<off_t>(source.offset);
  if (source.pages == PageMode::kDax &&
      mmap(where, bytes, protection, MAP_SHARED_VALIDATE | MAP_SYNC | MAP_FIXED, source.fd,
           offset) != MAP_FAILED) {
    return true;
  }
  return mmap(where, bytes, protection, MAP_SHARED | MAP_FIXED, source.fd, offset) != MAP_FAILED;
}

int protection_of(const MapOptions& options) {
  return options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
}

}  // namespace

std::uint64_t huge_bytes_at(const std::byte* data) {
  const std::unique_ptr<std::FILE, CloseFile> smaps(std::fopen("/proc/self/smaps", "re"));
  if (!smaps) return 0;
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  bool inside = false;
  std::uint64_t total_kib = 0;
  char line[512];
  while (std::fgets(line, sizeof line, smaps.get()) != nullptr) {
    std::uintptr_t from = 0, to = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
      if (inside) break;
      inside = from <= start && start < to;
    }
    std::uint64_t kib = 0;
    if (inside && (std::sscanf(line, "ShmemPmdMapped: %" SCNu64, &kib) == 1 ||
                   std::sscanf(line, "FilePmdMapped: %" SCNu64, &kib) == 1)) {
      total_kib += kib;
    }
  }
  return total_kib * 1024;
}

const char* page_mode_name(PageMode mode) {
  switch (mode) {
    case PageMode::kSmall:
      return "small";
    case PageMode::kMixed:
      return "mixed";
    case PageMode::kTransparentHuge:
      return "transparent_huge";
    case PageMode::kHugetlb:
      return "hugetlb";
    case PageMode::kDax:
      return "dax";
  }
  return "unknown";
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, address_bytes_);
}

void Mapping::use_huge_pages() {
  const std::uint64_t whole_bytes = bytes_ / kMapAlignmentBytes * kMapAlignmentBytes;
  if (whole_bytes == 0) return;
  madvise(data_, whole_bytes, MADV_HUGEPAGE);
  // HUGEPAGE alone does nothing for shared memory under the usual setting "never"; COLLAPSE works
  // there, and in every process anew puts the 2 MiB entries into the page table.
  if (advise_in_pieces(data_, whole_bytes, MADV_COLLAPSE)) {
    page_mode_ = PageMode::kTransparentHuge;
    return;
  }
  const std::uint64_t huge_bytes = huge_bytes_at(data_);
  page_mode_ = huge_bytes >= whole_bytes ? PageMode::kTransparentHuge
               : huge_bytes > 0          ? PageMode::kMixed
                                         : PageMode::kSmall;
}

Status Mapping::populate(const char* path, bool for_writing) {
  const int advice = for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (advise_in_pieces(data_, mapped_bytes_, advice)) return {};
  // EINVAL: a kernel or a kind of memory that cannot; the pages then come when they are touched.
  if (errno == EINVAL || errno == EAGAIN) return {};
  return Error::make(Code::kNoSpace, "%.120s: populating %" PRIu64 " mapped bytes: %s", path,
                     bytes_, std::strerror(errno));
}

Status flush_to_file(std::byte* data, std::uint64_t bytes, const char* path) {
  if (msync(data, bytes, MS_SYNC) == 0) return {};
  if (errno == EINVAL)
    return Error::make(Code::kUnsupported, "%.120s: the device cannot be flushed", path);
  return Error::from_errno(errno, "%.120s: writing %" PRIu64 " bytes back", path, bytes);
}

Status map_at(std::byte* where, const MapSource& source, std::uint64_t bytes,
              const MapOptions& options) {
  if (bytes == 0 || bytes % source.page_bytes != 0 || source.offset % source.page_bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(where) % source.page_bytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: cannot map %" PRIu64 " bytes from offset %" PRIu64
                       " on, expected multiples of its pages of %" PRIu64,
                       source.path, bytes, source.offset, source.page_bytes);
  }
  if (!map_fixed(where, bytes, source, protection_of(options))) {
    return Error::from_errno(errno, "%.120s: mapping %" PRIu64 " bytes", source.path, bytes);
  }
  if (options.dont_fork && madvise(where, bytes, MADV_DONTFORK) != 0) {
    return Error::from_errno(errno, "%.120s: MADV_DONTFORK", source.path);
  }
  // What is in huge pages already comes as such at the first touch; to make some takes too long here.
  if (options.huge_pages && source.pages == PageMode::kSmall) madvise(where, bytes, MADV_HUGEPAGE);
  return {};
}

Result<Mapping> Mapping::map_shared(const MapSource& source, std::uint64_t bytes,
                                    const MapOptions& options) {
  const std::uint64_t alignment = std::max(kMapAlignmentBytes, source.page_bytes);
  if (bytes == 0 || bytes > kMaxMapBytes) {
    return Error::make(Code::kInvalidArgument, "%.120s: cannot map %" PRIu64 " bytes", source.path,
                       bytes);
  }
  const std::uint64_t mapped_bytes =
      (bytes + source.page_bytes - 1) / source.page_bytes * source.page_bytes;
  if (options.address_bytes > kMaxMapBytes) {
    return Error::make(Code::kInvalidArgument, "%.120s: cannot keep %" PRIu64 " bytes of addresses",
                       source.path, options.address_bytes);
  }
  const std::uint64_t address_bytes =
      std::max(mapped_bytes, (options.address_bytes + source.page_bytes - 1) / source.page_bytes *
                                 source.page_bytes);
  // mmap promises no alignment: take addresses for one unit more, and give back what is too much.
  const std::uint64_t reserved_bytes = address_bytes + alignment;
  void* reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    const int os_error = errno;
    const std::uint64_t limit = address_space_limit();
    return Error::from_errno(
        os_error, "%.120s: %" PRIu64 " bytes of addresses%s", source.path, reserved_bytes,
        limit == ~std::uint64_t{0}
            ? ""
            : (", of " + std::to_string(limit) + " for the process (ulimit -v)").c_str());
  }
  auto* const first = static_cast<std::byte*>(reserved);
  const std::uint64_t before =
      (alignment - reinterpret_cast<std::uintptr_t>(first) % alignment) % alignment;
  std::byte* const data = first + before;
  if (!map_fixed(data, mapped_bytes, source, protection_of(options))) {
    const int os_error = errno;
    munmap(reserved, reserved_bytes);
    return Error::from_errno(os_error, "%.120s: mapping %" PRIu64 " bytes", source.path, bytes);
  }
  if (before > 0) munmap(first, before);
  munmap(data + address_bytes, alignment - before);

  Mapping mapping(data, bytes, mapped_bytes, address_bytes, source.pages);
  // Failing here would leave pool memory open to a child's stores, so it is an error.
  if (options.dont_fork && madvise(data, mapped_bytes, MADV_DONTFORK) != 0) {
    return Error::from_errno(errno, "%.120s: MADV_DONTFORK", source.path);
  }
  if (options.huge_pages && source.pages == PageMode::kSmall) mapping.use_huge_pages();
  if (options.populate) CACHALOT_TRY(mapping.populate(source.path, !options.read_only));
  return mapping;
}

}  // namespace cachalot::os
