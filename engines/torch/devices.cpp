#include "devices.h"

namespace cachalot::torch {

Devices::~Devices() {
  for (std::atomic<DeviceMemory*>& memory : ready_) delete memory.load();
}

DeviceMemory* Devices::opened(int device) const {
  if (device < 0 || device >= kMost) return nullptr;
  return ready_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

Result<DeviceMemory*> Devices::at(int device) {
  DeviceMemory* const memory = opened(device);
  return memory != nullptr ? memory : open(device);
}

Status Devices::check() {
  const std::lock_guard lock(mutex_);
  return load_driver();
}

// With the lock held.
Status Devices::load_driver() {
  if (!settings_) return settings_.error();
  if (!driver_) driver_.emplace(load_());
  return *driver_ ? Status() : Status(driver_->error());
}

Result<DeviceMemory*> Devices::open(int device) {
  if (device < 0 || device >= kMost) {
    return Error::make(Code::kInvalidArgument, "device %d, expected 0 to %d", device, kMost - 1);
  }
  const std::lock_guard lock(mutex_);
  if (DeviceMemory* const memory = opened(device)) return memory;
  const Status loaded = load_driver();
  if (!loaded) {
    if (!is_reported_) report_(loaded.error());
    is_reported_ = true;
    return loaded.error();
  }
  const auto place = static_cast<std::size_t>(device);
  if (failed_[place]) return *failed_[place];
  Result<std::unique_ptr<DeviceMemory>> memory = DeviceMemory::open(**driver_, device, *settings_);
  if (!memory) {
    failed_[place] = memory.error();
    report_(memory.error());
    return memory.error();
  }
  ready_[place].store(memory->get(), std::memory_order_release);
  return memory->release();
}

}  // namespace cachalot::torch
