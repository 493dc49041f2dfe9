// Sleeping on a word of shared memory until another process, of the same machine, wakes it.
//
// The word is in a shared mapping; waiter and waker may map it at different addresses.
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::os {

enum class WaitEnd {
  kWoken,       // by a wake, or for no reason: look at the word again
  kChanged,     // the word was not `expected`: did not sleep
  kTimedOut,    // not woken in time
  kUnsupported  // this memory cannot be waited on: sleep instead
};

inline constexpr std::uint64_t kNoTimeout = ~std::uint64_t{0};

// Sleeps while `word` is `expected`. @cost about 12 us from a wake to running
WaitEnd futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                   std::uint64_t timeout_ns = kNoTimeout);

// Wakes up to `count` sleepers; returns how many. Change the word first.
std::uint32_t futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t count = ~0u >> 1);

}  // namespace cachalot::os
