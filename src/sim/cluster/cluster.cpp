#include "sim/cluster/cluster.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

Ports Cluster::make_ports() {
  Ports ports;
  ports.out = network_.add_link(options_.link.bytes_per_s);
  ports.in = network_.add_link(options_.link.bytes_per_s);
  if (!has_pool()) return ports;
  ports.pool_out = network_.add_link(options_.pool_link.bytes_per_s);
  ports.pool_in = network_.add_link(options_.pool_link.bytes_per_s);
  return ports;
}

void Cluster::make_nodes() {
  if (has_pool()) {
    // Without a limit it is what all ports reach.
    const double most = options_.pool_link.bytes_per_s * (options_.prefill + options_.decode);
    pool_in_ = network_.add_link(std::min(options_.pool_bytes_per_s, most));
    pool_out_ = network_.add_link(std::min(options_.pool_bytes_per_s, most));
  }
  if (has_storage()) {
    storage_in_ = network_.add_link(options_.storage_link.bytes_per_s);
    storage_out_ = network_.add_link(options_.storage_link.bytes_per_s);
  }
  for (std::uint32_t i = 0; i < options_.prefill; ++i) {
    prefill_.emplace_back(options_).ports = make_ports();
    prefill_.back().report.instance = i;
  }
  for (std::uint32_t i = 0; i < options_.decode; ++i) {
    decode_.emplace_back(options_, *timing_.decode).ports = make_ports();
    decode_.back().report.instance = i;
    decode_.back().report.is_decode = true;
  }
}

ClusterReport Cluster::run(const std::function<void(double)>& on_progress) {
  constexpr JobId kProgressEvery = 256;
  timers_.set(arrival_slot(), next_arrival_s());
  if (!changes_.empty()) timers_.set(change_slot(), changes_[0].at_s);
  JobId reported = 0;
  while (timers_.first_time() < kNever) {
    now_s_ = timers_.first_time();
    step(timers_.first());
    if (on_progress && next_arrival_ >= reported + kProgressEvery) {
      reported = next_arrival_;
      on_progress(static_cast<double>(reported) / static_cast<double>(jobs_.size()));
    }
  }
  return finish_report();
}

void Cluster::step(std::size_t slot) {
  if (slot == kNetworkSlot) {
    while (const std::optional<std::uint64_t> tag = network_.pop(now_s_)) {
      const auto id = static_cast<JobId>(*tag);
      if ((*tag & kStorageWriteTag) != 0) {
        storage_.store(path(id));
        report_.storage_blocks = std::max(report_.storage_blocks, storage_.size());
      } else {
        end_transfer(id);
      }
    }
    timers_.set(kNetworkSlot, network_.next_s());
  } else if (slot < decode_slot(0)) {
    end_prefill(static_cast<std::uint32_t>(slot - prefill_slot(0)));
  } else if (slot < change_slot()) {
    end_decode_step(static_cast<std::uint32_t>(slot - decode_slot(0)));
  } else if (slot == change_slot()) {
    const Membership membership = changes_[next_change_++];
    timers_.set(slot, next_change_ < changes_.size() ? changes_[next_change_].at_s : kNever);
    change(membership);
  } else {
    const JobId id = next_arrival_++;
    ++in_flight_;
    if (options_.pass_requests != 0 && id % options_.pass_requests == 0) {
      pass_first_ = id;
      pass_start_s_ = now_s_;
    }
    report_.records[id].arrival_s = now_s_;
    timers_.set(slot, next_arrival_s());
    arrive(id);
  }
}

double Cluster::next_arrival_s() const {
  if (next_arrival_ == jobs_.size()) return kNever;
  const bool begins_pass =
      options_.pass_requests != 0 && next_arrival_ % options_.pass_requests == 0;
  if (options_.closed_loop == 0) {
    if (begins_pass && next_arrival_ != 0) return in_flight_ == 0 ? now_s_ : kNever;
    return pass_start_s_ + job(next_arrival_).arrival_s - job(pass_first_).arrival_s;
  }
  return in_flight_ < (begins_pass ? 1 : options_.closed_loop) ? now_s_ : kNever;
}

