// How often the simulated world does its worst: every number here is something real hardware may
// do, none is a fault. A protocol that keeps its rules survives any values.
#pragma once

#include <cstdint>

namespace cachalot::memory {

// How the scheduler interleaves fibers. A fiber runs for 1 to 2^e steps, e uniform in
// [0, run_exponent], so that runs of all lengths are common; now and then it stands still.
struct Pace {
  std::uint32_t run_exponent = 6;
  double stall_chance = 0.002;        // per switch
  std::uint64_t stall_steps = 4'000;  // at most
};

struct Adversary {
  Pace pace;

  // Spontaneous events: one every `event_every_steps` steps on average, of a kind by weight.
  std::uint32_t event_every_steps = 24;
  std::uint32_t drain_weight = 3;     // some words of a write buffer reach the device
  std::uint32_t prefetch_weight = 2;  // a line near recent ones is pulled into a cache
  std::uint32_t evict_weight = 2;     // a line leaves a cache

  // Write buffer.
  std::uint32_t buffer_lines = 32;  // more than these push the older out
  double whole_line_drain = 0.3;    // else one 8-byte word at a time
  double drain_yield = 0.1;         // after a drained word, others run
  double order_drains = 0.5;        // order() empties the buffer, beyond what it promises
  double read_fence_drains = 0.7;   // a read's first fence does

  // Reads.
  double split_load = 0.05;       // others run between two words of one line
  double stream_prefetch = 0.25;  // a load pulls in the next 1 to 15 lines as well
};

enum class Mood { kCalm, kNormal, kNasty };

constexpr Adversary adversary(Mood mood) {
  Adversary result;
  if (mood == Mood::kCalm) {
    result.pace = {.run_exponent = 9, .stall_chance = 0.0005, .stall_steps = 2'000};
    result.event_every_steps = 96;
    result.buffer_lines = 12;
    result.whole_line_drain = 0.8;
    result.drain_yield = 0.03;
    result.order_drains = 0.8;
    result.read_fence_drains = 1.0;
    result.split_load = 0.01;
    result.stream_prefetch = 0.1;
  }
  if (mood == Mood::kNasty) {
    result.pace = {.run_exponent = 5, .stall_chance = 0.01, .stall_steps = 20'000};
    result.event_every_steps = 8;
    result.buffer_lines = 128;
    result.whole_line_drain = 0.05;
    result.drain_yield = 0.25;
    result.order_drains = 0.1;
    result.read_fence_drains = 0.3;
    result.split_load = 0.2;
    result.stream_prefetch = 0.5;
  }
  return result;
}

}  // namespace cachalot::memory
