// While it lives, the calling thread works on one device, whatever it did before, and may call the
// driver although a stream is being captured into a graph.
//
// Programs call from any thread, with another device's context current or none, and expect to find the
// thread as it was. Events and streams belong to a context; memory does not.
//
// @threads belongs to the one that made it
// @cost    three calls of the driver that do not reach the device, five if another context is current
#pragma once

#include <cachalot/result.h>

#include "gpu/driver.h"

namespace cachalot::gpu {

class DeviceScope {
 public:
  DeviceScope(const Driver& driver, Context context) : driver_(driver) {
    Context current = nullptr;
    result_ = driver_.context_get_current(&current);
    if (result_ == kSuccess && current != context) {
      result_ = driver_.context_push(context);
      is_pushed_ = result_ == kSuccess;
    }
    // Frameworks capture in the mode in which no thread may create memory or ask for an event.
    if (result_ == kSuccess) driver_.exchange_capture_mode(&capture_mode_);
  }
  ~DeviceScope() {
    if (result_ != kSuccess) return;
    driver_.exchange_capture_mode(&capture_mode_);
    Context popped = nullptr;
    if (is_pushed_) driver_.context_pop(&popped);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  // @errors kUnsupported: the driver has ended, as the process is about to (detail: kDeinitialized);
  //         others of the driver
  Status status() const {
    if (result_ == kSuccess) return {};
    Error error = driver_error(driver_, result_, "cuCtxPushCurrent");
    if (result_ == kDeinitialized) error.code = Code::kUnsupported;
    return error;
  }
  bool has_ended() const { return result_ == kDeinitialized; }

 private:
  const Driver& driver_;
  int result_ = 0;
  int capture_mode_ = kCaptureRelaxed;
  bool is_pushed_ = false;
};

}  // namespace cachalot::gpu
