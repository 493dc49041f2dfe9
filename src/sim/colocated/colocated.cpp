#include "sim/colocated/colocated.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "base/check.h"
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
    : options_(options.cluster),
      engine_options_(options.engine),
      workload_(workload),
      timing_(timing),
      step_timing_(timing),
      pool_(options.cluster.eviction, options.cluster.pool_capacity_blocks),
      timers_(options.cluster.prefill + 3),
      rng_(options.cluster.seed),
      jobs_(workload.jobs().size()),
      changes_(options.cluster.changes) {
  report_.records.resize(jobs_.size());
  std::stable_sort(changes_.begin(), changes_.end(),
                   [](const Membership& a, const Membership& b) { return a.at_s < b.at_s; });
}

Ports Cluster::make_ports() {
  Ports ports;
  ports.out = network_.add_link(options_.link.bytes_per_s);
  ports.in = network_.add_link(options_.link.bytes_per_s);
  if (!has_pool()) return ports;
  ports.pool_out = network_.add_link(options_.pool_link.bytes_per_s);
  ports.pool_in = network_.add_link(options_.pool_link.bytes_per_s);
  return ports;
}

Status Cluster::make_engine(Node& node) {
  CACHALOT_TRY_ASSIGN(Engine engine, Engine::make(engine_options_, step_timing_, node));
  node.engine = std::make_unique<Engine>(std::move(engine));
  return {};
}

Result<ClusterReport> Cluster::run(const std::function<void(double)>& on_progress) {
  constexpr JobId kProgressEvery = 256;
  if (has_pool()) {
    const double most = options_.pool_link.bytes_per_s * options_.prefill;
    pool_in_ = network_.add_link(std::min(options_.pool_bytes_per_s, most));
    pool_out_ = network_.add_link(std::min(options_.pool_bytes_per_s, most));
  }
  for (std::uint32_t i = 0; i < options_.prefill; ++i) {
    nodes_.push_back(std::make_unique<Node>(*this, i, options_));
    nodes_[i]->ports = make_ports();
    nodes_[i]->report.instance = i;
    nodes_[i]->report.is_colocated = true;
    CACHALOT_TRY(make_engine(*nodes_[i]));
  }
  timers_.set(arrival_slot(), next_arrival_s());
  if (!changes_.empty()) timers_.set(change_slot(), changes_[0].at_s);
  JobId reported = 0;
  while (timers_.first_time() < kNever) {
    now_s_ = timers_.first_time();
    CACHALOT_TRY(step(timers_.first()));
    if (on_progress && next_arrival_ >= reported + kProgressEvery) {
      reported = next_arrival_;
      on_progress(static_cast<double>(reported) / static_cast<double>(jobs_.size()));
    }
  }
  return finish_report();
}

Status Cluster::step(std::size_t slot) {
  if (slot == kNetworkSlot) {
    while (const std::optional<std::uint64_t> tag = network_.pop(now_s_)) {
      CACHALOT_TRY(end_transfer(static_cast<JobId>(*tag)));
    }
    timers_.set(kNetworkSlot, network_.next_s());
  } else if (slot < change_slot()) {
    Node& node = *nodes_[slot - node_slot(0)];
    count_requests(node);
    node.engine->advance();
    timers_.set(slot, node.engine->next_event_s());
    return leave_if_empty(node);
  } else if (slot == change_slot()) {
    const Membership membership = changes_[next_change_++];
    timers_.set(slot, next_change_ < changes_.size() ? changes_[next_change_].at_s : kNever);
    return change(membership);
  } else {
    const JobId id = next_arrival_++;
    ++in_flight_;
    report_.records[id].arrival_s = now_s_;
    timers_.set(slot, next_arrival_s());
    return arrive(id);
  }
  return {};
}

double Cluster::next_arrival_s() const {
  if (next_arrival_ == jobs_.size()) return kNever;
  if (options_.closed_loop == 0) return job(next_arrival_).arrival_s;
  const bool begins_pass =
      options_.pass_requests != 0 && next_arrival_ % options_.pass_requests == 0;
  return in_flight_ < (begins_pass ? 1 : options_.closed_loop) ? now_s_ : kNever;
}

