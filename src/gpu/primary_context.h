// A device's primary context, which a process has in common with its framework, and the calling thread in it.
#pragma once

#include <cachalot/result.h>

#include <memory>

#include "gpu/driver.h"

namespace cachalot::gpu {

// Retained while it lives. @threads any
class PrimaryContext {
 public:
  static Result<std::shared_ptr<const PrimaryContext>> retain(const Driver& driver, int ordinal);
  ~PrimaryContext() { driver_.primary_context_release(ordinal_); }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const Driver& driver() const { return driver_; }

 private:
  friend class ContextScope;
  PrimaryContext(const Driver& driver, int ordinal, Context context)
      : driver_(driver), ordinal_(ordinal), context_(context) {}

  const Driver driver_;
  const int ordinal_;
  const Context context_;
};

// While it lives, the calling thread is in this context; afterwards in the one it was in. It may then do what
// a program that captures a stream into a graph forbids its threads otherwise.
class ContextScope {
 public:
  // A thread that had no context.
  enum class Leave {
    kInContext,  // keeps this one, as with the runtime's own calls
    kOutside,    // for the context may be gone afterwards
  };
  explicit ContextScope(const PrimaryContext& context, Leave leave = Leave::kInContext);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  // @errors kIo: the driver refused
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  Context before_ = nullptr;
  const Leave leave_;
  bool changed_ = false;
  int capture_mode_ = kCaptureRelaxed;
  Status status_;
};

}  // namespace cachalot::gpu
