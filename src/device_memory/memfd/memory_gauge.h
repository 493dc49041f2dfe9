// Whether the machine has so much memory left. Linux gives out what it does not have and kills
// a process later, so this is asked before every handle is made.
//
// 1. An answer of the system (180 us: a dozen small files) is used for an eighth of what it found
//    and for 100 ms, then it is asked again.
// 2. What others are making at the moment counts as taken.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "os/memory.h"

namespace cachalot::device_memory {

class MemoryGauge {
 public:
  using Look = std::function<os::AvailableMemory()>;

  // @param spare_bytes  left to others: page tables, processes that grow between two looks
  explicit MemoryGauge(
      std::uint64_t spare_bytes, Look look = [] { return os::available_memory(); })
      : spare_bytes_(spare_bytes), look_(std::move(look)) {}

  // Before so much is allocated. @errors kNoSpace
  Status begin(std::uint64_t bytes);
  // After it was, or failed to be.
  void end(std::uint64_t bytes);

 private:
  std::uint64_t spare_bytes_;
  Look look_;
  std::mutex mutex_;                 // of all below
  std::uint64_t allowed_bytes_ = 0;  // without another look
  std::uint64_t making_bytes_ = 0;   // between begin() and end()
  std::uint64_t looked_ns_ = 0;
};

}  // namespace cachalot::device_memory