// Held, or computed by then.
std::size_t Cluster::expected_blocks(const PrefillNode& node, JobId id) const {
  const std::span<const std::uint32_t> blocks = path(id);
  std::size_t expected = node.cache.match(blocks);
  while (expected < blocks.size() && node.coming.contains(blocks[expected])) ++expected;
  return expected;
}

// The blocks of a request that is queued or runs, and of one that does no more.
void Cluster::expect(PrefillNode& node, JobId id) {
  for (const std::uint32_t block : path(id)) ++node.coming[block];
}
void Cluster::expect_no_more(PrefillNode& node, JobId id) {
  for (const std::uint32_t block : path(id)) {
    const auto found = node.coming.find(block);
    if (--found->second == 0) node.coming.erase(found);
  }
}

sched::Route Cluster::route(JobId id) {
  views_.resize(prefill_.size());
  for (std::size_t i = 0; i < prefill_.size(); ++i) {
    const PrefillNode& node = prefill_[i];
    const double running_s = node.running == kNoJob ? 0 : node.end_s - now_s_;
    views_[i] = {.accepts = node.accepts,
                 .queue_s = running_s + node.queued_s,
                 .requests = node.requests(),
                 .hit_tokens = workload_.tokens_of(job(id), expected_blocks(node, id)),
                 .held_tokens = workload_.tokens_of(job(id), node.cache.match(path(id))),
                 .sending = network_.in_flight(node.ports.out),
                 .receiving = network_.in_flight(node.ports.in),
                 .pool_reads = has_pool() ? network_.in_flight(node.ports.pool_in) : 0};
  }
  sched::RequestView request{.input_tokens = job(id).input_tokens};
  if (has_pool()) request.pool_hit_tokens = workload_.tokens_of(job(id), pool_.match(path(id)));
  if (has_storage()) {
    request.storage_hit_tokens = workload_.tokens_of(job(id), storage_.match(path(id)));
  }
  return sched::route(options_.routing, request,
                      {.prefill = views_,
                       .timing = timing_.prefill,
                       .kv_bytes_per_token = options_.kv_bytes_per_token,
                       .link = options_.link,
                       .pool = options_.pool_link,
                       .storage = options_.storage_link,
                       .storage_reads = has_storage() ? network_.in_flight(storage_out_) : 0,
                       .turn = turn_++,
                       .random = rng_.next()});
}

sched::Verdict Cluster::verdict(JobId id, double ttft_s) {
  using sched::AdmissionKind;
  decode_shares_.clear();
  prefill_shares_.clear();
  const AdmissionKind kind = options_.admission.kind;
  if (kind == AdmissionKind::kEarly || kind == AdmissionKind::kPredictive) {
    for (const JobId other : decoding_) {
      decode_shares_.push_back(
          {report_.records[other].first_token_s - now_s_, job(other).input_tokens});
    }
  }
  if (kind == AdmissionKind::kPredictive) {
    for (const PrefillNode& node : prefill_) {
      double at_s = node.running == kNoJob ? 0 : node.end_s - now_s_;
      if (node.running != kNoJob) prefill_shares_.push_back({at_s, job(node.running).input_tokens});
      for (const JobId other : node.queue) {
        at_s += jobs_[other].expected_prefill_s;
        prefill_shares_.push_back({at_s, job(other).input_tokens});
      }
    }
  }
  double queue_s = 0;
  for (const sched::PrefillView& view : views_) queue_s += view.queue_s;
  queue_s /= static_cast<double>(views_.size());
  double decode_s = options_.assumed_decode_s;
  if (decode_s == 0) {
    double running_s = 0;
    for (const JobId other : decoding_) running_s += now_s_ - report_.records[other].first_token_s;
    decode_s = sched::mean_decode_seconds(decode_sum_s_, decodes_, running_s);
  }
  return sched::admit(options_.admission, ttft_s, job(id).input_tokens,
                      {.decoding = decode_shares_,
                       .prefilling = prefill_shares_,
                       .prefill_queue_s = queue_s,
                       .decode_instances = decode_.size(),
                       .decode_s = decode_s,
                       .timing = timing_.decode});
}

