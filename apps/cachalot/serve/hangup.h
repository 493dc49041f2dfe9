// SIGHUP to a keeper with a flag file: read again, as a daemon's configuration.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "command.h"

namespace cachalot::apps {

// While this exists, SIGHUP calls a function on a thread of its own: a file may lie on a disk that hangs, and the keeper's
// thread must not wait. One at a time.
class OnHangup {
 public:
  explicit OnHangup(std::function<void()> call);
  ~OnHangup();
  OnHangup(const OnHangup&) = delete;
  OnHangup& operator=(const OnHangup&) = delete;

 private:
  std::jthread thread_;
};

// Flags, without --, whose values differ between two readings of a command line and its flag file.
std::vector<std::string> changed_flags(const Command& before, const Command& now);

}  // namespace cachalot::apps
