// CPU memory as a device: physical memory is a range of a file (PageStore), an address range is a
// mapping without access, and map() puts the file's range over it.
//
//   reserve     mmap, no access, no memory            unmap       the same over the span, one call
//   map         mmap of the file, still no access     create      pages of the file, all of them
//   set_access  mprotect, one call a span             release     a hole in the file
//
// Rule 4 is the processor's here: touching memory without the access ends in SIGSEGV.
//
// 1. Neighbours made in a row become one mapping of the kernel's. Where they do not, the kernel's limit
//    of mappings (MappingGauge) ends it with an error: 61,000 chunks, 120 GiB.
// 2. A forked child shares the memory, as it does with every shared mapping.
//
// @cost  2 MiB pages: create 0.1 ms, map 3 us, the first touch of a mapping 7 us; 4 KiB pages: create
//        0.6 ms, map 3 us, the first touch 0.6 ms
#pragma once

#include <memory>
#include <string>

#include "device_memory/backend.h"
#include "device_memory/memfd/mapping_gauge.h"
#include "device_memory/memfd/page_store.h"

namespace cachalot::device_memory {

class MemfdBackend final : public Backend {
 public:
  // @errors as PageStore::open
  static Result<std::unique_ptr<MemfdBackend>> open(const PageStoreOptions& options = {});
  ~MemfdBackend() override;

  const char* name() const override { return "memfd"; }
  std::string description() const override { return pages_->description(); }
  PageSource page_source() const { return pages_->source(); }
  // What is really there; benchmarks print it.
  os::PageMode page_mode() const { return pages_->page_mode(); }

 private:
  explicit MemfdBackend(std::unique_ptr<PageStore> pages);

  Result<Address> do_reserve(std::uint64_t bytes) override;
  Status do_free(Address range, std::uint64_t bytes) override;
  Result<std::uint64_t> do_create(std::uint64_t bytes) override;
  Status do_release(const Memory& memory) override;
  Status do_map(Address at, const Memory& memory) override;
  Status do_set_access(const Span& span, Access access) override;
  Status do_unmap(const Span& span) override;

  Error failed(const char* call, Address at, std::uint64_t bytes) const;

  const std::unique_ptr<PageStore> pages_;
  MappingGauge mappings_;
};

}  // namespace cachalot::device_memory
