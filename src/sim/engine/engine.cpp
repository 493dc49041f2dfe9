#include "sim/engine/engine.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::sim {

void EngineListener::on_first_token(std::uint64_t, const RequestTimes&) {}
void EngineListener::on_finished(std::uint64_t, const RequestTimes&) {}
void EngineListener::on_step(const StepRecord&) {}
void EngineListener::on_gap(double, std::uint64_t) {}
std::uint64_t EngineListener::ready_tokens(std::uint64_t, std::uint64_t submitted) {
  return submitted;
}

Status EngineOptions::check() const {
  const std::pair<const char*, std::uint64_t> numbers[] = {{"blocks", blocks},
                                                           {"block_tokens", block_tokens},
                                                           {"max_sequences", max_sequences},
                                                           {"step_tokens", step_tokens},
                                                           {"layers", layerwise.layers}};
  for (const auto& [name, value] : numbers) {
    if (value != 0 && value < 0xffffffff) continue;
    return Error::make(Code::kInvalidArgument, "engine: %s is %llu, expected 1 to 4294967294", name,
                       static_cast<unsigned long long>(value));
  }
  if (layerwise.kind != sched::LayerwiseKind::kOff &&
      (!(kv_bytes_per_block > 0) || !(layerwise.host_bytes_per_s > 0))) {
    return Error::make(Code::kInvalidArgument,
                       "engine: %g bytes a block and %g bytes/s to the host, expected more than 0",
                       kv_bytes_per_block, layerwise.host_bytes_per_s);
  }
  return {};
}

Result<Engine> Engine::make(const EngineOptions& options, const sched::TimingModel& timing,
                            EngineListener& listener) {
  CACHALOT_TRY(options.check());
  return Engine(options, timing, listener);
}

Engine::Engine(const EngineOptions& options, const sched::TimingModel& timing,
               EngineListener& listener)
    : options_(options),
      timing_(&timing),
      listener_(&listener),
      pool_(static_cast<std::uint32_t>(options.blocks), options.prefix_caching) {}

Status Engine::submit(const EngineRequest& request) {
  if (request.input_tokens == 0 || request.output_tokens == 0) {
    return Error::make(Code::kInvalidArgument,
                       "request %llu: %llu input and %llu output tokens, expected at least 1 each",
                       static_cast<unsigned long long>(request.id),
                       static_cast<unsigned long long>(request.input_tokens),
                       static_cast<unsigned long long>(request.output_tokens));
  }
  const std::uint64_t capacity = options_.capacity_tokens();
  if (request.input_tokens > capacity || request.output_tokens > capacity ||
      request.input_tokens + request.output_tokens > capacity) {
    return Error::make(Code::kInvalidArgument,
                       "request %llu: %llu input and %llu output tokens, but the KV blocks of an "
                       "engine hold %llu",
                       static_cast<unsigned long long>(request.id),
                       static_cast<unsigned long long>(request.input_tokens),
                       static_cast<unsigned long long>(request.output_tokens),
                       static_cast<unsigned long long>(capacity));
  }
  CACHALOT_CHECK(arrivals_.empty() ||
                 states_[arrivals_.back()].request.arrival_s <= request.arrival_s);
  std::uint32_t index = 0;
  if (unused_states_.empty()) {
    index = static_cast<std::uint32_t>(states_.size());
    states_.emplace_back();
  } else {
    index = unused_states_.back();
    unused_states_.pop_back();
  }
  states_[index].request = request;
  states_[index].times.arrival_s = request.arrival_s;
  arrivals_.push_back(index);
  return {};
}

std::uint64_t Engine::prompt_tokens_done() const {
  std::uint64_t tokens = 0;
  for (const std::uint32_t index : running_) {
    const State& state = states_[index];
    if (state.outputs != 0) continue;
    tokens += std::min(state.computed, state.request.input_tokens) -
              std::min(state.computed, state.times.hit_tokens);
  }
  return tokens;
}

double Engine::next_event_s() const {
  if (!in_flight_.empty()) return in_flight_.front().record.end_s;
  if (!arrivals_.empty()) return std::max(now_s_, states_[arrivals_.front()].request.arrival_s);
  return kNever;
}

void Engine::advance() {
  now_s_ = std::max(now_s_, next_event_s());
  if (!in_flight_.empty()) finish_step();
  const std::size_t depth = options_.async_scheduling ? 2 : 1;
  do {
    take_arrivals();
  } while (in_flight_.size() < depth && schedule());
}

void Engine::take_arrivals() {
  while (!arrivals_.empty()) {
    State& state = states_[arrivals_.front()];
    if (state.request.arrival_s > now_s_) return;
    state.times.queued_s = now_s_;
    if (is_layered()) {
      state.prefill_s = timing_->prefill_seconds(
          state.request.input_tokens,
          std::min(state.request.ready_tokens, state.request.input_tokens - 1));
    }
    waiting_.push_back(arrivals_.front());
    arrivals_.pop_front();
  }
}

