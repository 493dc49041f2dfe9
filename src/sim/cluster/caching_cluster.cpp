#include "sim/cluster/caching_cluster.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::sim {

CachingCluster::CachingCluster(const ClusterOptions& options, const Workload& workload,
                               const ClusterTiming& timing, std::size_t instances)
    : KvNetwork(options, workload, instances),
      timing_(timing),
      rng_(options.seed),
      decoding_places_(workload.jobs().size()) {}

Status CachingCluster::on_change(const Membership& membership) {
  CachingInstance& instance = *instances_[membership.instance];
  switch (membership.change) {
    case Change::kJoin:
      instance.accepts = true;
      instance.is_leaving = false;
      break;
    case Change::kLeave:
      instance.accepts = false;
      instance.is_leaving = true;
      return leave_if_empty(instance);
    case Change::kFail:
      instance.accepts = false;
      return fail(instance);
  }
  return {};
}

std::size_t CachingCluster::held_blocks(const CachingInstance& instance, JobId id) const {
  return instance.cache.match(path(id));
}

// Held, or computed by then.
std::size_t CachingCluster::expected_blocks(const CachingInstance& instance, JobId id) const {
  const std::span<const std::uint32_t> blocks = path(id);
  std::size_t expected = held_blocks(instance, id);
  if (!keeps_blocks()) return expected;
  while (expected < blocks.size() && instance.coming.contains(blocks[expected])) ++expected;
  return expected;
}

void CachingCluster::expect(CachingInstance& instance, JobId id) {
  for (const std::uint32_t block : path(id)) ++instance.coming[block];
}
void CachingCluster::expect_no_more(CachingInstance& instance, JobId id) {
  for (const std::uint32_t block : path(id)) {
    const auto found = instance.coming.find(block);
    if (--found->second == 0) instance.coming.erase(found);
  }
}

sched::Route CachingCluster::route(JobId id) {
  views_.resize(instances_.size());
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    const CachingInstance& instance = *instances_[i];
    views_[i] = {.accepts = instance.accepts,
                 .queue_s = queue_s(instance),
                 .requests = requests_of(instance),
                 .hit_tokens = workload_.tokens_of(job(id), expected_blocks(instance, id)),
                 .held_tokens = workload_.tokens_of(job(id), instance.cache.match(path(id))),
                 .sending = network_.in_flight(instance.ports.out),
                 .receiving = network_.in_flight(instance.ports.in),
                 .pool_reads = has_pool() ? network_.in_flight(instance.ports.pool_in) : 0};
  }
  sched::RequestView request{.input_tokens = job(id).input_tokens};
  if (has_pool()) request.pool_hit_tokens = workload_.tokens_of(job(id), pool_.match(path(id)));
  sched::ClusterView cluster{.prefill = views_,
                             .timing = timing_.prefill,
                             .kv_bytes_per_token = options_.kv_bytes_per_token,
                             .link = options_.link,
                             .pool = options_.pool_link,
                             .turn = turn_++,
                             .random = rng_.next()};
  add_storage(id, request, cluster);
  sched::Route chosen = sched::route(options_.routing, request, cluster);
  if (options_.peers.is_on && chosen.exists()) add_peer(id, request, cluster, chosen);
  return chosen;
}

void CachingCluster::add_peer(JobId id, const sched::RequestView& request,
                              const sched::ClusterView& cluster, sched::Route& route) const {
  const CachingInstance& instance = *instances_[route.instance];
  const std::size_t own_blocks = held_blocks(instance, id);
  const std::uint32_t peer = find_peer(id, instance, own_blocks);
  if (peer == kNoNode) return;
  const std::uint64_t tokens =
      workload_.tokens_of(job(id), instances_[peer]->cache.match(path(id)));
  sched::LinkSpeed link = options_.link;
  link.latency_s *= 2;  // the question, and the answer
  link.transfer_bytes_per_s = std::min(link.transfer_bytes_per_s, options_.peers.bytes_per_s);
  const std::uint64_t transfer_tokens = tokens - workload_.tokens_of(job(id), own_blocks);
  route.kv = {.hit_tokens = std::max(tokens, views_[route.instance].hit_tokens),
              .source = sched::KvSource::kPeer,
              .peer = peer,
              .transfer_tokens = transfer_tokens,
              .transfer_s = sched::transfer_seconds(
                  link, kv_bytes(transfer_tokens),
                  std::max(views_[peer].sending, views_[route.instance].receiving))};
  route.kv.prefill_s =
      sched::prefill_seconds(*cluster.timing, request.input_tokens, route.kv.hit_tokens);
  route.ttft_s = views_[route.instance].queue_s + route.kv.cost_s();
}

