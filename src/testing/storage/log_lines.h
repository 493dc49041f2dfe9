// The lines of the log from its making to all(), for tests of what is told and how often.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"

namespace cachalot::storage {

class LogLines {
 public:
  LogLines() {
    base::set_log_level(base::LogLevel::kWarn);
    ::testing::internal::CaptureStderr();
  }
  ~LogLines() { (void)all(); }
  // Ends it.
  const std::vector<std::string>& all() {
    if (is_over_) return lines_;
    is_over_ = true;
    base::set_log_level(base::LogLevel::kOff);
    std::istringstream text(::testing::internal::GetCapturedStderr());
    for (std::string line; std::getline(text, line);) lines_.push_back(line);
    return lines_;
  }

 private:
  bool is_over_ = false;
  std::vector<std::string> lines_;
};

}  // namespace cachalot::storage
