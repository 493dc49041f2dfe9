#include "vmm_work.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <utility>

#include "measure.h"

// Younger than the headers of some systems we build on.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace cachalot::apps::bench {
namespace {

template <class Call>
Result<double> timed(Call&& call) {
  const std::uint64_t start = now_ns();
  CACHALOT_TRY(call());
  return static_cast<double>(now_ns() - start);
}

double touch_ns(void* data, std::uint64_t bytes) {
  const std::uint64_t start = now_ns();
  if (madvise(data, bytes, MADV_POPULATE_WRITE) != 0) {  // Linux before 5.14
    auto* const pages = static_cast<volatile char*>(data);
    for (std::uint64_t at = 0; at < bytes; at += 4096) pages[at] = 0;
  }
  return static_cast<double>(now_ns() - start);
}

}  // namespace

Stitched::~Stitched() {
  if (is_mapped_) static_cast<void>(unmap(bytes_));
  if (owns_handles_) {
    for (const device_memory::Handle handle : handles_) static_cast<void>(backend_.release(handle));
  }
  if (range_ != 0) static_cast<void>(backend_.free_range(range_));
}

Result<double> Stitched::reserve() {
  return timed([&]() -> Status {
    CACHALOT_TRY_ASSIGN(range_, backend_.reserve(bytes_));
    return {};
  });
}

Result<double> Stitched::create() {
  handles_.reserve(bytes_ / handle_bytes_);
  owns_handles_ = true;
  return timed([&]() -> Status {
    for (std::uint64_t at = 0; at < bytes_; at += handle_bytes_) {
      CACHALOT_TRY_ASSIGN(const device_memory::Handle handle, backend_.create(handle_bytes_));
      handles_.push_back(handle);
    }
    return {};
  });
}

void Stitched::use(std::span<const device_memory::Handle> handles) {
  handles_.assign(handles.begin(), handles.end());
}

Result<double> Stitched::map() {
  return timed([&]() -> Status {
    device_memory::Address at = range_;
    for (const device_memory::Handle handle : handles_) {
      CACHALOT_TRY(backend_.map(at, handle));
      at += handle_bytes_;
    }
    is_mapped_ = true;
    return {};
  });
}

Result<double> Stitched::set_access(std::uint64_t call_bytes) {
  return timed([&]() -> Status {
    for (std::uint64_t at = 0; at < bytes_; at += call_bytes) {
      CACHALOT_TRY(backend_.set_access(range_ + at, call_bytes, device_memory::Access::kReadWrite));
    }
    return {};
  });
}

Result<double> Stitched::unmap(std::uint64_t call_bytes) {
  return timed([&]() -> Status {
    for (std::uint64_t at = 0; at < bytes_; at += call_bytes) {
      CACHALOT_TRY(backend_.unmap(range_ + at, call_bytes));
    }
    is_mapped_ = false;
    return {};
  });
}

Result<double> Stitched::release() {
  if (is_mapped_) CACHALOT_TRY(unmap(bytes_));
  const std::vector<device_memory::Handle> handles = std::exchange(handles_, {});
  owns_handles_ = false;
  return timed([&]() -> Status {
    for (const device_memory::Handle handle : handles) CACHALOT_TRY(backend_.release(handle));
    return {};
  });
}

double Stitched::touch() const {
  return touch_ns(reinterpret_cast<void*>(range_), bytes_);
}

Result<double> take_from(device_memory::HandlePool& pool, std::uint64_t handles) {
  pool.wait_until_filled();
  std::vector<device_memory::Handle> taken;
  const std::uint64_t start = now_ns();
  for (std::uint64_t i = 0; i < handles; ++i) {
    CACHALOT_TRY_ASSIGN(const device_memory::Handle handle, pool.take());
    taken.push_back(handle);
  }
  const auto ns = static_cast<double>(now_ns() - start);
  for (const device_memory::Handle handle : taken) CACHALOT_TRY(pool.give_back(handle));
  return ns;
}

Result<PlainMapping> plain_mapping(std::uint64_t bytes, bool huge_pages) {
  // Huge pages fit only where addresses are whole ones.
  constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;
  PlainMapping times;
  const std::uint64_t start = now_ns();
  void* const data = mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  times.map_ns = static_cast<double>(now_ns() - start);
  if (data == MAP_FAILED) {
    return Error::from_errno(errno, "a plain mapping of %" PRIu64 " bytes", bytes);
  }
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  void* const aligned =
      reinterpret_cast<void*>((first + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
  madvise(data, bytes + kHugePageBytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  times.touch_ns = touch_ns(aligned, bytes);
  munmap(data, bytes + kHugePageBytes);
  return times;
}

}  // namespace cachalot::apps::bench
