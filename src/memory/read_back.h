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

#include <cstddef>
#include <cstdint>

namespace cachalot::memory {

class ReadBack {
 public:
  ReadBack();

  // Remembers a write of this domain. @return a line to be read back now, or null
  const void* note(const void* to, std::size_t bytes) const;

  // Takes the next of this thread's lines off the list. @return null when there is none
  const void* next() const;

 private:
  std::uint64_t owner_;  // never reused: what a dead domain left on a list is never touched
};

}  // namespace cachalot::memory
