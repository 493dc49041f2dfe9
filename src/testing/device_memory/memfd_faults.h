// For tests: what happens on an access to memory.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "device_memory/types.h"
#include "os/child.h"

namespace cachalot::device_memory {

inline void store(Address at, int byte) {
  *reinterpret_cast<volatile unsigned char*>(at) = static_cast<unsigned char>(byte);
}
inline int load(Address at) {
  return *reinterpret_cast<volatile unsigned char*>(at);
}

// "nothing", "signal 11 (SEGV)": of a process that reads, or writes, one byte there.
inline std::string fate_of(Address at, bool writes) {
  auto child = os::Child::start([&] {
    std::signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler that prints pages
    std::signal(SIGBUS, SIG_DFL);
    if (writes) store(at, 1);
    return writes ? 0 : load(at) * 0;
  });
  EXPECT_TRUE(child);
  const auto status = child->wait();
  EXPECT_TRUE(status);
  return status->ok() ? "nothing" : status->text();
}
inline std::string fate_of_reading(Address at) {
  return fate_of(at, false);
}
inline std::string fate_of_writing(Address at) {
  return fate_of(at, true);
}

}  // namespace cachalot::device_memory
