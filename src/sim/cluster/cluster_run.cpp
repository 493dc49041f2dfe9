#include "sim/cluster/cluster.h"

#include <algorithm>
#include <cmath>

#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

Cluster::Cluster(const ClusterOptions& options, const Workload& workload,
                 const ClusterTiming& timing)
    : CachingCluster(options, workload, timing, options.prefill + options.decode),
      storage_(options.eviction, options.storage_capacity_blocks),
      jobs_(workload.jobs().size()) {
  if (has_storage()) {
    storage_in_ = network_.add_link(options.storage_link.bytes_per_s);
    storage_out_ = network_.add_link(options.storage_link.bytes_per_s);
  }
  for (std::uint32_t i = 0; i < options.prefill; ++i) {
    add_instance(prefill_.emplace_back(options, i));
  }
  for (std::uint32_t i = 0; i < options.decode; ++i) {
    decode_.emplace_back(options, *timing.decode).ports = make_ports();
    decode_.back().report.instance = i;
    decode_.back().report.is_decode = true;
  }
}

Result<ClusterReport> Cluster::run(const std::function<void(double)>& on_progress) {
  CACHALOT_TRY(run_events(on_progress));
  return finish_report();
}

Status Cluster::on_transfer_end(std::uint64_t tag) {
  const auto id = static_cast<JobId>(tag);
  if ((tag & kStorageWriteTag) != 0) {
    storage_writes_.erase(id);
    storage_.store(path(id));
    report_.storage_blocks = std::max(report_.storage_blocks, storage_.size());
  } else if ((tag & kPeerWaitTag) != 0) {
    end_peer_wait(id);
    try_start(prefill_of(id));
  } else {
    end_transfer(id);
  }
  return {};
}

Status Cluster::on_instance(std::size_t instance) {
  if (instance < prefill_.size()) {
    end_prefill(prefill_[instance]);
  } else {
    end_decode_step(static_cast<std::uint32_t>(instance - prefill_.size()));
  }
  return {};
}

double Cluster::queue_s(const CachingInstance& instance) const {
  const PrefillNode& node = prefill_[instance.number];
  return (node.running == kNoJob ? 0 : node.end_s - now_s()) + node.queued_s;
}

std::uint64_t Cluster::requests_of(const CachingInstance& instance) const {
  return prefill_[instance.number].requests_there();
}

void Cluster::append_prefilling(std::vector<sched::DecodeShare>& shares) const {
  for (const PrefillNode& node : prefill_) {
    double at_s = node.running == kNoJob ? 0 : node.end_s - now_s();
    if (node.running != kNoJob) shares.push_back({at_s, job(node.running).input_tokens});
    for (const JobId id : node.queue) {
      at_s += jobs_[id].expected_prefill_s;
      shares.push_back({at_s, job(id).input_tokens});
    }
  }
}

Status Cluster::dispatch(JobId id, const sched::Route& chosen) {
  PrefillNode& node = prefill_[chosen.instance];
  count_requests(node);
  record(id).prefill = node.number;
  jobs_[id].expected_prefill_s = chosen.kv.prefill_s;
  node.queued_s += chosen.kv.prefill_s;
  node.queue.push_back(id);
  expect(node, id);
  begin_transfer(id, chosen.kv);
  try_start(node);
  return {};
}

// False: the plan needs no transfer.
bool Cluster::begin_transfer(JobId id, const sched::KvPlan& plan) {
  if (plan.transfer_tokens == 0) return false;
  if (plan.source == sched::KvSource::kPeer && options_.peers.is_on) {
    return ask_peers(id, prefill_of(id).cache.match(path(id)));
  }
  if (plan.fetch_tokens != 0) {
    begin_fetch(id, plan);
  } else {
    fetch_prefix(id, record(id).prefill, plan);
  }
  return true;
}

// Peers and the pool may have more now than when the request came: what requests before it have computed.
bool Cluster::read_more(JobId id, std::size_t own_blocks, std::uint64_t hit_tokens) {
  if (!jobs_[id].has_asked_again) {
    jobs_[id].has_asked_again = true;
    if (ask_peers(id, own_blocks)) return true;
  }
  if (!has_pool() || jobs_[id].has_looked_again) return false;
  jobs_[id].has_looked_again = true;
  return begin_transfer(id, plan_from_pool(id, hit_tokens, true));
}

void Cluster::try_start(PrefillNode& node) {
  if (node.running != kNoJob || node.queue.empty()) return;
  const JobId id = node.queue.front();
  JobState& state = jobs_[id];
  if (kv_[id].is_waited_for) return;
  const std::size_t own_blocks = node.cache.match(path(id));
  const std::uint64_t hit_tokens =
      std::max(kv_[id].ready_tokens, workload_.tokens_of(job(id), own_blocks));
  if (read_more(id, own_blocks, hit_tokens)) return;
  node.queue.pop_front();
  node.queued_s = node.queue.empty() ? 0 : node.queued_s - state.expected_prefill_s;
  node.running = id;
  node.held_blocks = own_blocks;
  node.cache.hold(path(id).first(own_blocks));
  state.prefill_s = sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, hit_tokens);
  record(id).hit_tokens = hit_tokens;
  record(id).prefill_begin_s = node.begin_s = now_s();
  node.end_s = now_s() + state.prefill_s;
  set_timer(node.number, node.end_s);
}

void Cluster::end_prefill(PrefillNode& node) {
  const JobId id = node.running;
  const JobState& state = jobs_[id];
  count_requests(node);
  node.cache.release(path(id).first(node.held_blocks));
  store_in_cache(node, path(id));
  expect_no_more(node, id);
  node.busy.add(node.begin_s, now_s(), 1);
  node.report.busy_s += state.prefill_s;
  ++node.report.requests;
  count_prefill(id, state.prefill_s, state.storage_tokens);
  record(id).first_token_s = now_s();
  node.running = kNoJob;
  node.end_s = kNever;
  set_timer(node.number, kNever);
  hand_over(id);
  try_start(node);
  end_if_left(node);
}

