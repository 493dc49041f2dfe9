#include "sim/colocated/colocated.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "sim/colocated/colocated_run.h"

namespace cachalot::sim {
namespace colocated {

void Node::on_first_token(std::uint64_t id, const RequestTimes& times) {
  cluster->first_token(*this, static_cast<JobId>(id), times);
}
void Node::on_finished(std::uint64_t id, const RequestTimes&) {
  cluster->finished(*this, static_cast<JobId>(id));
}
void Node::on_step(const StepRecord& step) {
  cluster->step_ended(*this, step);
}
void Node::on_gap(double seconds, std::uint64_t count) {
  cluster->gap(seconds, count);
}
std::uint64_t Node::ready_tokens(std::uint64_t id, std::uint64_t submitted) {
  return cluster->ready_tokens(*this, static_cast<JobId>(id), submitted);
}

Cluster::Cluster(const ColocatedOptions& options, const Workload& workload,
                 const ClusterTiming& timing)
    : CachingCluster(options.cluster, workload, timing, options.cluster.prefill),
      engine_options_(options.engine),
      step_timing_(timing),
      jobs_(workload.jobs().size()) {}

Status Cluster::make_engine(Node& node) {
  CACHALOT_TRY_ASSIGN(Engine engine, Engine::make(engine_options_, step_timing_, node));
  node.engine = std::make_unique<Engine>(std::move(engine));
  return {};
}

Result<ClusterReport> Cluster::run(const std::function<void(double)>& on_progress) {
  for (std::uint32_t i = 0; i < options_.prefill; ++i) {
    nodes_.push_back(std::make_unique<Node>(*this, i, options_));
    add_instance(*nodes_[i]);
    CACHALOT_TRY(make_engine(*nodes_[i]));
  }
  CACHALOT_TRY(run_events(on_progress));
  return finish_report();
}

Status Cluster::on_transfer_end(std::uint64_t tag) {
  const auto id = static_cast<JobId>(tag);
  if ((tag & kPeerWaitTag) != 0) {
    end_peer_wait(id);
    return submit(id);
  }
  kv_[id].transfer = kNoTransfer;
  if (kv_[id].cargo == Cargo::kPeerQuestion || kv_[id].cargo == Cargo::kPeerCopy) {
    return end_peer_transfer(id) ? Status() : submit(id);
  }
  if (kv_[id].cargo == Cargo::kPoolStore) {
    store_in_pool(path(id));
    return {};
  }
  receive_prefix(id);
  return submit(id);
}

Status Cluster::on_instance(std::size_t instance) {
  Node& node = *nodes_[instance];
  count_requests(node);
  node.engine->advance();
  set_timer(instance, node.engine->next_event_s());
  return leave_if_empty(node);
}

// Of the host's cache or of the engine's blocks; of these a block of the trace counts where its last one is there.
std::size_t Cluster::held_blocks(const CachingInstance& instance, JobId id) const {
  const std::span<const std::uint32_t> blocks = path(id);
  std::size_t held = instance.cache.match(blocks);
  if (!engine_options_.prefix_caching) return held;
  const BlockPool& pool = nodes_[instance.number]->engine->pool();
  const std::uint64_t per = blocks_of_block();
  while (held < blocks.size() && pool.has(std::uint64_t{blocks[held]} * per + per - 1)) ++held;
  return held;
}

// Prompts that wait or are being computed, as predicted, and the step in hand. What decodes beside them, and memory
// that they may have to wait for, is not in it.
double Cluster::queue_s(const CachingInstance& instance) const {
  const Node& node = *nodes_[instance.number];
  if (node.queued_tokens == 0) return 0;
  const auto done = static_cast<double>(node.engine->prompt_tokens_done());
  const double left = std::max(0.0, 1 - done / static_cast<double>(node.queued_tokens));
  return node.queued_s * left;
}

std::uint64_t Cluster::requests_of(const CachingInstance& instance) const {
  return nodes_[instance.number]->jobs.size();
}

// Those that have failed or left decode nothing.
std::size_t Cluster::decode_instances() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      nodes_, [](const auto& node) { return node->accepts || !node->jobs.empty(); }));
}

void Cluster::append_prefilling(std::vector<sched::DecodeShare>& shares) const {
  for (const auto& node : nodes_) {
    double at_s = 0;
    for (const JobId id : node->prefilling) {
      at_s += jobs_[id].expected_prefill_s;
      shares.push_back({at_s, job(id).input_tokens});
    }
  }
}

bool Cluster::can_hold(JobId id) const {
  return input_tokens(id) + output_tokens(id) <= engine_options_.capacity_tokens();
}

