// One vLLM engine (V1), simulated step by step: its scheduler, its KV blocks, and the pipeline of steps.
//
// A step has a budget of tokens. Running requests come first, in order of admission: one token each, or the next chunk
// of their prompt. Waiting requests follow, first come first served, as long as budget, sequences and blocks last. A
// running request that finds no block makes the engine preempt the request admitted last: that one loses its blocks,
// waits in front, and computes its KV again, except for blocks that nothing else took meanwhile.
//
// With asynchronous scheduling (vLLM's default) the engine schedules step n + 1 while the GPU computes step n. So a
// request that arrives is seen when a step ends, and its first step starts one step later; and the place of a finished
// request is free one step late.
//
// 1. Every submitted request finishes exactly once, with output_tokens tokens.
// 2. Blocks in use never exceed the engine's.
// 3. The same submissions give the same times.
//
// Source: vLLM 0.19, v1/core/sched and v1/engine/core.py, for the rules; no code of it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "sched/policy/layerwise.h"
#include "sched/timing/timing_model.h"
#include "sim/engine/block_pool.h"

namespace cachalot::sim {

struct EngineOptions {
  std::uint64_t blocks = 0;
  std::uint64_t block_tokens = 16;
  std::uint64_t max_sequences = 256;
  std::uint64_t step_tokens = 2048;
  bool prefix_caching = true;
  bool async_scheduling = true;
  // A request is admitted when its whole prompt fits, not only the first chunk of it.
  bool whole_prompt_must_fit = true;

  // Where KV goes that the device has no room for; its `tbt_slo_s` counts for on and auto.
  sched::LayerwiseOptions layerwise = {};
  double kv_bytes_per_block = 0;
  std::uint64_t host_blocks =
      std::numeric_limits<std::uint64_t>::max();  // the host's memory has room for

  std::uint64_t capacity_tokens() const { return blocks * block_tokens; }
  // @errors kInvalidArgument: a number is 0, or blocks do not fit 32 bits
  Status check() const;
};

struct EngineRequest {
  std::uint64_t id = 0;  // the caller's
  double arrival_s = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  // One for each full block of the prompt, each standing for the whole prefix up to it; fewer: the rest is the
  // request's own. The memory must live until the request has finished.
  std::span<const std::uint64_t> keys = {};
  // Tokens whose KV comes from elsewhere and need not be computed; at least one token is computed all the same.
  std::uint64_t ready_tokens = 0;
};

struct RequestTimes {
  double arrival_s = 0;
  double queued_s = 0;     // the engine has seen it
  double scheduled_s = 0;  // first
  double first_token_s = 0;
  double last_token_s = 0;
  std::uint64_t hit_tokens = 0;  // when it was first scheduled
  std::uint64_t preemptions = 0;
};

struct StepRecord {
  double start_s = 0, end_s = 0;  // on the GPU
  std::uint64_t prompt_tokens = 0;
  std::uint64_t decodes = 0;
  double out_bytes = 0, in_bytes = 0;  // KV to the host's memory and back
  // When its result has been processed:
  std::uint64_t running = 0, waiting = 0, used_blocks = 0;
};

// What the simulation is told, in order of time. It may submit requests from within.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void on_first_token(std::uint64_t id, const RequestTimes& times);
  virtual void on_finished(std::uint64_t id, const RequestTimes& times);
  virtual void on_step(const StepRecord& step);
  // `count` requests got a token that came so long after their one before.
  virtual void on_gap(double seconds, std::uint64_t count);
  // How much of the request's KV is elsewhere when it could be admitted; `submitted`: EngineRequest::ready_tokens.
  virtual std::uint64_t ready_tokens(std::uint64_t id, std::uint64_t submitted);
};

class Engine {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // @param timing, listener  live longer than the engine
  // @errors as EngineOptions::check()
  static Result<Engine> make(const EngineOptions& options, const sched::TimingModel& timing,
                             EngineListener& listener);

  // @pre arrivals do not go back in time, and are not before the last event
  // @errors kInvalidArgument: no token of input or output, or the KV cannot hold the request at all
  Status submit(const EngineRequest& request);

  // When something happens next; kNever: nothing is left.
  double next_event_s() const;
  // Handles that event. @pre next_event_s() != kNever
  // @cost linear in running requests
  void advance();

