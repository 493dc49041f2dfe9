// One works on a vTensor at a time, and while it does holds no lock.
#pragma once

#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {

class VTensorSet::Turn {
 public:
  // Waits until no other thread has it.
  Turn(VTensorSet& set, VTensor& vtensor) : set_(set), vtensor_(vtensor) {
    std::unique_lock lock(set.mutex_);
    set.turn_over_.wait(lock, [&] { return !vtensor.busy_; });
    vtensor.busy_ = true;
  }
  struct Taken {};  // busy_ was set with the lock held
  Turn(VTensorSet& set, VTensor& vtensor, Taken) : set_(set), vtensor_(vtensor) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  ~Turn() {
    vtensor_.set_ready();
    {
      const std::lock_guard lock(set_.mutex_);
      vtensor_.busy_ = false;
    }
    set_.turn_over_.notify_all();
    set_.work_.notify_one();  // it may be queued
  }

 private:
  VTensorSet& set_;
  VTensor& vtensor_;
};

}  // namespace cachalot::vtensor
