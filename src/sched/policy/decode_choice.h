// Which decode instance continues a request: the one whose next tokens will take least.
#pragma once

#include <span>

#include "sched/policy/snapshot.h"

namespace cachalot::sched {

struct DecodeRequest {
  std::uint64_t context_tokens = 0;   // input and first token
  std::uint64_t reserved_tokens = 0;  // the most that it will have
};

struct DecodeChoice {
  std::size_t instance =
      kNoInstance;       // kNoInstance: no instance accepts, or none could ever hold it
  double tbt_s = 0;      // of a step with the request, as predicted
  double present_s = 0;  // of a step without it: the load that the instance has

  bool exists() const { return instance != kNoInstance; }
};

// Seconds of a step of this many sequences with this much context in all.
double predicted_tbt(const TimingModel& timing, std::uint64_t sequences,
                     std::uint64_t context_tokens);

// An instance with room for the request is before one without; then the smallest predicted TBT, then the lower
// number.
DecodeChoice choose_decode(std::span<const DecodeView> decode, const TimingModel& timing,
                           const DecodeRequest& request);

}  // namespace cachalot::sched
