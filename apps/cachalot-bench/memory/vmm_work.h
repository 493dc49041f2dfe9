// Steps of `bench vmm`: each does one thing to a backend and says how long it took.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device_memory/backend.h"
#include "device_memory/handle_pool.h"

namespace cachalot::apps::bench {

// Nanoseconds.
struct BuildTimes {
  double reserve = 0, create = 0, map = 0, set_access = 0;
  double total() const { return reserve + create + map + set_access; }
};

// Memory at one place, from handles of one size. Gives everything back when it goes.
class Stitched {
 public:
  Stitched(device_memory::Backend& backend, std::uint64_t bytes, std::uint64_t handle_bytes)
      : backend_(backend), bytes_(bytes), handle_bytes_(handle_bytes) {}
  ~Stitched();
  Stitched(const Stitched&) = delete;
  Stitched& operator=(const Stitched&) = delete;

  // All of these: nanoseconds.
  Result<double> reserve();
  Result<double> create();                                   // handles of its own
  void use(std::span<const device_memory::Handle> handles);  // or another owner's
  Result<double> map();
  Result<double> set_access(std::uint64_t call_bytes);  // so many bytes a call
  Result<double> unmap(std::uint64_t call_bytes);
  Result<double> release();  // of its own handles, after all mappings of them have gone
  // Makes all page-table entries, and the pages that are not there yet. CPU memory only.
  double touch() const;

  std::span<const device_memory::Handle> handles() const { return handles_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  device_memory::Backend& backend_;
  const std::uint64_t bytes_, handle_bytes_;
  device_memory::Address range_ = 0;
  std::vector<device_memory::Handle> handles_;
  bool owns_handles_ = false, is_mapped_ = false;
};

// So many handles of a pool that is full, one after the other; then they go back. Nanoseconds for all.
Result<double> take_from(device_memory::HandlePool& pool, std::uint64_t handles);

// One anonymous mapping, by one mmap, and with all its pages.
struct PlainMapping {
  double map_ns = 0;
  double touch_ns = 0;
};
Result<PlainMapping> plain_mapping(std::uint64_t bytes, bool huge_pages);

}  // namespace cachalot::apps::bench