// Of the host's cache or of the engine's blocks; of these a block of the trace counts where its last one is there.
std::size_t Cluster::held_blocks(const Node& node, JobId id) const {
  const std::span<const std::uint32_t> blocks = path(id);
  std::size_t held = node.cache.match(blocks);
  if (!engine_options_.prefix_caching) return held;
  const std::uint64_t per = workload_.block_tokens() / engine_options_.block_tokens;
  while (held < blocks.size() &&
         node.engine->pool().has(std::uint64_t{blocks[held]} * per + per - 1)) {
    ++held;
  }
  return held;
}

// Held, or computed by then.
std::size_t Cluster::expected_blocks(const Node& node, JobId id) const {
  const std::span<const std::uint32_t> blocks = path(id);
  std::size_t expected = held_blocks(node, id);
  while (expected < blocks.size() && node.coming.contains(blocks[expected])) ++expected;
  return expected;
}

// Prompts that wait or are being computed, as predicted, and the step in hand. What decodes beside them, and memory
// that they may have to wait for, is not in it.
double Cluster::queue_s(const Node& node) const {
  if (node.queued_tokens == 0) return 0;
  const auto done = static_cast<double>(node.engine->prompt_tokens_done());
  const double left = std::max(0.0, 1 - done / static_cast<double>(node.queued_tokens));
  return node.queued_s * left;
}

sched::Route Cluster::route(JobId id) {
  views_.resize(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    views_[i] = {.accepts = node.accepts,
                 .queue_s = queue_s(node),
                 .requests = node.jobs.size(),
                 .hit_tokens = workload_.tokens_of(job(id), expected_blocks(node, id)),
                 .held_tokens = workload_.tokens_of(job(id), node.cache.match(path(id))),
                 .sending = network_.in_flight(node.ports.out),
                 .receiving = network_.in_flight(node.ports.in),
                 .pool_reads = has_pool() ? network_.in_flight(node.ports.pool_in) : 0};
  }
  sched::RequestView request{.input_tokens = job(id).input_tokens};
  if (has_pool()) request.pool_hit_tokens = workload_.tokens_of(job(id), pool_.match(path(id)));
  return sched::route(options_.routing, request,
                      {.prefill = views_,
                       .timing = timing_.prefill,
                       .kv_bytes_per_token = options_.kv_bytes_per_token,
                       .link = options_.link,
                       .pool = options_.pool_link,
                       .turn = turn_++,
                       .random = rng_.next()});
}

sched::Verdict Cluster::verdict(JobId id, double ttft_s) {
  using sched::AdmissionKind;
  decode_shares_.clear();
  prefill_shares_.clear();
  const AdmissionKind kind = options_.admission.kind;
  if (kind == AdmissionKind::kEarly || kind == AdmissionKind::kPredictive) {
    for (const JobId other : decoding_) decode_shares_.push_back({0, job(other).input_tokens});
  }
  if (kind == AdmissionKind::kPredictive) {
    for (const auto& node : nodes_) {
      double at_s = 0;
      for (const JobId other : node->prefilling) {
        at_s += jobs_[other].expected_prefill_s;
        prefill_shares_.push_back({at_s, job(other).input_tokens});
      }
    }
  }
  double queue_s = 0;
  for (const sched::PrefillView& view : views_) queue_s += view.queue_s;
  double decode_s = options_.assumed_decode_s;
  if (decode_s == 0) {
    decode_s = decodes_ == 0 ? std::numeric_limits<double>::infinity()
                             : decode_sum_s_ / static_cast<double>(decodes_);
  }
  return sched::admit(options_.admission, ttft_s, job(id).input_tokens,
                      {.decoding = decode_shares_,
                       .prefilling = prefill_shares_,
                       .prefill_queue_s = queue_s / static_cast<double>(views_.size()),
                       .decode_instances = nodes_.size(),
                       .decode_s = decode_s,
                       .timing = timing_.decode});
}

