#include "sim/cluster/cluster_options.h"

#include <cinttypes>
#include <cmath>

namespace cachalot::sim {
namespace {

Status check_link(const char* name, const sched::LinkSpeed& link) {
  if (!(link.bytes_per_s > 0) || !std::isfinite(link.bytes_per_s)) {
    return Error::make(Code::kInvalidArgument, "%s: %g bytes/s, expected a finite number above 0",
                       name, link.bytes_per_s);
  }
  if (!(link.latency_s >= 0) || !std::isfinite(link.latency_s)) {
    return Error::make(Code::kInvalidArgument, "%s: latency of %g s, expected 0 or more", name,
                       link.latency_s);
  }
  if (!(link.transfer_bytes_per_s > 0)) {
    return Error::make(Code::kInvalidArgument, "%s: %g bytes/s a transfer, expected more than 0",
                       name, link.transfer_bytes_per_s);
  }
  return {};
}

Status check_peers(const ClusterOptions& options) {
  const PeerOptions& peers = options.peers;
  if (!peers.is_on) return {};
  if (options.node_capacity_blocks == 0) {
    return Error::make(Code::kInvalidArgument,
                       "peers: instances without caches, expected at least 1 block each");
  }
  if (!(peers.bytes_per_s > 0) || !(peers.most_wait_s >= 0)) {
    return Error::make(Code::kInvalidArgument,
                       "peers: %g bytes/s and a wait of %g s, expected more than 0 and 0 or more",
                       peers.bytes_per_s, peers.most_wait_s);
  }
  return {};
}

Status check_changes(const ClusterOptions& options) {
  for (const Membership& change : options.changes) {
    if (change.instance >= options.prefill) {
      return Error::make(Code::kInvalidArgument,
                         "change: prefill instance %u, expected one below %u", change.instance,
                         options.prefill);
    }
    if (!(change.at_s >= 0) || !std::isfinite(change.at_s)) {
      return Error::make(Code::kInvalidArgument, "change: at %g s, expected 0 or more",
                         change.at_s);
    }
  }
  return {};
}

}  // namespace

Status check(const ClusterOptions& options) {
  constexpr std::uint32_t kMostInstances = 65536;
  if (options.prefill == 0 || options.prefill > kMostInstances || options.decode > kMostInstances) {
    return Error::make(Code::kInvalidArgument,
                       "cluster: %u prefill and %u decode instances, expected 1 to %u and 0 to %u",
                       options.prefill, options.decode, kMostInstances, kMostInstances);
  }
  if (!(options.kv_bytes_per_token > 0) || !std::isfinite(options.kv_bytes_per_token)) {
    return Error::make(Code::kInvalidArgument, "kv_bytes_per_token: %g, expected more than 0",
                       options.kv_bytes_per_token);
  }
  CACHALOT_TRY(check_link("link", options.link));
  if (options.pool_capacity_blocks != 0) {
    CACHALOT_TRY(check_link("pool link", options.pool_link));
    if (!(options.pool_bytes_per_s > 0)) {
      return Error::make(Code::kInvalidArgument, "pool: %g bytes/s, expected more than 0",
                         options.pool_bytes_per_s);
    }
  }
  if (options.storage_capacity_blocks != 0) {
    if (options.pool_capacity_blocks == 0) {
      return Error::make(Code::kInvalidArgument,
                         "storage: %" PRIu64 " blocks without a pool, expected a pool before it",
                         options.storage_capacity_blocks);
    }
    CACHALOT_TRY(check_link("storage", options.storage_link));
  }
  CACHALOT_TRY(check_peers(options));
  if (options.decode != 0 &&
      (options.decode_capacity_tokens == 0 || options.decode_most_sequences == 0)) {
    return Error::make(Code::kInvalidArgument,
                       "decode: room for %" PRIu64 " tokens and %" PRIu64
                       " sequences, expected at least 1 of each",
                       options.decode_capacity_tokens, options.decode_most_sequences);
  }
  if (!eviction::has_mode(options.eviction, eviction::CacheMode::kLeaf) ||
      options.eviction == eviction::PolicyKind::kOpt) {
    return Error::make(Code::kInvalidArgument, "eviction: %s, expected one of: %s",
                       eviction::policy_name(options.eviction),
                       eviction::pool_policy_names().c_str());
  }
  if (!(options.routing.balancing_threshold > 0)) {
    return Error::make(Code::kInvalidArgument, "balancing threshold: %g, expected more than 0",
                       options.routing.balancing_threshold);
  }
  if (!(options.admission.ttft_slo_s > 0) || !(options.admission.tbt_slo_s > 0)) {
    return Error::make(Code::kInvalidArgument,
                       "goals: TTFT %g s and TBT %g s, expected more than 0",
                       options.admission.ttft_slo_s, options.admission.tbt_slo_s);
  }
  if (!(options.window_s > 0) || !(options.assumed_decode_s >= 0)) {
    return Error::make(Code::kInvalidArgument,
                       "window: %g s, expected more than 0; assumed decode: %g s, expected 0 or "
                       "more",
                       options.window_s, options.assumed_decode_s);
  }
  return check_changes(options);
}

}  // namespace cachalot::sim