void Cluster::arrive(JobId id) {
  const sched::Route chosen = route(id);
  if (!chosen.exists()) return finish(id, Outcome::kNoInstance);
  report_.records[id].predicted_ttft_s = chosen.ttft_s;
  switch (verdict(id, chosen.ttft_s)) {
    case sched::Verdict::kAdmit:
      return dispatch(id, chosen);
    case sched::Verdict::kRejectPrefill:
      return finish(id, Outcome::kRejectedPrefill);
    case sched::Verdict::kRejectDecode:
      return finish(id, Outcome::kRejectedDecode);
  }
}

void Cluster::count_queue(PrefillNode& node) {
  node.queued.add(node.queued_since_s, now_s_, static_cast<double>(node.requests()));
  node.queued_since_s = now_s_;
}

void Cluster::dispatch(JobId id, const sched::Route& chosen) {
  const auto at = static_cast<std::uint32_t>(chosen.instance);
  PrefillNode& node = prefill_[at];
  count_queue(node);
  report_.records[id].prefill = at;
  jobs_[id].expected_prefill_s = chosen.kv.prefill_s;
  node.queued_s += chosen.kv.prefill_s;
  node.queue.push_back(id);
  expect(node, id);
  begin_transfer(id, at, chosen.kv);
  try_start(at);
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
  if (plan.fetch_tokens != 0) return begin_fetch(id, plan);
  JobState& state = jobs_[id];
  const bool is_peer = plan.source == sched::KvSource::kPeer;
  PrefixCache& cache = is_peer ? prefill_[plan.peer].cache : pool_;
  state.source = is_peer ? static_cast<std::uint32_t>(plan.peer) : kNoNode;
  state.source_blocks = cache.match(path(id));
  state.source_generation = cache.generation();
  cache.hold(path(id).first(state.source_blocks));
  state.ready_tokens = plan.hit_tokens;
  state.is_waiting_for_kv = true;
  report_.records[id].transferred_tokens += plan.transfer_tokens;
  const double bytes = kv_bytes(plan.transfer_tokens);
  if (is_peer) {
    report_.peer_bytes += bytes;
    state.peer_tokens += plan.transfer_tokens;
    send(id, Cargo::kPeerPrefix,
         {.links = {prefill_[plan.peer].ports.out, prefill_[at].ports.in},
          .link_count = 2,
          .bytes = bytes,
          .latency_s = options_.link.latency_s,
          .most_bytes_per_s = options_.link.transfer_bytes_per_s});
  } else {
    report_.pool_read_bytes += bytes;
    state.pool_tokens += plan.transfer_tokens;
    send(id, Cargo::kPoolPrefix,
         {.links = {pool_out_, prefill_[at].ports.pool_in},
          .link_count = 2,
          .bytes = bytes,
          .latency_s = options_.pool_link.latency_s,
          .most_bytes_per_s = options_.pool_link.transfer_bytes_per_s});
  }
  return true;
}

// The pool may have more now than when the request came: what requests before it have computed.
bool Cluster::read_more_from_pool(JobId id, std::uint32_t at, std::uint64_t hit_tokens) {
  if (!has_pool() || jobs_[id].has_looked_again) return false;
  jobs_[id].has_looked_again = true;
  return begin_transfer(id, at, plan_from_pool(id, at, hit_tokens, true));
}