Status Cluster::arrive(JobId id) {
  if (input_tokens(id) + output_tokens(id) > engine_options_.capacity_tokens()) {
    finish(id, Outcome::kNoInstance);
    return {};
  }
  const sched::Route chosen = route(id);
  if (!chosen.exists()) {
    finish(id, Outcome::kNoInstance);
    return {};
  }
  report_.records[id].predicted_ttft_s = chosen.ttft_s;
  switch (verdict(id, chosen.ttft_s)) {
    case sched::Verdict::kAdmit:
      return dispatch(id, chosen);
    case sched::Verdict::kRejectPrefill:
      finish(id, Outcome::kRejectedPrefill);
      break;
    case sched::Verdict::kRejectDecode:
      finish(id, Outcome::kRejectedDecode);
      break;
  }
  return {};
}

void Cluster::count_requests(Node& node) {
  node.requests.add(node.requests_since_s, now_s_, static_cast<double>(node.jobs.size()));
  node.requests_since_s = now_s_;
}

Status Cluster::dispatch(JobId id, const sched::Route& chosen) {
  const auto at = static_cast<std::uint32_t>(chosen.instance);
  Node& node = *nodes_[at];
  count_requests(node);
  RequestRecord& record = report_.records[id];
  record.prefill = record.decode = at;
  JobState& state = jobs_[id];
  state.expected_prefill_s = chosen.kv.prefill_s;
  state.expected_tokens = input_tokens(id) - std::min(chosen.kv.hit_tokens, input_tokens(id) - 1);
  node.queued_s += state.expected_prefill_s;
  node.queued_tokens += state.expected_tokens;
  node.jobs.push_back(id);
  node.prefilling.push_back(id);
  for (const std::uint32_t block : path(id)) ++node.coming[block];
  if (begin_transfer(id, at, chosen.kv)) return {};
  return submit(id);
}

void Cluster::send(JobId id, Cargo cargo, LinkNetwork::Transfer transfer) {
  transfer.tag = id;
  jobs_[id].cargo = cargo;
  jobs_[id].transfer = network_.start(now_s_, transfer);
  timers_.set(kNetworkSlot, network_.next_s());
}

// False: the plan needs no transfer.
bool Cluster::begin_transfer(JobId id, std::uint32_t at, const sched::KvPlan& plan) {
  if (plan.transfer_tokens == 0) return false;
  JobState& state = jobs_[id];
  const bool is_peer = plan.source == sched::KvSource::kPeer;
  PrefixCache& cache = is_peer ? nodes_[plan.peer]->cache : pool_;
  state.source = is_peer ? static_cast<std::uint32_t>(plan.peer) : kNoNode;
  state.source_blocks = cache.match(path(id));
  state.source_generation = cache.generation();
  cache.hold(path(id).first(state.source_blocks));
  state.ready_tokens = plan.hit_tokens;
  state.is_waiting_for_kv = true;
  report_.records[id].transferred_tokens += plan.transfer_tokens;
  const double bytes = kv_bytes(plan.transfer_tokens);
  (is_peer ? report_.peer_bytes : report_.pool_read_bytes) += bytes;
  const sched::LinkSpeed& link = is_peer ? options_.link : options_.pool_link;
  LinkNetwork::Transfer transfer{.link_count = 2,
                                 .bytes = bytes,
                                 .latency_s = link.latency_s,
                                 .most_bytes_per_s = link.transfer_bytes_per_s};
  if (is_peer) {
    transfer.links = {nodes_[plan.peer]->ports.out, nodes_[at]->ports.in};
  } else {
    transfer.links = {pool_out_, nodes_[at]->ports.pool_in};
  }
  send(id, is_peer ? Cargo::kPeerPrefix : Cargo::kPoolPrefix, transfer);
  return true;
}

Status Cluster::submit(JobId id) {
  Node& node = *nodes_[report_.records[id].prefill];
  JobState& state = jobs_[id];
  if (engine_options_.prefix_caching) {
    const std::uint64_t per = workload_.block_tokens() / engine_options_.block_tokens;
    const std::uint64_t full = input_tokens(id) / engine_options_.block_tokens;
    state.keys.clear();
    for (const std::uint32_t block : path(id)) {
      for (std::uint64_t i = 0; i < per && state.keys.size() < full; ++i) {
        state.keys.push_back(std::uint64_t{block} * per + i);
      }
    }
  }
  CACHALOT_TRY(node.engine->submit({.id = id,
                                    .arrival_s = now_s_,
                                    .input_tokens = input_tokens(id),
                                    .output_tokens = output_tokens(id),
                                    .keys = state.keys,
                                    .ready_tokens = state.ready_tokens}));
  timers_.set(node_slot(node.instance), node.engine->next_event_s());
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
  for (const std::uint32_t block : path(id)) {
    const auto block_found = node.coming.find(block);
    if (--block_found->second == 0) node.coming.erase(block_found);
  }
}

