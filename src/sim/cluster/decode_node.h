// A decode instance: continuous batching, each step simulated.
//
// 1. In each step every running sequence gets one token. Sequences join between steps, in the order of arrival.
// 2. The KV that sequences have reserved (input and whole output) never exceeds the capacity, nor their number the
//    limit. A sequence reserves before its KV comes, and gives back when it ends.
// 3. A step costs O(1) beside the sequences that join or end: each has the number of the step that is its last.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/histogram.h"
#include "sched/timing/timing_model.h"
#include "sim/cluster/timers.h"

namespace cachalot::sim {

struct Sequence {
  std::uint32_t job = 0;
  std::uint64_t context_tokens = 0;  // with the first token of the output
  std::uint64_t tokens_left = 0;     // at least 1
  double last_token_s = 0;           // the first one's time: what the first gap counts from

  std::uint64_t reserved_tokens() const { return context_tokens + tokens_left; }
};

// Times between tokens.
struct TokenGaps {
  base::Histogram ns;  // within 2 percent
  double sum_s = 0;
  double longest_s = 0;

  void record(double seconds, std::uint64_t count);
};

// @threads one at a time
class DecodeNode {
 public:
  DecodeNode(const sched::TimingModel& timing, std::uint64_t capacity_tokens,
             std::uint64_t most_sequences)
      : timing_(&timing), capacity_tokens_(capacity_tokens), most_sequences_(most_sequences) {}

  // Takes room for a sequence; false: there is none now.
  bool reserve(std::uint64_t tokens);
  // Its KV is here, for which it has reserved. It runs from the next step on.
  void enter(const Sequence& sequence, double now_s);

  // The end of the step in hand; kNever: it is idle.
  double next_s() const { return step_end_s_; }
  // Ends the step in hand, at next_s(), and begins the next one. Appends the jobs that have ended.
  void step(TokenGaps& gaps, std::vector<std::uint32_t>& ended);

  std::uint64_t running() const { return running_; }
  std::uint64_t context_tokens() const { return context_tokens_; }  // of running sequences
  std::uint64_t reserved() const { return reserved_; }              // sequences
  std::uint64_t reserved_tokens() const { return reserved_tokens_; }
  std::uint64_t most_reserved_tokens() const { return most_reserved_tokens_; }
  std::uint64_t steps() const { return steps_; }
  double busy_s() const { return busy_s_; }
  double step_s() const { return step_s_; }  // of the step in hand
  std::uint64_t tokens() const { return tokens_; }

 private:
  struct Last {
    std::uint64_t step;
    std::uint32_t job;
    std::uint64_t reserved_tokens;
    bool operator>(const Last& other) const {
      return step != other.step ? step > other.step : job > other.job;
    }
  };

  void begin_step(double now_s);

  const sched::TimingModel* timing_;
  std::uint64_t capacity_tokens_;
  std::uint64_t most_sequences_;
  std::priority_queue<Last, std::vector<Last>, std::greater<>> last_;
  std::vector<Sequence> waiting_;
  std::vector<double>
      joined_;  // times of their last token, of those that joined with the step in hand
  std::uint64_t running_ = 0;
  std::uint64_t context_tokens_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t reserved_tokens_ = 0;
  std::uint64_t most_reserved_tokens_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t tokens_ = 0;
  double step_end_s_ = kNever;
  double step_s_ = 0;
  double busy_s_ = 0;
};

}  // namespace cachalot::sim
