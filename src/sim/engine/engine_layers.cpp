// KV that lies in the host's memory: request-wise swap, and LayerKV. The decisions are sched/policy/layerwise.h's.
//
// A request's KV is counted in blocks: some on the device, the others in the host's memory. Layer by layer means for the
// counts: any part of a request may lie there, but for the staging layers; and copies run beside computing, so a step
// takes the longest of computing, copies out and copies in. Swap stops the engine for its copies.
#include <algorithm>

#include "sim/engine/engine.h"

namespace cachalot::sim {

double Engine::with_copies_s(double computing_s) const {
  const double out_s = step_.record.out_bytes / options_.layerwise.host_bytes_per_s;
  const double in_s = step_.record.in_bytes / options_.layerwise.host_bytes_per_s;
  return is_layered() ? std::max({computing_s, out_s, in_s}) : computing_s + out_s + in_s;
}

// Its blocks are still there.
void Engine::swap_out(State& state) {
  if (options_.layerwise.kind != sched::LayerwiseKind::kSwap) return;
  const std::uint64_t tokens = state.computed - std::min(state.computed, state.pending);
  const std::uint64_t blocks = blocks_for(tokens);
  if (blocks > options_.host_blocks - host_used_) return;
  state.swapped_tokens = tokens;
  state.host_blocks = blocks;
  host_used_ += blocks;
  step_.record.out_bytes += static_cast<double>(blocks) * options_.kv_bytes_per_block;
}

void Engine::swap_in(State& state, std::size_t found) {
  if (state.swapped_tokens == 0) return;
  step_.record.in_bytes +=
      static_cast<double>(state.host_blocks - std::min<std::uint64_t>(found, state.host_blocks)) *
      options_.kv_bytes_per_block;
  state.swapped_tokens = 0;
  leave_host(state);
}

void Engine::leave_host(State& state) {
  host_used_ -= state.host_blocks;
  state.host_blocks = 0;
}

std::uint64_t Engine::least_device_blocks(const State& state) const {
  const std::uint64_t layered = state.blocks.size() + state.host_blocks - state.shared;
  return state.shared + layers_of(layered, options_.layerwise.staging_layers);
}

std::uint64_t Engine::layers_of(std::uint64_t blocks, std::uint64_t layers) const {
  const std::uint64_t all = options_.layerwise.layers;
  return (blocks * std::min(layers, all) + all - 1) / all;
}

// Of the request that was admitted last and can spare some, of those from place `first` on.
bool Engine::offload_last(std::size_t first, std::uint64_t missing) {
  if (!is_layered()) return false;
  for (std::size_t i = running_.size(); i-- > first;) {
    State& state = states_[running_[i]];
    if (state.outputs + state.pending == 0) continue;  // its prompt is being computed
    const std::uint64_t least = least_device_blocks(state);
    if (state.blocks.size() <= least) continue;
    // Some for each running request, so that not every step has to do it again.
    const std::uint64_t moved =
        std::min({std::max<std::uint64_t>(missing, running_.size()), state.blocks.size() - least,
                  options_.host_blocks - host_used_});
    if (moved == 0) continue;
    pool_.release(std::span(state.blocks).last(moved));
    state.blocks.resize(state.blocks.size() - moved);
    state.host_blocks += moved;
    host_used_ += moved;
    step_.record.out_bytes += static_cast<double>(moved) * options_.kv_bytes_per_block;
    return true;
  }
  return false;
}

// What a chunk of a prompt copies out, and what it needs of the chunks before it.
void Engine::count_chunk(const State& state, std::uint64_t context, std::uint64_t new_tokens) {
  if (state.host_blocks == 0) return;
  const auto layered = static_cast<double>(state.blocks.size() + state.host_blocks - state.shared);
  const double part = static_cast<double>(state.host_blocks) / layered;
  const double before =
      static_cast<double>(context) - static_cast<double>(state.shared * options_.block_tokens);
  const double token_bytes =
      options_.kv_bytes_per_block / static_cast<double>(options_.block_tokens);
  step_.record.in_bytes += part * std::max(0.0, before) * token_bytes;
  step_.record.out_bytes += part * static_cast<double>(new_tokens) * token_bytes;
}

std::vector<std::uint64_t> Engine::plan_waiting() {
  constexpr std::size_t kMostPrompts = 16;  // that a step looks at
  progress_.clear();
  sched::LayerwiseView view{
      .step_s = decode_step_s_,
      .loaded_bytes = static_cast<double>(host_used_) * options_.kv_bytes_per_block,
      .free_blocks = pool_.free_blocks(),
      .free_host_blocks = options_.host_blocks - host_used_};
  for (const std::uint32_t index : running_) {
    const State& state = states_[index];
    if (state.outputs != 0) {
      progress_.push_back(progress_of(state));
      continue;
    }
    const auto input = static_cast<double>(state.request.input_tokens);
    const double left = 1 - std::min(1.0, static_cast<double>(state.computed) / input);
    view.pending_prefill_s += state.prefill_s * left;
  }
  prompts_.clear();
  for (std::size_t i = 0; i < std::min(kMostPrompts, waiting_.size()); ++i) {
    const State& state = states_[waiting_[i]];
    const std::uint64_t blocks = blocks_for(state.tokens());
    prompts_.push_back({.prefill_s = state.prefill_s,
                        .kv_bytes = static_cast<double>(blocks) * options_.kv_bytes_per_block,
                        .blocks = blocks});
  }
  view.decoding = progress_;
  view.waiting = prompts_;
  std::vector<std::uint64_t> plan = sched::plan_prefills(options_.layerwise, view);
  waits_for_memory_ = plan.size() < prompts_.size() &&
                      sched::goal_allows(options_.layerwise, view, plan.size() + 1);
  return plan;
}

void Engine::schedule_prompts(std::uint64_t& budget) {
  waits_for_memory_ = false;
  if (waiting_.empty()) return;
  for (const std::uint64_t layers : plan_waiting()) {
    if (budget == 0 || running_.size() >= options_.max_sequences) return;
    if (!admit(waiting_.front(), budget, layers)) break;
    waiting_.pop_front();
  }
  if (!waits_for_memory_ || budget == 0 || running_.size() >= options_.max_sequences) return;
  // The first that waits may have the place of layers of those that decode, if loading them hides.
  const State& state = states_[waiting_.front()];
  const std::uint64_t blocks = blocks_for(state.tokens());
  const double kv_bytes = static_cast<double>(blocks) * options_.kv_bytes_per_block;
  const std::uint64_t layers =
      sched::fewest_device_layers(options_.layerwise, state.prefill_s, kv_bytes);
  const std::uint64_t wanted = layers_of(blocks, layers);
  const double loaded_bytes = static_cast<double>(host_used_) * options_.kv_bytes_per_block;
  const double room = sched::offload_room_bytes(options_.layerwise, decode_step_s_, loaded_bytes) /
                      options_.kv_bytes_per_block;
  if (wanted > pool_.free_blocks() && static_cast<double>(wanted - pool_.free_blocks()) > room) {
    return;
  }
  while (wanted > pool_.free_blocks()) {
    if (!offload_last(0, wanted - pool_.free_blocks())) return;
  }
  if (admit(waiting_.front(), budget, layers)) waiting_.pop_front();
}

sched::DecodeProgress Engine::progress_of(const State& state) const {
  const double mean =
      finished_ == 0 ? 0 : static_cast<double>(finished_tokens_) / static_cast<double>(finished_);
  const auto outputs = static_cast<double>(state.outputs);
  return {.tokens = outputs - 1,
          .seconds = now_s_ - state.times.first_token_s,
          .tokens_left = std::max(0.0, mean - outputs),
          .is_hosted = state.host_blocks != 0};
}

// Requests whose KV is in part in the host's memory go on as far as loading allows, after all others.
void Engine::schedule_hosted(std::uint64_t& budget) {
  if (hosted_.empty() && host_used_ == 0) return;
  const double computing_s = is_step_empty() ? 0 : timing_->step_seconds(prefill_, decode_);
  loads_.clear();
  loaded_.clear();
  for (const std::uint32_t index : hosted_) {
    const State& state = states_[index];
    const double slack_s = state.outputs == 0
                               ? 0
                               : sched::prefill_slack_s(progress_of(state), decode_step_s_,
                                                        options_.layerwise.tbt_slo_s);
    loads_.push_back(
        {.load_bytes = static_cast<double>(state.host_blocks) * options_.kv_bytes_per_block,
         .slack_s = slack_s});
  }
  const std::vector<bool> chosen = sched::choose_loads(options_.layerwise, loads_, computing_s);
  for (std::size_t i = 0; i < hosted_.size() && budget != 0; ++i) {
    State& state = states_[hosted_[i]];
    if (!chosen[i] || !state.is_running) continue;
    if (blocks_for(state.computed + 1) > state.blocks.size() + state.host_blocks) {
      const bool is_alone = is_step_empty() && in_flight_.empty();
      // Where nothing else can go on and nothing can grow, those admitted last make room.
      while (is_alone && state.is_running && host_used_ >= options_.host_blocks &&
             pool_.free_blocks() == 0) {
        preempt_last();
      }
      if (!state.is_running) continue;
      if (host_used_ < options_.host_blocks) {
        ++state.host_blocks;
        ++host_used_;
      } else if (pool_.free_blocks() != 0) {
        pool_.allocate(1, state.blocks);
      } else {
        continue;
      }
    }
    step_.record.in_bytes += loads_[i].load_bytes;
    loaded_.push_back(hosted_[i]);
    add_to_step(hosted_[i], 1);
    --budget;
  }
  if (!waits_for_memory_) bring_back(computing_s);
}

// KV comes back for good into blocks that are free, oldest requests first, as far as it hides behind the step.
void Engine::bring_back(double computing_s) {
  const double room = computing_s * options_.layerwise.host_bytes_per_s - step_.record.in_bytes;
  double blocks_left = room / options_.kv_bytes_per_block;
  const std::uint64_t kept = 2 * running_.size();  // for the next tokens of all
  for (const std::uint32_t index : running_) {
    State& state = states_[index];
    if (state.host_blocks == 0 || state.outputs == 0) continue;
    const std::uint64_t free =
        pool_.free_blocks() - std::min<std::uint64_t>(kept, pool_.free_blocks());
    if (free == 0) return;
    // What is loaded for this step need not come twice.
    const bool is_loaded = std::find(loaded_.begin(), loaded_.end(), index) != loaded_.end();
    const std::uint64_t hidden =
        is_loaded ? free : static_cast<std::uint64_t>(std::max(0.0, blocks_left));
    const std::uint64_t moved = std::min({free, state.host_blocks, hidden});
    if (moved == 0) continue;
    pool_.allocate(static_cast<std::uint32_t>(moved), state.blocks);
    state.host_blocks -= moved;
    host_used_ -= moved;
    if (!is_loaded) {
      blocks_left -= static_cast<double>(moved);
      step_.record.in_bytes += static_cast<double>(moved) * options_.kv_bytes_per_block;
    }
    if (state.host_blocks == 0) name_prompt(state, state.shared, state.request.keys.size());
  }
}

}  // namespace cachalot::sim