void Cluster::try_start(std::uint32_t at) {
  PrefillNode& node = prefill_[at];
  if (node.running != kNoJob || node.queue.empty()) return;
  const JobId id = node.queue.front();
  JobState& state = jobs_[id];
  if (state.is_waiting_for_kv) return;
  const std::size_t own_blocks = node.cache.match(path(id));
  const std::uint64_t hit_tokens =
      std::max(state.ready_tokens, workload_.tokens_of(job(id), own_blocks));
  if (read_more_from_pool(id, at, hit_tokens)) return;
  node.queue.pop_front();
  node.queued_s = node.queue.empty() ? 0 : node.queued_s - state.expected_prefill_s;
  node.running = id;
  node.held_blocks = own_blocks;
  node.cache.hold(path(id).first(own_blocks));
  state.prefill_s = sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, hit_tokens);
  report_.records[id].hit_tokens = hit_tokens;
  report_.records[id].prefill_begin_s = node.begin_s = now_s_;
  node.end_s = now_s_ + state.prefill_s;
  timers_.set(prefill_slot(at), node.end_s);
}

void Cluster::end_prefill(std::uint32_t at) {
  PrefillNode& node = prefill_[at];
  const JobId id = node.running;
  const JobState& state = jobs_[id];
  RequestRecord& record = report_.records[id];
  count_queue(node);
  count_tiers(id);
  node.cache.release(path(id).first(node.held_blocks));
  node.cache.store(path(id));
  expect_no_more(node, id);
  node.report.most_cached_blocks = std::max(node.report.most_cached_blocks, node.cache.size());
  node.busy.add(node.begin_s, now_s_, 1);
  node.report.busy_s += state.prefill_s;
  ++node.report.requests;
  node.report.hit_tokens += record.hit_tokens;
  node.report.input_tokens += job(id).input_tokens;
  report_.prefill_s += state.prefill_s;
  report_.prefill_cold_s += sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, 0);
  report_.input_tokens += job(id).input_tokens;
  report_.hit_tokens += record.hit_tokens;
  report_.transferred_tokens += record.transferred_tokens;
  report_.full_blocks += job(id).input_tokens / workload_.block_tokens();
  report_.hit_full_blocks += record.hit_tokens / workload_.block_tokens();
  record.first_token_s = now_s_;
  node.running = kNoJob;
  node.end_s = kNever;
  timers_.set(prefill_slot(at), kNever);
  jobs_[id].source = at;
  hand_over(id);
  try_start(at);
  leave_if_empty(node);
}

// Chooses the decode instance; with a pool the KV goes there first.
void Cluster::hand_over(JobId id) {
  RequestRecord& record = report_.records[id];
  const bool decodes = !decode_.empty() && job(id).output_tokens > 1;
  if (decodes) {
    decode_views_.resize(decode_.size());
    for (std::size_t i = 0; i < decode_.size(); ++i) {
      const DecodeSide& side = decode_[i];
      decode_views_[i] = {.sequences = side.node.running() + side.chosen,
                          .context_tokens = side.node.context_tokens() + side.chosen_tokens,
                          .reserved_tokens = side.node.reserved_tokens() + side.waiting_reserve,
                          .capacity_tokens = options_.decode_capacity_tokens};
    }
    const sched::DecodeChoice choice = sched::choose_decode(
        decode_views_, *timing_.decode,
        {job(id).input_tokens + 1, job(id).input_tokens + job(id).output_tokens});
    if (!choice.exists() || !sched::admits_to_decode(options_.admission, choice)) {
      report_.wasted_prefill_s += jobs_[id].prefill_s;
      finish(id, Outcome::kWasted);
    } else {
      record.decode = static_cast<std::uint32_t>(choice.instance);
      DecodeSide& side = decode_[choice.instance];
      ++side.chosen;
      side.chosen_tokens += job(id).input_tokens + 1;
      side.waiting_reserve += job(id).input_tokens + job(id).output_tokens;
      jobs_[id].decoding_place = decoding_.size();
      decoding_.push_back(id);
    }
  }
  const std::uint64_t new_tokens = job(id).input_tokens - record.hit_tokens;
  if (has_pool() && new_tokens != 0) {
    const double bytes = kv_bytes(new_tokens);
    report_.pool_write_bytes += bytes;
    send(id, Cargo::kPoolStore,
         {.links = {prefill_[record.prefill].ports.pool_out, pool_in_},
          .link_count = 2,
          .bytes = bytes,
          .latency_s = options_.pool_link.latency_s,
          .most_bytes_per_s = options_.pool_link.transfer_bytes_per_s});
  } else if (record.decode != kNoNode) {
    decode_[record.decode].waiting.push_back(id);
    fill_decode(record.decode);
  }
  if (!decodes) finish(id, Outcome::kCompleted);
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
  report_.handover_bytes += bytes;
  const Ports& to = decode_[at].ports;
  const sched::LinkSpeed& link = has_pool() ? options_.pool_link : options_.link;
  LinkNetwork::Transfer transfer{.link_count = 2,
                                 .bytes = bytes,
                                 .latency_s = link.latency_s,
                                 .most_bytes_per_s = link.transfer_bytes_per_s};
  transfer.links = has_pool() ? std::array<LinkId, 4>{pool_out_, to.pool_in}
                              : std::array<LinkId, 4>{prefill_[jobs_[id].source].ports.out, to.in};
  send(id, Cargo::kHandover, transfer);
}

