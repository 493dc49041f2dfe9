#include "kv/cuda/pending_copy.h"

namespace cachalot::kv {

PendingCopy::~PendingCopy() {
  static_cast<void>(wait());
}

Result<bool> PendingCopy::is_done() {
  if (slot_ == nullptr) return true;
  const CudaDevice::Entered entered(*work_.device);
  CACHALOT_TRY(entered.status());
  const int result = work_.device->driver().event_query(slot_->event);
  if (result == cuda::kNotReady) return false;
  if (const Status asked = work_.device->check(result, "cuEventQuery"); !asked)
    return error_of_wait(asked.error());
  return true;
}

Status PendingCopy::wait() {
  if (slot_ == nullptr) return outcome_;
  {
    const CudaDevice::Entered entered(*work_.device);
    outcome_ = entered.status();
    if (outcome_) {
      const int result = work_.device->driver().event_synchronize(slot_->event);
      outcome_ = work_.device->check(result, "cuEventSynchronize of a copy");
    }
  }
  if (!outcome_) {
    outcome_ = error_of_wait(outcome_.error());
    work_.slots->abandon(std::move(slot_));
    return outcome_;
  }
  work_.slots->give_back(std::move(slot_));
  if (work_.direction == Direction::kGather && work_.domain != nullptr) {
    work_.host.after_gather(*work_.domain);
  }
  work_.host.hash();
  return outcome_;
}

}  // namespace cachalot::kv
