// The devices of a process, each opened when it is first asked for: a rank that uses one of eight must not
// make itself known on the other seven.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "device_memory.h"

namespace cachalot::torch {

class Devices {
 public:
  static constexpr int kMost = 64;
  using LoadDriver = std::function<Result<gpu::Driver>()>;
  using Report = std::function<void(const Error&)>;

  // @param  report  gets each thing that stands in the way of a device, once
  Devices(LoadDriver load, Result<Settings> settings, Report report)
      : load_(std::move(load)), settings_(std::move(settings)), report_(std::move(report)) {}
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // Whether there are settings and a driver. Opens no device. @errors of either
  Status check();
  // @errors why it could not be opened the first time; kInvalidArgument: no such number
  // @cost   a load, after the first time
  Result<DeviceMemory*> at(int device);
  // Null: not requested yet, or it could not be opened.
  DeviceMemory* opened(int device) const;

 private:
  Status load_driver();
  Result<DeviceMemory*> open(int device);

  const LoadDriver load_;
  const Result<Settings> settings_;
  const Report report_;
  std::array<std::atomic<DeviceMemory*>, kMost> ready_{};  // set once, by open(); read by opened()
  std::mutex mutex_;                                       // of all below
  std::optional<Result<gpu::Driver>> driver_;
  std::array<std::optional<Error>, kMost> failed_;
  bool is_reported_ = false;  // what is wrong with all devices
};

}  // namespace cachalot::torch
