#include "device_memory/memfd/memfd_backend.h"

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>

namespace cachalot::device_memory {
namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(Address at) {
  return reinterpret_cast<void*>(at);
}

int protection(Access access) {
  switch (access) {
    case Access::kNone:
      return PROT_NONE;
    case Access::kRead:
      return PROT_READ;
    case Access::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

}  // namespace

Result<std::unique_ptr<MemfdBackend>> MemfdBackend::open(const PageStoreOptions& options) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<PageStore> pages, PageStore::open(options));
  return std::unique_ptr<MemfdBackend>(new MemfdBackend(std::move(pages)));
}

MemfdBackend::MemfdBackend(std::unique_ptr<PageStore> pages)
    : Backend(PageStore::kChunkBytes), pages_(std::move(pages)) {}

MemfdBackend::~MemfdBackend() {
  undo_all();
}

// ENOMEM says that there are too many mappings, here: no call of this file takes memory.
Error MemfdBackend::failed(const char* call, Address at, std::uint64_t bytes) const {
  if (errno == ENOMEM) return mappings_.refused(call);
  return Error::from_errno(errno, "%s: %" PRIu64 " bytes at 0x%" PRIx64, call, bytes, at);
}

// mmap promises no alignment: takes addresses for a chunk more, and gives back what is too much.
Result<Address> MemfdBackend::do_reserve(std::uint64_t bytes) {
  CACHALOT_TRY(mappings_.admit("reserve"));
  const std::uint64_t alignment = granularity_bytes(), taken = bytes + alignment;
  void* const start = mmap(nullptr, taken, PROT_NONE, kNothing, -1, 0);
  if (start == MAP_FAILED) {
    return Error::from_errno(errno, "reserve: %" PRIu64 " bytes of addresses", bytes);
  }
  const auto first = reinterpret_cast<Address>(start);
  const Address range = (first + alignment - 1) / alignment * alignment;
  const Address end = range + bytes;
  if (range > first) munmap(start, range - first);
  munmap(pointer(end), first + taken - end);
  return range;
}

Status MemfdBackend::do_free(Address range, std::uint64_t bytes) {
  mappings_.note();
  if (munmap(pointer(range), bytes) == 0) return {};
  return failed("free_range", range, bytes);
}

Result<std::uint64_t> MemfdBackend::do_create(std::uint64_t bytes) {
  return pages_->make(bytes);
}

Status MemfdBackend::do_release(const Memory& memory) {
  return pages_->destroy(memory.native, memory.bytes);
}

Status MemfdBackend::do_map(Address at, const Memory& memory) {
  CACHALOT_TRY(mappings_.admit("map"));
  if (mmap(pointer(at), memory.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
           pages_->fd(), static_cast<off_t>(memory.native)) != MAP_FAILED) {
    return {};
  }
  return failed("map", at, memory.bytes);
}

Status MemfdBackend::do_set_access(const Span& span, Access access) {
  mappings_.note();
  if (mprotect(pointer(span.at), span.bytes, protection(access)) == 0) return {};
  return failed("set_access", span.at, span.bytes);
}

Status MemfdBackend::do_unmap(const Span& span) {
  mappings_.note();
  if (mmap(pointer(span.at), span.bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0) != MAP_FAILED) {
    return {};
  }
  return failed("unmap", span.at, span.bytes);
}

}  // namespace cachalot::device_memory