void Cluster::release_source(JobId id) {
  JobState& state = jobs_[id];
  PrefixCache& cache = source_of(id);
  if (cache.generation() == state.source_generation) {
    cache.release(path(id).first(state.source_blocks));
  }
}

void Cluster::end_transfer(JobId id) {
  JobState& state = jobs_[id];
  RequestRecord& record = report_.records[id];
  state.transfer = kNoTransfer;
  switch (state.cargo) {
    case Cargo::kPeerPrefix:
    case Cargo::kPoolPrefix: {
      release_source(id);
      PrefillNode& node = prefill_[record.prefill];
      node.cache.store(path(id).first(state.source_blocks));
      node.report.most_cached_blocks = std::max(node.report.most_cached_blocks, node.cache.size());
      state.is_waiting_for_kv = false;
      return try_start(record.prefill);
    }
    case Cargo::kStorageFetch:
      return end_fetch(id);
    case Cargo::kPoolStore:
      pool_.store(path(id));
      if (has_storage()) write_to_storage(id);
      report_.pool_blocks = std::max(report_.pool_blocks, pool_.size());
      if (record.decode == kNoNode) return;
      decode_[record.decode].waiting.push_back(id);
      return fill_decode(record.decode);
    case Cargo::kHandover: {
      DecodeSide& side = decode_[record.decode];
      --side.chosen;
      side.chosen_tokens -= job(id).input_tokens + 1;
      side.node.enter({.job = id,
                       .context_tokens = job(id).input_tokens + 1,
                       .tokens_left = job(id).output_tokens - 1,
                       .last_token_s = record.first_token_s},
                      now_s_);
      timers_.set(decode_slot(record.decode), side.node.next_s());
      return;
    }
  }
}

void Cluster::end_decode_step(std::uint32_t at) {
  DecodeSide& side = decode_[at];
  const double goal_s = options_.admission.tbt_slo_s;
  const double begin_s = now_s_ - side.node.step_s();
  side.running.add(begin_s, now_s_, static_cast<double>(side.node.running()));
  if (std::isfinite(goal_s)) side.load.add(begin_s, now_s_, side.node.step_s() / goal_s);
  ended_.clear();
  side.node.step(gaps_, ended_);
  for (const JobId id : ended_) {
    ++side.report.requests;
    ++decodes_;
    decode_sum_s_ += now_s_ - report_.records[id].first_token_s;
    decoding_[jobs_[id].decoding_place] = decoding_.back();
    jobs_[decoding_.back()].decoding_place = jobs_[id].decoding_place;
    decoding_.pop_back();
    finish(id, Outcome::kCompleted);
  }
  if (!ended_.empty()) fill_decode(at);
  timers_.set(decode_slot(at), side.node.next_s());
}

void Cluster::finish(JobId id, Outcome outcome) {
  RequestRecord& record = report_.records[id];
  CACHALOT_CHECK(record.outcome == Outcome::kOpen);
  record.outcome = outcome;
  record.end_s = now_s_;
  --in_flight_;
  if (options_.closed_loop != 0 || options_.pass_requests != 0) {
    timers_.set(arrival_slot(), next_arrival_s());
  }
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
