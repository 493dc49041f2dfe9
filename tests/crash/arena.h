// What the processes of the crash harness share beside the pool: what they do, what they have seen,
// and where the next one is to die.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fail_point.h"

namespace cachalot::crash {

inline constexpr std::uint32_t kClients = 4;
inline constexpr std::uint32_t kKeepers = 2;  // one that rules, and one that sleeps or succeeds
inline constexpr std::uint32_t kActors = kClients + kKeepers;

enum class Action : std::uint32_t { kNone, kKill, kStop };

// The state of one actor. Written by that actor, except what the comments say.
struct Desk {
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> verified_bytes{0};
  std::atomic<std::uint64_t> hits{0};
  std::atomic<std::uint64_t> reattachments{0};
  std::atomic<std::uint64_t> longest_read_gap_ns{0};   // of a client: between two reads that ended
  std::atomic<std::uint64_t> longest_store_gap_ns{0};  // … between two puts that succeeded
  std::atomic<std::uint32_t> is_ready{0};              // a keeper that rules
  std::atomic<std::uint32_t> must_end{0};              // by the injector
  // The order to die, by the injector: at the `countdown`-th time at `point`.
  std::atomic<std::uint32_t> point{0};
  std::atomic<std::uint32_t> countdown{0};
  std::atomic<std::uint32_t> action{0};
  std::atomic<std::uint32_t> reached{0};
};

struct Arena {
  Desk desks[kActors];
  std::atomic<std::uint64_t> faults{0};
  char first_fault[256] = {};

  // Counts a fault and keeps the words of the first.
  void fault(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

// Shared by this process and all that it will fork. Never freed.
Arena* make_arena();

// Makes this process die where its desk says.
void obey(Desk& desk);

}  // namespace cachalot::crash
