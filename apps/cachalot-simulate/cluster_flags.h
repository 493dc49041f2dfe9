// The flags of `cachalot simulate` that describe the cluster.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flags.h"
#include "sim/cluster/cluster_options.h"

namespace cachalot::apps {

// As the command line has them: the units of the flags.
struct ClusterFlags {
  std::uint64_t prefill = 0, decode = 0, colocated = 0;
  std::string node_capacity_blocks = "5859";
  std::string
      pool_capacity_blocks;  // none: without --shared-pool no pool, with it the sum of the instances'
  bool shared_pool = false;
  std::string eviction = "lru";
  double link_gb_s = 100, link_latency_us = 10;
  double pool_link_gb_s = 0, pool_link_latency_us = -1;  // as the links
  double pool_gb_s = 0;                                  // 0: what the pool links reach
  std::string storage_capacity_blocks;                   // none: no storage
  double storage_gb_s = 6, storage_latency_us = 100;
  bool peers = false;
  std::uint64_t peer_cell = 0;  // all instances are one
  double peer_gb_s = 0;         // as the links
  double peer_wait_ms = -1;     // 2,000
  bool keep_peer_copies = false;
  std::string operation_bytes;  // none: transfers are not cut
  std::uint64_t operations_in_flight = 16;
  std::string decode_capacity_tokens;  // none: what the hardware has
  std::uint64_t decode_sequences = 256;
  double balancing_threshold = 1;
  double ttft_slo_ms = 0, tbt_slo_ms = 0;  // 0: none
  double assumed_decode_s = 0;
  std::string decode_prediction = "exponential", decode_check = "present";
  std::uint64_t seed = 1;
  std::vector<std::string> changes;
  double window_s = 60;
};

void add_cluster_flags(Command& command, ClusterFlags& flags);

// All but routing, admission and what the timing model says.
// @errors kInvalidArgument: a flag's value, or flags that contradict each other
Result<sim::ClusterOptions> cluster_options(const ClusterFlags& flags);

}  // namespace cachalot::apps
