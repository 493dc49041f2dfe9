// Runs requests by their lengths on decode slots, and tells KV memories what happens.
//
// A step decodes one token in every slot. A request that comes to a free slot has its prompt computed
// within the same step; it ends when its last token has been decoded. A slot is the lowest that is
// free.
//
//   slots      | a request begins
//   so many    | when one is free, in the order of the trace: a backlog that never ends
//   unlimited  | at the first step after it arrived; times in which nothing runs are passed over
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "replay/allocation/kv_memory.h"
#include "replay/allocation/kv_requests.h"

namespace cachalot::replay {

struct KvSchedule {
  std::uint64_t slots = 32;  // 0: by arrival
  double step_ms = 30;
};

// A memory beside what the arithmetic says of it, step for step.
struct KvTrack {
  KvMemory* measured = nullptr;
  KvMemory* expected = nullptr;  // null: nothing is expected
  std::uint64_t peak_bytes = 0, expected_peak_bytes = 0;
  double byte_steps = 0, expected_byte_steps = 0;
  std::uint64_t wrong_steps = 0;  // that ended with another number of bytes than expected
};

struct KvRun {
  std::uint64_t requests = 0;
  std::uint64_t left_out = 0;  // longer than max_tokens
  std::uint64_t steps = 0;
  std::uint64_t peak_running = 0;
  std::uint64_t peak_tokens = 0;
  double token_steps = 0, running_steps = 0;

  double mean(double sum) const { return steps == 0 ? 0 : sum / static_cast<double>(steps); }
};

// @errors of the memories
// @param progress  called now and then with the requests that have begun
Result<KvRun> run_kv(const KvRequests& requests, const KvSchedule& schedule,
                     std::uint64_t max_tokens, std::span<KvTrack> tracks,
                     const std::function<void(std::uint64_t)>& progress = {});

}  // namespace cachalot::replay
