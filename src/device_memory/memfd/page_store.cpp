#include "device_memory/memfd/page_store.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <limits>

namespace cachalot::device_memory {
namespace {

using os::kSmallPageBytes;

bool wants_huge_pages(PageSource source) {
  return source == PageSource::kTmpfs || source == PageSource::kCollapse;
}

// Past RLIMIT_FSIZE the kernel does not only refuse, it sends a signal that kills.
std::uint64_t file_limit_bytes() {
  const std::uint64_t most = std::numeric_limits<off_t>::max();
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return most;
  return std::min<std::uint64_t>(limit.rlim_cur, most);
}

bool allocate(int fd, std::uint64_t offset, std::uint64_t bytes) {
  while (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// In pieces: tmpfs takes back all that a call did when a signal comes, so a call must be short.
bool allocate_all(int fd, std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kPieceBytes = 8 * kHugePageBytes;
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    if (!allocate(fd, offset + at, std::min(kPieceBytes, bytes - at))) return false;
  }
  return true;
}

}  // namespace

PageStore::PageStore(os::FileDescriptor fd, PageSource source, const PageStoreOptions& options)
    : fd_(std::move(fd)),
      source_(source),
      directory_(options.tmpfs_directory),
      file_limit_bytes_(file_limit_bytes()),
      collapses_(wants_huge_pages(source) && kernel_collapses()),
      gauge_(options.spare_bytes) {}

Result<std::unique_ptr<PageStore>> PageStore::open_source(PageSource source,
                                                          const PageStoreOptions& options) {
  CACHALOT_TRY_ASSIGN(os::FileDescriptor fd, open_page_file(source, options.tmpfs_directory));
  std::unique_ptr<PageStore> store(new PageStore(std::move(fd), source, options));
  CACHALOT_TRY(store->probe());
  return store;
}

Result<std::unique_ptr<PageStore>> PageStore::open(const PageStoreOptions& options) {
  if (options.source) return open_source(*options.source, options);
  if (free_hugetlb_bytes() >= options.hugetlb_bytes) {
    auto store = open_source(PageSource::kHugetlb, options);
    if (store) return store;
  }
  if (!options.tmpfs_directory.empty()) {
    auto store = open_source(PageSource::kTmpfs, options);
    // The user named this directory, so a failure to use it is an error.
    if (store || store.error().code != Code::kUnsupported) return store;
  }
  auto store = open_source(PageSource::kCollapse, options);
  return store ? std::move(store) : open_source(PageSource::kSmall, options);
}

// Makes one chunk, to see whether its page is huge.
Status PageStore::probe() {
  CACHALOT_TRY_ASSIGN(const std::uint64_t offset, make(kChunkBytes));
  const bool huge = !wants_huge_pages(source_) || is_huge(fd(), offset);
  CACHALOT_TRY(destroy(offset, kChunkBytes));
  made_ = made_small_ = 0;
  if (huge) return {};
  return Error::make(
      Code::kUnsupported, "page source %s: a chunk of 2 MiB came in small pages; expected %s",
      page_source_name(source_),
      source_ == PageSource::kTmpfs ? "a tmpfs mounted with huge=always or within_size"
                                    : "Linux 6.1 and memory in pieces of 2 MiB");
}

Result<std::uint64_t> PageStore::make(std::uint64_t bytes) {
  if (source_ == PageSource::kHugetlb) return make_counted(bytes);  // not in what is available
  CACHALOT_TRY(gauge_.begin(bytes));
  auto made = make_counted(bytes);
  gauge_.end(bytes);
  return made;
}

Result<std::uint64_t> PageStore::make_counted(std::uint64_t bytes) {
  std::uint64_t offset = next_offset_.load(std::memory_order_relaxed);
  do {
    if (bytes > file_limit_bytes_ - std::min(offset, file_limit_bytes_)) {
      return Error::make(Code::kNoSpace,
                         "create: %" PRIu64 " bytes at offset %" PRIu64
                         " of the file; expected to stay within its limit of %" PRIu64,
                         bytes, offset, file_limit_bytes_);
    }
  } while (!next_offset_.compare_exchange_weak(offset, offset + bytes, std::memory_order_relaxed));
  CACHALOT_TRY(fill(offset, bytes));
  made_.fetch_add(1, std::memory_order_relaxed);
  return offset;
}

Status PageStore::fill(std::uint64_t offset, std::uint64_t bytes) {
  bool ok = true, huge = true;
  if (collapses_) {
    for (std::uint64_t at = 0; at < bytes && ok; at += kChunkBytes) {
      ok = allocate(fd(), offset + at, kSmallPageBytes);
    }
    huge = ok && collapse(fd(), offset, bytes);
  }
  ok = ok && allocate_all(fd(), offset, bytes);
  if (ok) {
    if (!huge) made_small_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  const Error error = Error::from_errno(errno, "create: %" PRIu64 " bytes from page source %s",
                                        bytes, page_source_name(source_));
  // The allocated part must be released, because its offset is lost. If that fails, too, the first failure
  // is the one that matters.
  static_cast<void>(destroy(offset, bytes));
  return error;
}

Status PageStore::destroy(std::uint64_t offset, std::uint64_t bytes) {
  while (fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    return Error::from_errno(errno, "release: %" PRIu64 " bytes at offset %" PRIu64 " of the file",
                             bytes, offset);
  }
  return {};
}

os::PageMode PageStore::page_mode() const {
  if (source_ == PageSource::kHugetlb) return os::PageMode::kHugetlb;
  if (source_ == PageSource::kSmall) return os::PageMode::kSmall;
  return made_small_.load(std::memory_order_relaxed) == 0 ? os::PageMode::kTransparentHuge
                                                          : os::PageMode::kMixed;
}

std::string PageStore::description() const {
  std::string text = source_ == PageSource::kTmpfs ? "file in " + directory_ : "memfd";
  text += source_ == PageSource::kSmall ? ", 4 KiB pages (" : ", 2 MiB pages (";
  text += page_source_name(source_);
  text += ")";
  const std::uint64_t small = made_small_.load(std::memory_order_relaxed);
  if (small == 0) return text;
  return text + "; " + std::to_string(small) + " of " +
         std::to_string(made_.load(std::memory_order_relaxed)) + " handles in small pages";
}

}  // namespace cachalot::device_memory
