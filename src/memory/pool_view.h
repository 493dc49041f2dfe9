// Where one host sees the pool's bytes: mapped devices, or the shadow that a simulated host has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot::memory {

struct PoolView {
  std::vector<std::byte*> bases;  // one per device, 2 MiB-aligned when mapped
  std::uint64_t bytes_each = 0;
};

}  // namespace cachalot::memory
