#include "gpu/primary_context.h"

namespace cachalot::gpu {

Result<std::shared_ptr<const PrimaryContext>> PrimaryContext::retain(const Driver& driver,
                                                                     int ordinal) {
  Context context = nullptr;
  CACHALOT_TRY(check_call(driver, driver.primary_context_retain(&context, ordinal),
                          "cuDevicePrimaryCtxRetain"));
  return std::shared_ptr<const PrimaryContext>(new PrimaryContext(driver, ordinal, context));
}

ContextScope::ContextScope(const PrimaryContext& context, Leave leave)
    : driver_(context.driver_), leave_(leave) {
  status_ = check_call(driver_, driver_.context_get_current(&before_), "cuCtxGetCurrent");
  if (status_ && before_ != context.context_) {
    status_ = check_call(driver_, driver_.context_set_current(context.context_), "cuCtxSetCurrent");
    changed_ = status_.ok();
  }
  if (status_) driver_.exchange_capture_mode(&capture_mode_);
}

ContextScope::~ContextScope() {
  if (status_) driver_.exchange_capture_mode(&capture_mode_);
  if (changed_ && (before_ != nullptr || leave_ == Leave::kOutside)) {
    driver_.context_set_current(before_);
  }
}

}  // namespace cachalot::gpu
