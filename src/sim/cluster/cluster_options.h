// What a simulated cluster is made of.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "eviction/policy_kind.h"
#include "sched/policy/admission.h"
#include "sched/policy/routing.h"
#include "sched/timing/timing_model.h"

namespace cachalot::sim {

inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

enum class Change : std::uint8_t {
  kLeave,  // takes no more requests, ends those it has, then its cache is gone
  // All at once: its requests begin again elsewhere. KV on its way to a decode instance or the pool still arrives.
  kFail,
  kJoin,  // is there again, with an empty cache
};

// A prefill instance comes or goes.
struct Membership {
  double at_s = 0;
  Change change = Change::kLeave;
  std::uint32_t instance = 0;
};

// Hosts whose keepers read each other's pools, which are the caches of the instances (cachalot serve --peers).
struct PeerOptions {
  bool is_on = false;
  std::uint32_t cell = 0;  // so many instances in a row are peers of each other; 0: all
  // That a host sends to its peers at most, beside the limit of its link.
  double bytes_per_s = std::numeric_limits<double>::infinity();
  // A prompt waits at most so long for blocks of peers, then takes those that have come.
  double most_wait_s = std::numeric_limits<double>::infinity();
  // What came from a peer is evicted first, until a second prompt uses it (eviction/wrappers/copies_first.h).
  bool copies_first = true;
};

struct ClusterOptions {
  std::uint32_t prefill = 1;
  std::uint32_t decode = 0;  // 0: only the prefill side is simulated

  // Of each prefill instance; 0: it has no cache of its own.
  std::uint64_t node_capacity_blocks = 0;
  // Of the pool that all instances share; 0: there is none.
  std::uint64_t pool_capacity_blocks = 0;
  // Of the storage behind the pool, which gets all that the pool gets; 0: there is none.
  std::uint64_t storage_capacity_blocks = 0;
  eviction::PolicyKind eviction = eviction::PolicyKind::kLru;

  double kv_bytes_per_token = 0;
  sched::LinkSpeed link;       // of each instance, each way, to the others
  sched::LinkSpeed pool_link;  // of each instance, each way, to the pool
  double pool_bytes_per_s =
      std::numeric_limits<double>::infinity();  // of the pool, each way, in all

  sched::LinkSpeed storage_link;  // between storage and pool, each way, in all

  PeerOptions peers;

  std::uint64_t decode_capacity_tokens = kUnlimited;  // KV of a decode instance
  std::uint64_t decode_most_sequences = kUnlimited;

  sched::RoutingOptions routing;
  sched::AdmissionOptions admission;  // its goals also say what a good request is
  // That a decode takes, as predictive admission assumes; 0: as mean_decode_seconds() has it so far.
  double assumed_decode_s = 0;
  std::uint64_t seed = 1;
  // Requests in flight: a request comes when another ends, whatever the trace's times; 0: the trace's times.
  std::uint64_t closed_loop = 0;
  // The first request after each so many waits until all before it have ended, and the trace's times count from it; 0:
  // none does.
  std::uint64_t pass_requests = 0;
  std::vector<Membership> changes;
  double window_s = 60;  // of the load over time
};

// @errors kInvalidArgument: names the member, its value and what was expected
Status check(const ClusterOptions& options);

}  // namespace cachalot::sim
