// What a thread has written and not yet seen come back from the device: for complete() on platforms
// where a fence alone is not believed.
//
// A read behind a write to the same line cannot overtake it, so a line that was flushed and read
// again has reached its device, and with it what that thread stored there before. Which device an
// address is on is not known here, but a stripe of 2 MiB is on one: the last line of each is kept.
// The list is short (32 lines); what does not fit is read back at once.
//
// @threads  every thread has a list of its own
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/interleave.h"

namespace cachalot::memory {

class ReadBack {
 public:
  ReadBack();

  // Remembers a write of this domain, inside one stripe. @return a line to be read back now, or null
  const void* note(const void* to, std::size_t bytes) const;

  // The same of a write of any length: in a pool that has grown a block may lie on two devices, one behind the other.
  // Calls read_now(line) for each line that is to be read back now.
  template <class F>
  void note_stripes(const void* to, std::size_t bytes, F&& read_now) const {
    for (const auto* at = static_cast<const std::byte*>(to); bytes != 0;) {
      const std::size_t left = kStripeBytes - reinterpret_cast<std::uintptr_t>(at) % kStripeBytes;
      const std::size_t here = std::min(bytes, left);
      if (const void* const line = note(at, here); line != nullptr) read_now(line);
      at += here;
      bytes -= here;
    }
  }

  // Takes the next of this thread's lines off the list. @return null when there is none
  const void* next() const;

 private:
  std::uint64_t owner_;  // never reused: what a dead domain left on a list is never touched
};

}  // namespace cachalot::memory
