// Physical memory as ranges of one file that lives in memory.
//
// 1. What make() returned is there: zeros, every page of it. Touching it is never SIGBUS and never
//    wakes the out-of-memory killer, as far as MemoryGauge can know.
// 2. Offsets grow and are never given twice: what is made in a row lies in a row, so that the kernel
//    can merge its mappings, and a forgotten mapping never shows another handle's bytes.
// 3. page_mode() is what was found, not what was asked for: the first chunk is looked at when the
//    store is opened, and each later one that did not become huge counts.
//
// Around a first page of 4 KiB the kernel makes a huge one in 0.1 ms, around a whole chunk of small
// ones in 2 ms. So a chunk is seeded, collapsed, and the rest filled, in this order.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "device_memory/memfd/huge_pages.h"
#include "device_memory/memfd/memory_gauge.h"
#include "device_memory/memfd/page_source.h"
#include "os/file_descriptor.h"
#include "os/mapping.h"

namespace cachalot::device_memory {

struct PageStoreOptions {
  // None: the first of PageSource that gives huge pages here, else kSmall.
  std::optional<PageSource> source = {};
  std::string tmpfs_directory = {};  // empty: kTmpfs is not tried
  // The reserve of huge pages does not grow: without a source it is taken if so much of it is free.
  std::uint64_t hugetlb_bytes = std::uint64_t{1} << 30;
  std::uint64_t spare_bytes = std::uint64_t{128} << 20;  // of the machine's memory, left to others
};

class PageStore {
 public:
  // The smallest piece, in every source: as on a GPU.
  static constexpr std::uint64_t kChunkBytes = kHugePageBytes;

  // @errors kUnsupported: the source that was named gives no huge pages here; kNotFound,
  //         kPermission, kInvalidArgument: the directory; kNoSpace
  static Result<std::unique_ptr<PageStore>> open(const PageStoreOptions& options);

  // @param  bytes  whole chunks  @return where in the file  @errors kNoSpace
  Result<std::uint64_t> make(std::uint64_t bytes);
  // Gives the memory back to the machine. @errors kIo
  Status destroy(std::uint64_t offset, std::uint64_t bytes);

  int fd() const { return fd_.get(); }
  PageSource source() const { return source_; }
  os::PageMode page_mode() const;
  // "memfd, 2 MiB pages (collapse); 3 of 40 handles in small pages"
  std::string description() const;

 private:
  PageStore(os::FileDescriptor fd, PageSource source, const PageStoreOptions& options);
  static Result<std::unique_ptr<PageStore>> open_source(PageSource source,
                                                        const PageStoreOptions& options);
  Status probe();
  // What make() does once there is memory for it.
  Result<std::uint64_t> make_counted(std::uint64_t bytes);
  Status fill(std::uint64_t offset, std::uint64_t bytes);

  const os::FileDescriptor fd_;
  const PageSource source_;
  const std::string directory_;
  const std::uint64_t file_limit_bytes_;
  const bool collapses_;
  MemoryGauge gauge_;
  std::atomic<std::uint64_t> next_offset_{0};
  std::atomic<std::uint64_t> made_{0};
  std::atomic<std::uint64_t> made_small_{0};  // although huge pages were wanted
};

}  // namespace cachalot::device_memory