Status CachingCluster::on_arrival(JobId id) {
  const sched::Route chosen = can_hold(id) ? route(id) : sched::Route();
  if (!chosen.exists()) {
    finish(id, Outcome::kNoInstance);
    return {};
  }
  record(id).predicted_ttft_s = chosen.ttft_s;
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

// Of the instances to which a request can go.
double CachingCluster::mean_queue_s() const {
  double queue_s = 0;
  std::size_t instances = 0;
  for (const sched::PrefillView& view : views_) {
    if (!view.accepts) continue;
    queue_s += view.queue_s;
    ++instances;
  }
  return queue_s / static_cast<double>(instances);
}

double CachingCluster::mean_decode_s() const {
  if (options_.assumed_decode_s != 0) return options_.assumed_decode_s;
  double running_s = 0;
  for (const JobId id : decoding_) running_s += now_s() - record(id).first_token_s;
  return sched::mean_decode_seconds(decode_sum_s_, decodes_, running_s);
}

// After route(), which has found an instance.
sched::Verdict CachingCluster::verdict(JobId id, double ttft_s) {
  using sched::AdmissionKind;
  const AdmissionKind kind = options_.admission.kind;
  if (kind == AdmissionKind::kNone) return sched::Verdict::kAdmit;
  decode_shares_.clear();
  prefill_shares_.clear();
  if (kind == AdmissionKind::kEarly || kind == AdmissionKind::kPredictive) {
    for (const JobId other : decoding_) {
      decode_shares_.push_back({record(other).first_token_s - now_s(), job(other).input_tokens});
    }
  }
  if (kind == AdmissionKind::kPredictive) append_prefilling(prefill_shares_);
  return sched::admit(options_.admission, ttft_s, job(id).input_tokens,
                      {.decoding = decode_shares_,
                       .prefilling = prefill_shares_,
                       .prefill_queue_s = mean_queue_s(),
                       .decode_instances = decode_instances(),
                       .decode_s = mean_decode_s(),
                       .timing = timing_.decode});
}

Status CachingCluster::begin_again(JobId id) {
  RequestRecord& of = record(id);
  ++of.restarts;
  of.hit_tokens = of.transferred_tokens = 0;
  of.peer_tokens = of.pool_tokens = of.storage_tokens = 0;
  kv_[id] = MovingKv();
  const sched::Route chosen = route(id);
  if (chosen.exists()) return dispatch(id, chosen);
  finish(id, Outcome::kNoInstance);
  return {};
}

void CachingCluster::count_requests(CachingInstance& instance) {
  instance.requests.add(instance.requests_since_s, now_s(),
                        static_cast<double>(requests_of(instance)));
  instance.requests_since_s = now_s();
}

void CachingCluster::count_prefill(JobId id, double prefill_s, std::uint64_t storage_tokens) {
  report_.prefill_s += prefill_s;
  report_.prefill_cold_s += sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, 0);
  const MovingKv& kv = kv_[id];
  RequestRecord& of = record(id);
  std::uint64_t left = of.hit_tokens;
  const auto take = [&](std::uint64_t tokens) {
    const std::uint64_t taken = std::min(tokens, left);
    left -= taken;
    return taken;
  };
  // What the storage brought was then read from the pool.
  const std::uint64_t fetched = std::min(storage_tokens, kv.pool_tokens);
  of.storage_tokens = take(fetched);
  of.pool_tokens = take(kv.pool_tokens - fetched);
  of.peer_tokens = take(kv.peer_tokens);
}

void CachingCluster::begin_decoding(JobId id) {
  decoding_places_[id] = decoding_.size();
  decoding_.push_back(id);
}

void CachingCluster::end_decoding(JobId id) {
  decoding_[decoding_places_[id]] = decoding_.back();
  decoding_places_[decoding_.back()] = decoding_places_[id];
  decoding_.pop_back();
}

void CachingCluster::count_decode(JobId id) {
  ++decodes_;
  decode_sum_s_ += now_s() - record(id).first_token_s;
}

void CachingCluster::begin_figures() {
  CACHALOT_CHECK(decoding_.empty());
  for (const RequestRecord& record : report_.records) {
    CACHALOT_CHECK(record.outcome != Outcome::kOpen);
  }
  for (CachingInstance* const instance : instances_) {
    count_requests(*instance);
    report_.instances.push_back(std::move(instance->report));
  }
}

void CachingCluster::finish_figures() {
  report_.has_peers = options_.peers.is_on;
  summarise(workload_, options_.admission.ttft_slo_s, options_.admission.tbt_slo_s, gaps_, report_);
  summarise_passes(workload_, options_.pass_requests, report_);
  report_.window_s = LoadSeries::length_for(options_.window_s, report_.sim_s);
  report_.bytes_transferred = network_.total_bytes();
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    const CachingInstance& instance = *instances_[i];
    const Ports& ports = instance.ports;
    InstanceReport& r = report_.instances[i];
    r.cached_blocks = instance.cache.size();
    r.evictions = instance.cache.evictions();
    r.load = instance.busy.means(report_.sim_s);
    r.queue = instance.requests.means(report_.sim_s);
    r.sent_bytes = network_.bytes(ports.out) + (has_pool() ? network_.bytes(ports.pool_out) : 0);
    r.received_bytes = network_.bytes(ports.in) + (has_pool() ? network_.bytes(ports.pool_in) : 0);
  }
}

}  // namespace cachalot::sim