void Cluster::leave_decoding(JobId id) {
  JobState& state = jobs_[id];
  if (!state.is_decoding) return;
  state.is_decoding = false;
  decoding_[state.decoding_place] = decoding_.back();
  jobs_[decoding_.back()].decoding_place = state.decoding_place;
  decoding_.pop_back();
}

void Cluster::first_token(Node& node, JobId id, const RequestTimes& times) {
  RequestRecord& record = report_.records[id];
  leave_prefilling(node, id);
  node.cache.store(path(id));
  node.report.most_cached_blocks = std::max(node.report.most_cached_blocks, node.cache.size());
  record.hit_tokens = std::min(times.hit_tokens, job(id).input_tokens);
  record.prefill_begin_s = times.scheduled_s;
  // What came before a failure has been seen already.
  if (record.first_token_s == 0) record.first_token_s = now_s_;
  node.report.hit_tokens += record.hit_tokens;
  node.report.input_tokens += job(id).input_tokens;
  report_.prefill_s +=
      sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, record.hit_tokens);
  report_.prefill_cold_s += sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, 0);
  report_.input_tokens += job(id).input_tokens;
  report_.hit_tokens += record.hit_tokens;
  report_.transferred_tokens += record.transferred_tokens;
  report_.full_blocks += job(id).input_tokens / workload_.block_tokens();
  report_.hit_full_blocks += record.hit_tokens / workload_.block_tokens();
  jobs_[id].decoding_place = decoding_.size();
  jobs_[id].is_decoding = true;
  decoding_.push_back(id);
  const std::uint64_t new_tokens = job(id).input_tokens - record.hit_tokens;
  if (!has_pool() || new_tokens == 0) return;
  const double bytes = kv_bytes(new_tokens);
  report_.pool_write_bytes += bytes;
  send(id, Cargo::kPoolStore,
       {.links = {node.ports.pool_out, pool_in_},
        .link_count = 2,
        .bytes = bytes,
        .latency_s = options_.pool_link.latency_s,
        .most_bytes_per_s = options_.pool_link.transfer_bytes_per_s});
}

void Cluster::finished(Node& node, JobId id) {
  ++node.report.requests;
  node.jobs.erase(std::find(node.jobs.begin(), node.jobs.end(), id));
  leave_decoding(id);
  ++decodes_;
  decode_sum_s_ += now_s_ - report_.records[id].first_token_s;
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

void Cluster::release_source(JobId id) {
  JobState& state = jobs_[id];
  PrefixCache& cache = state.cargo == Cargo::kPeerPrefix ? nodes_[state.source]->cache : pool_;
  if (cache.generation() == state.source_generation) {
    cache.release(path(id).first(state.source_blocks));
  }
}

Status Cluster::end_transfer(JobId id) {
  JobState& state = jobs_[id];
  state.transfer = kNoTransfer;
  if (state.cargo == Cargo::kPoolStore) {
    pool_.store(path(id));
    report_.pool_blocks = std::max(report_.pool_blocks, pool_.size());
    return {};
  }
  release_source(id);
  Node& node = *nodes_[report_.records[id].prefill];
  node.cache.store(path(id).first(state.source_blocks));
  node.report.most_cached_blocks = std::max(node.report.most_cached_blocks, node.cache.size());
  state.is_waiting_for_kv = false;
  return submit(id);
}

void Cluster::finish(JobId id, Outcome outcome) {
  RequestRecord& record = report_.records[id];
  CACHALOT_CHECK(record.outcome == Outcome::kOpen);
  record.outcome = outcome;
  record.end_s = now_s_;
  --in_flight_;
  if (options_.closed_loop != 0) timers_.set(arrival_slot(), next_arrival_s());
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
