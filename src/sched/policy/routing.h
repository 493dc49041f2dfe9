// Which prefill instance computes a request, and with whose KV it begins.
//
//   random, round_robin   take chances or turns
//   least_loaded          the shortest queue in seconds
//   power_of_two          the shorter queue of two random ones
//   prefix                the longest prefix in its own cache, then the shortest queue
//   local                 the smallest queue + prefill with its own cache
//   conductor             the same, and where another instance has a much longer prefix: queue + transfer + prefill
//                         with that (Mooncake's Algorithm 1). The transferred KV stays, so hot prefixes spread.
//   cache_aware           SGLang's: the longest prefix unless the load is uneven or the match is short
//
// All of them read the shared pool where there is one and a transfer takes less than computing.
// An instance that does not accept is never chosen. Equal values: the lower number.
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <string_view>

#include "sched/policy/snapshot.h"
#include "sched/policy/transfer_plan.h"

namespace cachalot::sched {

enum class RoutingKind : std::uint8_t {
  kRandom,
  kRoundRobin,
  kLeastLoaded,
  kPowerOfTwo,
  kPrefix,
  kLocal,
  kConductor,
  kCacheAware,
};

std::string routing_names(const char* separator = ", ");
// @errors kInvalidArgument: no such policy; the message lists those there are
Result<RoutingKind> parse_routing(std::string_view name);

struct RoutingOptions {
  RoutingKind kind = RoutingKind::kConductor;
  // conductor: another instance's prefix counts where it is more than so many times the own one. The paper adjusts
  // it by hand and gives no value.
  double balancing_threshold = 1.0;
};

struct Route {
  std::size_t instance = kNoInstance;  // kNoInstance: no instance accepts
  KvPlan kv;
  double ttft_s = 0;  // as predicted

  bool exists() const { return instance != kNoInstance; }
};

// @cost O(instances), about two prefill estimates each for local and conductor, one in all for the others
// @source conductor: Mooncake (FAST'25) Algorithm 1; differs: own KV is used where a transfer takes longer than
//         computing the difference, and the transfer's estimate counts transfers in flight
Route route(const RoutingOptions& options, const RequestView& request, const ClusterView& cluster);

}  // namespace cachalot::sched
