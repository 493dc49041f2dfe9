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
    const auto large = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& one) { return one->bytes >= bytes; });
    const auto taken = large != free_.end() || free_.empty() ? large : free_.end() - 1;
    if (taken != free_.end()) {
      slot = std::move(*taken);
      free_.erase(taken);
    }
  }
  if (slot != nullptr && slot->bytes >= bytes) return slot;
  if (slot != nullptr) free(*slot);
  slot = std::make_unique<LaunchSlot>();
  if (const Status allocated = allocate(*slot, std::bit_ceil(std::max(bytes, kLeastBytes)));
      !allocated) {
    free(*slot);
    return allocated.error();
  }
  return slot;
}

Status LaunchSlots::allocate(LaunchSlot& slot, std::uint64_t bytes) const {
  const cuda::Driver& driver = device_.driver();
  void* host = nullptr;
  CACHALOT_TRY(
      device_.check(driver.host_allocate(&host, bytes, cuda::kHostPortable), "cuMemHostAlloc"));
  slot.host = static_cast<std::byte*>(host);
  slot.bytes = bytes;
  CACHALOT_TRY(device_.check(driver.memory_allocate(&slot.device, bytes), "cuMemAlloc"));
  return device_.check(
      driver.event_create(&slot.event, cuda::kEventNoTiming | cuda::kEventBlockingSync),
      "cuEventCreate");
}

void LaunchSlots::free(LaunchSlot& slot) const {
  const cuda::Driver& driver = device_.driver();
  if (slot.event != nullptr) driver.event_destroy(slot.event);
  if (slot.device != 0) driver.memory_free(slot.device);
  if (slot.host != nullptr) driver.host_free(slot.host);
  slot = {};
}

void LaunchSlots::give_back(std::unique_ptr<LaunchSlot> slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(slot));
}

// Its memory and its event are nobody's from here on: the device may still read it.
void LaunchSlots::abandon(std::unique_ptr<LaunchSlot>) {}

}  // namespace cachalot::kv