// With a pool the KV goes there first.
void Cluster::hand_over(JobId id) {
  const bool decodes = !decode_.empty() && job(id).output_tokens > 1;
  if (decodes && !choose_decode(id)) {
    report_.wasted_prefill_s += jobs_[id].prefill_s;
    finish(id, Outcome::kWasted);
  }
  if (!send_to_pool(id)) {
    // A hit in the pool is a use of the storage's copy, too.
    if (has_storage() && kv_[id].pool_tokens != 0) storage_.use(path(id));
    wait_for_decode(id);
  }
  if (!decodes) finish(id, Outcome::kCompleted);
}

// False: none can take it and keep the goal.
bool Cluster::choose_decode(JobId id) {
  decode_views_.resize(decode_.size());
  for (std::size_t i = 0; i < decode_.size(); ++i) {
    const DecodeSide& side = decode_[i];
    decode_views_[i] = {.sequences = side.node.running() + side.chosen,
                        .context_tokens = side.node.context_tokens() + side.chosen_tokens,
                        .reserved_tokens = side.node.reserved_tokens() + side.waiting_reserve,
                        .capacity_tokens = options_.decode_capacity_tokens};
  }
  const std::uint64_t input_tokens = job(id).input_tokens;
  const sched::DecodeChoice choice = sched::choose_decode(
      decode_views_, *timing_.decode, {input_tokens + 1, input_tokens + job(id).output_tokens});
  if (!choice.exists() || !sched::admits_to_decode(options_.admission, choice)) return false;
  record(id).decode = static_cast<std::uint32_t>(choice.instance);
  DecodeSide& side = decode_[choice.instance];
  ++side.chosen;
  side.chosen_tokens += input_tokens + 1;
  side.waiting_reserve += input_tokens + job(id).output_tokens;
  begin_decoding(id);
  return true;
}

void Cluster::wait_for_decode(JobId id) {
  const std::uint32_t at = record(id).decode;
  if (at == kNoNode) return;
  decode_[at].waiting.push_back(id);
  fill_decode(at);
}

// First come, first served.
void Cluster::fill_decode(std::uint32_t at) {
  DecodeSide& side = decode_[at];
  while (!side.waiting.empty()) {
    const JobId id = side.waiting.front();
    const std::uint64_t reserve = job(id).input_tokens + job(id).output_tokens;
    if (!side.node.reserve(reserve)) return;
    side.waiting.pop_front();
    side.waiting_reserve -= reserve;
    begin_handover(id, at);
  }
}

void Cluster::begin_handover(JobId id, std::uint32_t at) {
  const double bytes = kv_bytes(job(id).input_tokens);
  const Ports& to = decode_[at].ports;
  send(id, Cargo::kHandover,
       has_pool() ? transfer_over(options_.pool_link, pool_out_, to.pool_in, bytes)
                  : transfer_over(options_.link, prefill_of(id).ports.out, to.in, bytes));
}

void Cluster::end_transfer(JobId id) {
  kv_[id].transfer = kNoTransfer;
  switch (kv_[id].cargo) {
    case Cargo::kPeerQuestion:
    case Cargo::kPeerCopy:
      if (!end_peer_transfer(id)) try_start(prefill_of(id));
      return;
    case Cargo::kPeerPrefix:
    case Cargo::kPoolPrefix:
      receive_prefix(id);
      return try_start(prefill_of(id));
    case Cargo::kStorageFetch:
      return end_fetch(id);
    case Cargo::kPoolStore:
      store_in_pool(path(id));
      if (has_storage()) write_to_storage(id);
      return wait_for_decode(id);
    case Cargo::kHandover:
      return enter_decode(id);
  }
}

void Cluster::enter_decode(JobId id) {
  const std::uint32_t at = record(id).decode;
  DecodeSide& side = decode_[at];
  --side.chosen;
  side.chosen_tokens -= job(id).input_tokens + 1;
  side.node.enter({.job = id,
                   .context_tokens = job(id).input_tokens + 1,
                   .tokens_left = job(id).output_tokens - 1,
                   .last_token_s = record(id).first_token_s},
                  now_s());
  set_timer(decode_timer(at), side.node.next_s());
}

void Cluster::end_decode_step(std::uint32_t at) {
  DecodeSide& side = decode_[at];
  const double goal_s = options_.admission.tbt_slo_s;
  const double begin_s = now_s() - side.node.step_s();
  side.running.add(begin_s, now_s(), static_cast<double>(side.node.running()));
  if (std::isfinite(goal_s)) side.load.add(begin_s, now_s(), side.node.step_s() / goal_s);
  ended_.clear();
  side.node.step(gaps_, ended_);
  for (const JobId id : ended_) {
    ++side.report.requests;
    count_decode(id);
    end_decoding(id);
    finish(id, Outcome::kCompleted);
  }
  if (!ended_.empty()) fill_decode(at);
  set_timer(decode_timer(at), side.node.next_s());
}

Result<ClusterReport> simulate(const ClusterOptions& options, const Workload& workload,
                               const ClusterTiming& timing,
                               const std::function<void(double)>& on_progress) {
  CACHALOT_TRY(check(options));
  if (workload.jobs().empty()) return Error::make(Code::kInvalidArgument, "workload: no request");
  if (timing.prefill == nullptr || (timing.decode == nullptr && options.decode != 0)) {
    return Error::make(Code::kInvalidArgument, "timing: none, expected a model of each side");
  }
  return Cluster(options, workload, timing).run(on_progress);
}

}  // namespace cachalot::sim
