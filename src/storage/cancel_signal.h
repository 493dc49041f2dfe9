// Ends the calls of a backend that wait for a server: raised once, and never taken back.
//
// It outlives the backend, so that a thread which raises it need not know whether the backend is still there.
//
// @threads any
#pragma once

#include <sys/eventfd.h>

#include <atomic>

#include "os/file_descriptor.h"

namespace cachalot::storage {

class CancelSignal {
 public:
  void raise() {
    is_raised_.store(true, std::memory_order_release);  // pairs with is_raised()
    if (fd_) (void)::eventfd_write(fd_.get(), 1);
  }
  bool is_raised() const { return is_raised_.load(std::memory_order_acquire); }
  // Readable once it is raised; -1: this process has no descriptor left, and calls end at their deadlines.
  int fd() const { return fd_.get(); }

 private:
  std::atomic<bool> is_raised_{false};
  os::FileDescriptor fd_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

}  // namespace cachalot::storage