// @return whether a step was launched
bool Engine::schedule() {
  prefill_.clear();
  decode_ = {};
  step_.record = {};
  hosted_.clear();
  std::uint64_t budget = options_.step_tokens;
  if (schedule_running(budget)) schedule_waiting(budget);
  if (is_layered()) schedule_hosted(budget);
  if (is_step_empty()) return false;
  launch();
  return true;
}

bool Engine::schedule_running(std::uint64_t& budget) {
  bool preempted = false;
  for (std::size_t i = 0; i < running_.size() && budget != 0; ++i) {
    State& state = states_[running_[i]];
    // Its last token is being computed: nothing is left to schedule.
    if (state.pending != 0 && state.outputs + state.pending >= state.request.output_tokens)
      continue;
    const std::uint64_t new_tokens = std::min(state.tokens() - state.computed, budget);
    if (new_tokens == 0) continue;
    if (state.host_blocks != 0 && new_tokens == 1 && state.outputs + state.pending != 0) {
      hosted_.push_back(running_[i]);
      continue;
    }
    const std::uint64_t blocks = blocks_for(state.computed + new_tokens);
    if (blocks > state.blocks.size() + state.host_blocks) {
      const auto missing =
          static_cast<std::uint32_t>(blocks - state.blocks.size() - state.host_blocks);
      while (missing > pool_.free_blocks() && i < running_.size()) {
        if (offload_last(i + 1, missing)) continue;
        preempt_last();
        preempted = true;
      }
      if (i >= running_.size()) break;  // it was the last itself
      pool_.allocate(missing, state.blocks);
    }
    add_to_step(running_[i], new_tokens);
    budget -= new_tokens;
  }
  return !preempted;
}

void Engine::preempt_last() {
  const std::uint32_t index = running_.back();
  running_.pop_back();
  State& state = states_[index];
  // Blocks of tokens that steps on the GPU still compute are not kept.
  const std::uint64_t full =
      (state.computed - std::min(state.computed, state.pending)) / options_.block_tokens;
  state.held.clear();
  for (std::size_t i = 0; i < std::min<std::uint64_t>(full, state.blocks.size()); ++i)
    state.held.push_back({state.blocks[i], pool_.generation(state.blocks[i])});
  leave_host(state);
  swap_out(state);
  pool_.release(state.blocks);
  state.blocks.clear();
  state.computed = 0;
  state.is_running = false;
  ++state.times.preemptions;
  ++preemptions_;
  waiting_.push_front(index);
}

void Engine::schedule_waiting(std::uint64_t& budget) {
  if (is_layered()) return schedule_prompts(budget);
  while (!waiting_.empty() && budget != 0 && running_.size() < options_.max_sequences) {
    if (!admit(waiting_.front(), budget, options_.layerwise.layers)) return;
    waiting_.pop_front();
  }
}

void Engine::name_prompt(const State& state, std::size_t from, std::size_t to) {
  to = std::min({to, state.request.keys.size(), state.blocks.size()});
  for (std::size_t i = from; i < to; ++i) pool_.name(state.blocks[i], state.request.keys[i]);
}

bool Engine::admit(std::uint32_t index, std::uint64_t& budget, std::uint64_t layers) {
  State& state = states_[index];
  const std::uint64_t tokens = state.tokens();
  // At least one token is computed: its output is the next token.
  std::uint32_t free_hits = 0;
  pool_.find(state.held, state.request.keys, (tokens - 1) / options_.block_tokens, found_,
             free_hits);
  std::uint64_t known = found_.size() * options_.block_tokens;
  const std::uint64_t ready = listener_->ready_tokens(state.request.id, state.request.ready_tokens);
  known = std::max(known, std::min(std::max(ready, state.swapped_tokens), tokens - 1));
  const std::uint64_t new_tokens = std::min(tokens - known, budget);
  const std::uint64_t free = pool_.free_blocks() - free_hits;
  std::uint64_t wanted = blocks_for(options_.whole_prompt_must_fit ? tokens : known + new_tokens);
  const std::uint64_t all = blocks_for(tokens);
  const bool is_partial = layers < options_.layerwise.layers && all > found_.size();
  if (is_partial) wanted = found_.size() + layers_of(all - found_.size(), layers);
  if (wanted > found_.size() + free) return false;
  if (is_partial && all - wanted > options_.host_blocks - host_used_) return false;
  for (const std::uint32_t block : found_) pool_.refer(block);
  state.blocks.assign(found_.begin(), found_.end());
  state.held.clear();
  state.shared = found_.size();
  swap_in(state, found_.size());
  const std::uint64_t blocks = is_partial ? wanted : blocks_for(known + new_tokens);
  if (blocks > state.blocks.size()) {
    pool_.allocate(static_cast<std::uint32_t>(blocks - state.blocks.size()), state.blocks);
  }
  if (is_partial) {
    state.host_blocks = all - wanted;
    host_used_ += state.host_blocks;
  } else {
    name_prompt(state, found_.size(), known / options_.block_tokens);
  }
  if (state.times.preemptions == 0) {
    state.times.scheduled_s = now_s_;
    state.times.hit_tokens = known;
  }
  state.computed = known;
  state.is_running = true;
  running_.push_back(index);
  add_to_step(index, new_tokens);
  budget -= new_tokens;
  return true;
}

