#include "sched/policy/routing.h"

#include <algorithm>

#include "sched/policy/names.h"

namespace cachalot::sched {
namespace {

constexpr Name<RoutingKind> kRoutingNames[] = {
    {RoutingKind::kRandom, "random"},
    {RoutingKind::kRoundRobin, "round_robin"},
    {RoutingKind::kLeastLoaded, "least_loaded"},
    {RoutingKind::kPowerOfTwo, "power_of_two"},
    {RoutingKind::kPrefix, "prefix"},
    {RoutingKind::kLocal, "local"},
    {RoutingKind::kConductor, "conductor"},
    {RoutingKind::kCacheAware, "cache_aware"},
};

std::size_t accepting(const ClusterView& cluster) {
  return static_cast<std::size_t>(std::count_if(cluster.prefill.begin(), cluster.prefill.end(),
                                                [](const PrefillView& v) { return v.accepts; }));
}

// The accepting instance with the given place among the accepting ones.
std::size_t nth_accepting(const ClusterView& cluster, std::uint64_t place) {
  for (std::size_t i = 0; i < cluster.prefill.size(); ++i) {
    if (cluster.prefill[i].accepts && place-- == 0) return i;
  }
  return kNoInstance;
}

// The first accepting instance that is before all others.
template <class Before>
std::size_t first_accepting(const ClusterView& cluster, Before is_before) {
  std::size_t best = kNoInstance;
  for (std::size_t i = 0; i < cluster.prefill.size(); ++i) {
    if (!cluster.prefill[i].accepts) continue;
    if (best == kNoInstance || is_before(cluster.prefill[i], cluster.prefill[best])) best = i;
  }
  return best;
}

bool is_less_loaded(const PrefillView& a, const PrefillView& b) {
  return a.queue_s != b.queue_s ? a.queue_s < b.queue_s : a.requests < b.requests;
}
bool has_fewer_requests(const PrefillView& a, const PrefillView& b) {
  return a.requests < b.requests;
}
bool has_longer_prefix(const PrefillView& a, const PrefillView& b) {
  return a.hit_tokens != b.hit_tokens ? a.hit_tokens > b.hit_tokens : is_less_loaded(a, b);
}

std::size_t power_of_two(const ClusterView& cluster) {
  const std::uint64_t count = accepting(cluster);
  if (count == 0) return kNoInstance;
  const std::uint64_t first = (cluster.random & 0xffffffffu) % count;
  if (count == 1) return nth_accepting(cluster, 0);
  // Two different ones.
  const std::uint64_t second = (first + 1 + (cluster.random >> 32) % (count - 1)) % count;
  const std::size_t a = nth_accepting(cluster, std::min(first, second));
  const std::size_t b = nth_accepting(cluster, std::max(first, second));
  return is_less_loaded(cluster.prefill[b], cluster.prefill[a]) ? b : a;
}

// SGLang's defaults: loads are uneven where max - min > absolute and max > relative * min, in requests; a match is long
// where it is more than so large a part of the input.
constexpr std::uint64_t kImbalanceAbsolute = 32;
constexpr double kImbalanceRelative = 1.1;
constexpr double kMatchThreshold = 0.5;

std::size_t cache_aware(const RequestView& request, const ClusterView& cluster) {
  const std::size_t least = first_accepting(cluster, has_fewer_requests);
  if (least == kNoInstance) return kNoInstance;
  const std::size_t most = first_accepting(
      cluster, [](const PrefillView& a, const PrefillView& b) { return a.requests > b.requests; });
  const std::uint64_t low = cluster.prefill[least].requests;
  const std::uint64_t high = cluster.prefill[most].requests;
  const bool is_uneven = high - low > kImbalanceAbsolute &&
                         static_cast<double>(high) > kImbalanceRelative * static_cast<double>(low);
  if (is_uneven) return least;
  const std::size_t match =
      first_accepting(cluster, [](const PrefillView& a, const PrefillView& b) {
        return a.hit_tokens != b.hit_tokens ? a.hit_tokens > b.hit_tokens : a.requests < b.requests;
      });
  const double rate = static_cast<double>(cluster.prefill[match].hit_tokens) /
                      static_cast<double>(std::max<std::uint64_t>(1, request.input_tokens));
  return rate > kMatchThreshold ? match : least;
}

// For policies that choose before they look at times.
std::size_t choose(const RoutingOptions& options, const RequestView& request,
                   const ClusterView& cluster) {
  switch (options.kind) {
    case RoutingKind::kRandom: {
      const std::uint64_t count = accepting(cluster);
      return count == 0 ? kNoInstance : nth_accepting(cluster, cluster.random % count);
    }
    case RoutingKind::kRoundRobin: {
      const std::uint64_t count = accepting(cluster);
      return count == 0 ? kNoInstance : nth_accepting(cluster, cluster.turn % count);
    }
    case RoutingKind::kLeastLoaded:
      return first_accepting(cluster, is_less_loaded);
    case RoutingKind::kPowerOfTwo:
      return power_of_two(cluster);
    case RoutingKind::kPrefix:
      return first_accepting(cluster, has_longer_prefix);
    case RoutingKind::kCacheAware:
      return cache_aware(request, cluster);
    case RoutingKind::kLocal:
    case RoutingKind::kConductor:
      break;
  }
  return kNoInstance;
}

// Whether another instance's prefix is so much longer that it counts. A prefix of 0 is exceeded by any.
bool is_much_longer(std::uint64_t best, std::uint64_t own, double threshold) {
  return best > own && static_cast<double>(best) > threshold * static_cast<double>(own);
}

// The instance that has the longest prefix; of several the one that sends least. Instances that do not accept
// requests still send, as long as they are in the snapshot with a prefix.
std::size_t longest_prefix(const ClusterView& cluster) {
  std::size_t best = kNoInstance;
  for (std::size_t i = 0; i < cluster.prefill.size(); ++i) {
    const PrefillView& view = cluster.prefill[i];
    if (view.held_tokens == 0) continue;
    if (best == kNoInstance || view.held_tokens > cluster.prefill[best].held_tokens ||
        (view.held_tokens == cluster.prefill[best].held_tokens &&
         view.sending < cluster.prefill[best].sending)) {
      best = i;
    }
  }
  return best;
}

Route fastest(const RoutingOptions& options, const RequestView& request,
              const ClusterView& cluster) {
  const bool uses_peers = options.kind == RoutingKind::kConductor;
  const std::size_t peer = uses_peers ? longest_prefix(cluster) : kNoInstance;
  Route best;
  for (std::size_t i = 0; i < cluster.prefill.size(); ++i) {
    const PrefillView& view = cluster.prefill[i];
    if (!view.accepts) continue;
    KvPlan plan = plan_with_pool(request, cluster, i);
    if (peer != kNoInstance && is_much_longer(cluster.prefill[peer].held_tokens, view.hit_tokens,
                                              options.balancing_threshold)) {
      const KvPlan with_peer = plan_from_peer(request, cluster, i, peer);
      if (with_peer.cost_s() < plan.cost_s()) plan = with_peer;
    }
    const double ttft_s = view.queue_s + plan.cost_s();
    if (!best.exists() || ttft_s < best.ttft_s) best = Route{i, plan, ttft_s};
  }
  return best;
}

}  // namespace

std::string routing_names(const char* separator) {
  return list_names(kRoutingNames, separator);
}

Result<RoutingKind> parse_routing(std::string_view name) {
  return parse_name("no routing", kRoutingNames, name);
}

Route route(const RoutingOptions& options, const RequestView& request, const ClusterView& cluster) {
  if (options.kind == RoutingKind::kLocal || options.kind == RoutingKind::kConductor) {
    return fastest(options, request, cluster);
  }
  Route chosen;
  chosen.instance = choose(options, request, cluster);
  if (!chosen.exists()) return chosen;
  chosen.kv = plan_with_pool(request, cluster, chosen.instance);
  chosen.ttft_s = cluster.prefill[chosen.instance].queue_s + chosen.kv.cost_s();
  return chosen;
}

}  // namespace cachalot::sched
