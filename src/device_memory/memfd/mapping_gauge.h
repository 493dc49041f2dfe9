// How close the process is to the kernel's limit of mappings (vm.max_map_count, 65,530 by default).
//
// At the limit mmap() fails everywhere in the process: malloc() returns null, no thread starts. So
// map() stops before it, with an error. Counting takes 1 us a mapping, so it is not done for every call:
// one call adds two mappings at most, and the next count comes before the calls since the last one can
// have used up what it found. Far from the limit that is never; at the limit every call that is
// refused takes 0.1 s.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace cachalot::device_memory {

class MappingGauge {
 public:
  // @param root  where /proc is looked for; for tests
  explicit MappingGauge(std::string root = "") : root_(std::move(root)) {}

  // Before a call that adds one or two mappings. @errors kNoSpace
  Status admit(const char* call);
  // Of a call that may add some and that must be possible to the last: those that give back.
  void note() { calls_left_.fetch_sub(1, std::memory_order_relaxed); }

  // What the error says when the kernel itself refused.
  Error refused(const char* call) const;

 private:
  // Of the limit, kept free for the rest of the process: 1/16, 4,096 by default.
  static constexpr std::uint64_t kSparePart = 16;
  static constexpr std::uint64_t kMappingsOfACall = 2;  // in the middle of one: that one in three

  static Error full(const char* call, std::uint64_t used, std::uint64_t allowed);
  std::uint64_t limit() const;
  std::uint64_t count() const;

  const std::string root_;
  std::mutex counting_;
  std::atomic<std::int64_t> calls_left_{0};
};

}  // namespace cachalot::device_memory