void Engine::add_to_step(std::uint32_t index, std::uint64_t new_tokens) {
  State& state = states_[index];
  const std::uint64_t context = state.computed;
  if (new_tokens == 1 && context >= state.request.input_tokens) {
    ++decode_.sequences;
    decode_.context_tokens += context + 1;
    decode_.longest_context_tokens = std::max(decode_.longest_context_tokens, context + 1);
    decode_.shortest_context_tokens = decode_.sequences == 1
                                          ? context + 1
                                          : std::min(decode_.shortest_context_tokens, context + 1);
  } else {
    prefill_.push_back({.new_tokens = new_tokens, .context_tokens = context});
    step_.record.prompt_tokens += new_tokens;
    count_chunk(state, context, new_tokens);
    if (state.host_blocks == 0) {
      name_prompt(state, context / options_.block_tokens,
                  (context + new_tokens) / options_.block_tokens);
    }
  }
  const bool emits = context + new_tokens >= state.tokens();
  state.computed += new_tokens;
  if (!emits) return;
  ++state.pending;
  step_.emitting.push_back(index);
}

void Engine::launch() {
  step_.record.decodes = decode_.sequences;
  step_.record.start_s = std::max(now_s_, gpu_free_s_);
  const double step_s = with_copies_s(timing_->step_seconds(prefill_, decode_));
  step_.record.end_s = step_.record.start_s + step_s;
  if (is_layered() && decode_.sequences != 0) {
    decode_step_s_ = prefill_.empty() ? step_s : timing_->step_seconds({}, decode_);
  }
  gpu_free_s_ = step_.record.end_s;
  in_flight_.push_back(std::move(step_));
  step_ = {};
  if (!spare_lists_.empty()) {
    step_.emitting = std::move(spare_lists_.back());
    spare_lists_.pop_back();
  }
}

void Engine::finish_step() {
  InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  bool any_finished = false;
  double gap_s = 0;
  std::uint64_t gaps = 0;
  const auto count_gap = [&](double seconds) {
    if (gaps != 0 && seconds != gap_s) {
      listener_->on_gap(gap_s, gaps);
      gaps = 0;
    }
    gap_s = seconds;
    ++gaps;
  };
  for (const std::uint32_t index : done.emitting) {
    // By index: the listener may submit, which may move the states.
    --states_[index].pending;
    if (++states_[index].outputs == 1) {
      states_[index].times.first_token_s = now_s_;
      listener_->on_first_token(states_[index].request.id, states_[index].times);
    } else {
      count_gap(now_s_ - states_[index].times.last_token_s);
    }
    State& state = states_[index];
    state.times.last_token_s = now_s_;
    if (state.outputs < state.request.output_tokens) continue;
    if (state.is_running) {
      state.is_running = false;
      any_finished = true;
    } else {
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), index));
      finish(index);
    }
  }
  if (gaps != 0) listener_->on_gap(gap_s, gaps);
  if (any_finished) {
    // Blocks go back in the order in which the step's requests finished.
    const auto stays = [&](std::uint32_t index) {
      return states_[index].outputs < states_[index].request.output_tokens;
    };
    std::size_t kept = 0;
    for (const std::uint32_t index : running_) {
      if (stays(index)) {
        running_[kept++] = index;
      } else {
        finish(index);
      }
    }
    running_.resize(kept);
  }
  done.record.running = running_.size();
  done.record.waiting = waiting_.size();
  done.record.used_blocks = pool_.used_blocks();
  listener_->on_step(done.record);
  done.emitting.clear();
  spare_lists_.push_back(std::move(done.emitting));
}

void Engine::finish(std::uint32_t index) {
  State& state = states_[index];
  pool_.release(state.blocks);
  leave_host(state);
  ++finished_;
  finished_tokens_ += state.outputs;
  const std::uint64_t id = state.request.id;
  const RequestTimes times = state.times;
  state = State();
  unused_states_.push_back(index);
  listener_->on_finished(id, times);
}

}  // namespace cachalot::sim
