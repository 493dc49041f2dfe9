// A fiber: a function with a stack of its own that runs until it hands the thread to another one.
//
// A switch is a dozen instructions and no system call, so that a simulator can afford one wherever
// hardware could interleave hosts. AddressSanitizer and ThreadSanitizer are told of every switch.
//
// A fiber may be destroyed in the middle of its work; what its stack holds is then never destroyed.
// @threads  all fibers that switch to each other belong to one thread
#pragma once

#include <cstddef>
#include <memory>

#include "testing/memory/pages.h"

namespace cachalot::memory {

class Fiber {
 public:
  // The thread's own stack, as something to switch back to.
  Fiber();
  // Runs body(argument) when first switched to; body must not return (switch away for good).
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves `from`, the running fiber, and goes on in `to`; returns after a switch back.
  // @param for_good  `from` is done and never runs again
  static void switch_to(Fiber& from, Fiber& to, bool for_good = false);

 private:
  static void enter(Fiber* fiber);
  void prepare();

  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<Pages> stack_;  // null for the thread's own
  bool finished_ = false;

  struct Context;  // where the fiber stands, in the form this machine needs
  std::unique_ptr<Context> context_;
};

}  // namespace cachalot::memory