  double now_s() const { return now_s_; }
  std::uint64_t running() const { return running_.size(); }
  std::uint64_t waiting() const { return waiting_.size() + arrivals_.size(); }
  std::uint64_t used_blocks() const { return pool_.used_blocks(); }
  std::uint64_t used_host_blocks() const { return host_used_; }
  // Of running requests without a first token: tokens computed, without those that were there. O(running)
  std::uint64_t prompt_tokens_done() const;
  std::uint64_t preemptions() const { return preemptions_; }
  const EngineOptions& options() const { return options_; }
  const BlockPool& pool() const { return pool_; }

 private:
  struct State {
    EngineRequest request;
    RequestTimes times;
    std::uint64_t computed = 0;  // tokens whose KV is there or being computed
    std::uint64_t outputs = 0;   // tokens that have come out
    std::uint64_t pending = 0;   // tokens that steps on the GPU will bring
    bool is_running = false;
    std::vector<std::uint32_t> blocks;
    std::vector<BlockPool::Held> held;  // after a preemption
    double prefill_s = 0;               // of its prompt, as predicted; with layer-wise KV
    std::uint64_t host_blocks = 0;      // of its KV, in the host's memory
    std::uint64_t shared = 0;           // of `blocks`, those found when it was admitted
    std::uint64_t swapped_tokens =
        0;  // while it waits after a swap: all of its KV is in host_blocks

    std::uint64_t tokens() const { return request.input_tokens + outputs + pending; }
  };

  struct InFlight {
    StepRecord record;
    std::vector<std::uint32_t> emitting;  // states that get a token from it
  };

  Engine(const EngineOptions& options, const sched::TimingModel& timing, EngineListener& listener);

  void take_arrivals();
  bool schedule();
  bool schedule_running(std::uint64_t& budget);  // false: it preempted
  void schedule_waiting(std::uint64_t& budget);
  // @param layers  of its KV that stay on the device
  bool admit(std::uint32_t index, std::uint64_t& budget, std::uint64_t layers);
  bool is_step_empty() const { return prefill_.empty() && decode_.sequences == 0; }
  void name_prompt(const State& state, std::size_t from, std::size_t to);
  // Adds the request's next tokens to the step.
  void add_to_step(std::uint32_t index, std::uint64_t new_tokens);
  void launch();
  void preempt_last();
  void finish_step();

  // KV in the host's memory: engine_layers.cpp.
  bool is_layered() const {
    return options_.layerwise.kind == sched::LayerwiseKind::kOn ||
           options_.layerwise.kind == sched::LayerwiseKind::kAuto;
  }
  double with_copies_s(double computing_s) const;
  void swap_out(State& state);
  void swap_in(State& state, std::size_t found);
  void leave_host(State& state);
  std::uint64_t layers_of(std::uint64_t blocks, std::uint64_t layers) const;
  std::uint64_t least_device_blocks(const State& state) const;
  bool offload_last(std::size_t first, std::uint64_t missing);
  void count_chunk(const State& state, std::uint64_t context, std::uint64_t new_tokens);
  std::vector<std::uint64_t> plan_waiting();
  void schedule_prompts(std::uint64_t& budget);
  sched::DecodeProgress progress_of(const State& state) const;
  void schedule_hosted(std::uint64_t& budget);
  void bring_back(double computing_s);

  void finish(std::uint32_t index);
  std::uint64_t blocks_for(std::uint64_t tokens) const {
    return (tokens + options_.block_tokens - 1) / options_.block_tokens;
  }

  EngineOptions options_;
  const sched::TimingModel* timing_;
  EngineListener* listener_;
  BlockPool pool_;
  double now_s_ = 0;
  double gpu_free_s_ = 0;
  std::uint64_t preemptions_ = 0;

  std::vector<State> states_;
  std::vector<std::uint32_t> unused_states_;
  std::deque<std::uint32_t> arrivals_, waiting_;
  std::vector<std::uint32_t> running_;
  std::deque<InFlight> in_flight_;

  // The step that is being put together; members so that their memory is used again.
  InFlight step_;
  std::vector<sched::PrefillPart> prefill_;
  sched::DecodePart decode_;
  std::vector<std::uint32_t> found_;
  std::vector<std::vector<std::uint32_t>> spare_lists_;

  // With KV in the host's memory.
  std::uint64_t host_used_ = 0;                       // blocks
  double decode_step_s_ = 0;                          // of the last step, without its prompts
  std::uint64_t finished_ = 0, finished_tokens_ = 0;  // requests and their outputs
  bool waits_for_memory_ = false;
  std::vector<std::uint32_t> hosted_, loaded_;  // that could decode in this step; that do
  std::vector<sched::HostSequence> loads_;
  std::vector<sched::DecodeProgress> progress_;
  std::vector<sched::WaitingPrompt> prompts_;
};

}  // namespace cachalot::sim
