#include "kv/cuda/launch_slots.h"

#include <algorithm>
#include <bit>

namespace cachalot::kv {
namespace {

constexpr std::uint64_t kLeastBytes = 64 << 10;

}  // namespace

LaunchSlots::~LaunchSlots() {
  const CudaDevice::Entered entered(device_);
  for (const auto& slot : free_) free(*slot);
}

Result<std::unique_ptr<LaunchSlot>> LaunchSlots::take(std::uint64_t bytes) {
  std::unique_ptr<LaunchSlot> slot;
  {
    const std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one) {
      if ((*one)->bytes < bytes) continue;
      if (best == free_.end() || (*one)->bytes < (*best)->bytes) best = one;
    }
    if (best != free_.end()) {
      slot = std::move(*best);
      free_.erase(best);
      return slot;
    }
  }
  slot = std::make_unique<LaunchSlot>();
  const std::uint64_t wanted = bytes == 0 ? 0 : std::bit_ceil(std::max(bytes, kLeastBytes));
  if (const Status allocated = allocate(*slot, wanted); !allocated) {
    free(*slot);
    return allocated.error();
  }
  return slot;
}

Status LaunchSlots::allocate(LaunchSlot& slot, std::uint64_t bytes) const {
  const gpu::Driver& driver = device_.driver();
  if (bytes != 0) {
    void* host = nullptr;
    CACHALOT_TRY(
        device_.check(driver.host_allocate(&host, bytes, gpu::kHostPortable), "cuMemHostAlloc"));
    slot.host = static_cast<std::byte*>(host);
    slot.bytes = bytes;
    CACHALOT_TRY(device_.check(driver.memory_allocate(&slot.device, bytes), "cuMemAlloc"));
  }
  return device_.check(
      driver.event_create(&slot.event, gpu::kEventNoTiming | gpu::kEventBlockingSync),
      "cuEventCreate");
}

void LaunchSlots::free(LaunchSlot& slot) const {
  const gpu::Driver& driver = device_.driver();
  if (slot.event != nullptr) driver.event_destroy(slot.event);
  if (slot.device != 0) driver.memory_free(slot.device);
  if (slot.host != nullptr) driver.host_free(slot.host);
  slot = {};
}

void LaunchSlots::give_back(std::unique_ptr<LaunchSlot> slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(slot));
}

// Its memory and its event are abandoned from here on: the device may still read them.
void LaunchSlots::abandon(std::unique_ptr<LaunchSlot>) {}

}  // namespace cachalot::kv
