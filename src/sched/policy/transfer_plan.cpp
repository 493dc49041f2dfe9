#include "sched/policy/transfer_plan.h"

#include <algorithm>

namespace cachalot::sched {

double transfer_seconds(const LinkSpeed& link, double bytes, std::uint64_t sharing) {
  if (bytes <= 0) return 0;
  const double share = link.bytes_per_s / static_cast<double>(sharing + 1);
  return link.latency_s + bytes / std::min(share, link.transfer_bytes_per_s);
}

double prefill_seconds(const TimingModel& timing, std::uint64_t input_tokens,
                       std::uint64_t hit_tokens) {
  if (input_tokens == 0) return 0;
  return timing.prefill_seconds(input_tokens, std::min(hit_tokens, input_tokens - 1));
}

KvPlan plan_own(const RequestView& request, const ClusterView& cluster, std::size_t instance) {
  KvPlan plan;
  plan.hit_tokens = cluster.prefill[instance].hit_tokens;
  plan.prefill_s = prefill_seconds(*cluster.timing, request.input_tokens, plan.hit_tokens);
  return plan;
}

KvPlan plan_with_pool(const RequestView& request, const ClusterView& cluster,
                      std::size_t instance) {
  KvPlan best = plan_own(request, cluster, instance);
  const std::uint64_t own_tokens = best.hit_tokens;
  const auto consider = [&](std::uint64_t hit_tokens, std::uint64_t fetch_tokens) {
    KvPlan plan;
    plan.hit_tokens = hit_tokens;
    plan.source = KvSource::kPool;
    plan.transfer_tokens = hit_tokens - own_tokens;
    plan.transfer_s = transfer_seconds(
        cluster.pool, static_cast<double>(plan.transfer_tokens) * cluster.kv_bytes_per_token,
        cluster.prefill[instance].pool_reads);
    plan.fetch_tokens = fetch_tokens;
    plan.fetch_s = transfer_seconds(cluster.storage,
                                    static_cast<double>(fetch_tokens) * cluster.kv_bytes_per_token,
                                    cluster.storage_reads);
    plan.prefill_s = prefill_seconds(*cluster.timing, request.input_tokens, hit_tokens);
    if (plan.cost_s() < best.cost_s()) best = plan;
  };
  const std::uint64_t pool_tokens = request.pool_hit_tokens;
  if (pool_tokens > own_tokens) consider(pool_tokens, 0);
  const std::uint64_t storage_tokens = request.storage_hit_tokens;
  if (storage_tokens > own_tokens && storage_tokens > pool_tokens) {
    consider(storage_tokens, storage_tokens - pool_tokens);
  }
  return best;
}

KvPlan plan_from_peer(const RequestView& request, const ClusterView& cluster, std::size_t instance,
                      std::size_t peer) {
  KvPlan plan = plan_own(request, cluster, instance);
  const PrefillView& source = cluster.prefill[peer];
  if (peer == instance || source.held_tokens <= plan.hit_tokens) return plan;
  plan.source = KvSource::kPeer;
  plan.peer = peer;
  plan.transfer_tokens = source.held_tokens - plan.hit_tokens;
  plan.hit_tokens = source.held_tokens;
  plan.transfer_s = transfer_seconds(
      cluster.link, static_cast<double>(plan.transfer_tokens) * cluster.kv_bytes_per_token,
      std::max(source.sending, cluster.prefill[instance].receiving));
  plan.prefill_s = prefill_seconds(*cluster.timing, request.input_tokens, plan.hit_tokens);
  return plan;
}

}  // namespace cachalot::sched