Status Cluster::dispatch(JobId id, const sched::Route& chosen) {
  Node& node = *nodes_[chosen.instance];
  count_requests(node);
  record(id).prefill = record(id).decode = node.number;
  JobState& state = jobs_[id];
  state.expected_prefill_s = chosen.kv.prefill_s;
  state.expected_tokens = input_tokens(id) - std::min(chosen.kv.hit_tokens, input_tokens(id) - 1);
  node.queued_s += state.expected_prefill_s;
  node.queued_tokens += state.expected_tokens;
  node.jobs.push_back(id);
  node.prefilling.push_back(id);
  expect(node, id);
  if (chosen.kv.transfer_tokens == 0) return submit(id);
  if (options_.peers.is_on && chosen.kv.source == sched::KvSource::kPeer) {
    return ask_peers(id, held_blocks(node, id)) ? Status() : submit(id);
  }
  fetch_prefix(id, node.number, chosen.kv);
  return {};
}

Status Cluster::submit(JobId id) {
  Node& node = *nodes_[record(id).prefill];
  JobState& state = jobs_[id];
  if (engine_options_.prefix_caching) {
    const std::uint64_t per = blocks_of_block();
    const std::uint64_t full = input_tokens(id) / engine_options_.block_tokens;
    state.keys.clear();
    for (const std::uint32_t block : path(id)) {
      for (std::uint64_t i = 0; i < per && state.keys.size() < full; ++i) {
        state.keys.push_back(std::uint64_t{block} * per + i);
      }
    }
  }
  CACHALOT_TRY(node.engine->submit({.id = id,
                                    .arrival_s = now_s(),
                                    .input_tokens = input_tokens(id),
                                    .output_tokens = output_tokens(id),
                                    .keys = state.keys,
                                    .ready_tokens = kv_[id].ready_tokens}));
  set_timer(node.number, node.engine->next_event_s());
  return {};
}

std::uint64_t Cluster::ready_tokens(const Node& node, JobId id, std::uint64_t submitted) const {
  return std::max(submitted, workload_.tokens_of(job(id), node.cache.match(path(id))));
}

void Cluster::leave_prefilling(Node& node, JobId id) {
  const auto found = std::find(node.prefilling.begin(), node.prefilling.end(), id);
  if (found == node.prefilling.end()) return;
  node.prefilling.erase(found);
  node.queued_s = node.prefilling.empty() ? 0 : node.queued_s - jobs_[id].expected_prefill_s;
  node.queued_tokens -= jobs_[id].expected_tokens;
  expect_no_more(node, id);
}

void Cluster::leave_decoding(JobId id) {
  if (!jobs_[id].is_decoding) return;
  jobs_[id].is_decoding = false;
  end_decoding(id);
}

void Cluster::first_token(Node& node, JobId id, const RequestTimes& times) {
  RequestRecord& of = record(id);
  leave_prefilling(node, id);
  store_in_cache(node, path(id));
  of.hit_tokens = std::min(times.hit_tokens, job(id).input_tokens);
  of.prefill_begin_s = times.scheduled_s;
  // What came before a failure has been seen already.
  if (of.first_token_s == 0) of.first_token_s = now_s();
  count_prefill(id, sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, of.hit_tokens),
                0);
  jobs_[id].is_decoding = true;
  begin_decoding(id);
  send_to_pool(id);
}

void Cluster::finished(Node& node, JobId id) {
  ++node.report.requests;
  node.jobs.erase(std::find(node.jobs.begin(), node.jobs.end(), id));
  leave_decoding(id);
  count_decode(id);
  jobs_[id].keys = {};
  finish(id, Outcome::kCompleted);
}

void Cluster::step_ended(Node& node, const StepRecord& step) {
  const double goal_s = options_.admission.tbt_slo_s;
  node.busy.add(step.start_s, step.end_s, 1);
  node.report.busy_s += step.end_s - step.start_s;
  if (step.decodes != 0 && std::isfinite(goal_s)) {
    node.load.add(step.start_s, step.end_s, (step.end_s - step.start_s) / goal_s);
  }
  report_.host_out_bytes += step.out_bytes;
  report_.host_in_bytes += step.in_bytes;
  ++node.report.steps;
  node.report.tokens += step.decodes;
  node.report.most_reserved_tokens =
      std::max(node.report.most_reserved_tokens, step.used_blocks * engine_options_.block_tokens);
}

}  // namespace colocated

Result<ClusterReport> simulate_colocated(const ColocatedOptions& options, const Workload& workload,
                                         const ClusterTiming& timing,
                                         const std::function<void(double)>& on_progress) {
  CACHALOT_TRY(check(options.cluster));
  CACHALOT_TRY(options.engine.check());
  if (options.cluster.decode != 0) {
    return Error::make(Code::kInvalidArgument, "colocated: %u decode instances, expected 0",
                       options.cluster.decode);
  }
  if (workload.jobs().empty()) return Error::make(Code::kInvalidArgument, "workload: no request");
  if (timing.prefill == nullptr || timing.decode == nullptr) {
    return Error::make(Code::kInvalidArgument, "timing: none, expected a model of each side");
  }
  if (workload.block_tokens() % options.engine.block_tokens != 0) {
    return Error::make(Code::kInvalidArgument,
                       "engine: blocks of %" PRIu64
                       " tokens, expected a divisor of the trace's blocks of %" PRIu64,
                       options.engine.block_tokens, workload.block_tokens());
  }
  return colocated::Cluster(options, workload, timing).run(on_progress);
}

}  // namespace cachalot::sim
