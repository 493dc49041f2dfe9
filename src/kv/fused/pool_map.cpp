#include "kv/fused/pool_map.h"

#include <algorithm>
#include <cinttypes>
#include <mutex>

namespace cachalot::kv {

Status PoolMap::add(const std::byte* at, std::uint64_t bytes, std::uint64_t device) {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  const auto next = ranges_.upper_bound(first + bytes - 1);
  if (bytes != 0 && next != ranges_.begin()) {
    const auto& [start, range] = *std::prev(next);
    if (start + range.bytes > first) {
      return Error::make(Code::kInvalidArgument,
                         "pool memory: %" PRIu64 " bytes at %p overlap what is registered", bytes,
                         static_cast<const void*>(at));
    }
  }
  ranges_[first] = {bytes, device};
  return {};
}

bool PoolMap::remove(const std::byte* at) {
  const std::lock_guard lock(mutex_);
  return ranges_.erase(reinterpret_cast<std::uintptr_t>(at)) != 0;
}

namespace {

Error not_registered(const memory::Extent& extent) {
  return Error::make(Code::kInvalidArgument,
                     "copy: an extent of %" PRIu64
                     " bytes at %p, expected pool memory that was registered with the device",
                     extent.bytes, static_cast<void*>(extent.at));
}

}  // namespace

Result<PoolPart> PoolMap::find_part(const memory::Extent& extent) const {
  const std::shared_lock lock(mutex_);
  const auto first = reinterpret_cast<std::uintptr_t>(extent.at);
  const auto next = ranges_.upper_bound(first);
  if (next == ranges_.begin()) return not_registered(extent);
  const auto& [start, range] = *std::prev(next);
  const std::uint64_t skipped = first - start;
  if (skipped >= range.bytes) return not_registered(extent);
  return PoolPart{range.device + skipped, std::min(extent.bytes, range.bytes - skipped)};
}

Result<std::uint64_t> PoolMap::find(const memory::Extent& extent) const {
  CACHALOT_TRY_ASSIGN(const PoolPart part, find_part(extent));
  if (part.bytes != extent.bytes) return not_registered(extent);
  return part.at;
}

}  // namespace cachalot::kv
