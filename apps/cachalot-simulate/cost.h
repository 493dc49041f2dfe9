// What a simulated cluster costs, and what a million tokens cost on it.
//
// An hour costs its GPUs, and the share of the network's price that falls on it while the hardware is written off.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "flags.h"
#include "sim/cluster/report.h"

namespace cachalot::apps {

// Prices in US dollars.
struct CostFlags {
  double gpu_hour = 2;                          // an assumption
  std::string network;                          // rdma or cxl; none: cxl with a pool, else rdma
  double nic = 1745, nic_switch = 16000;        // Beluga's table 1
  double adapter = 210, adapter_switch = 5800;  // likewise: samples, prices may change
  double years = 3;                             // until network hardware is written off
};

void add_cost_flags(Command& command, CostFlags& flags);

struct ClusterPrice {
  std::string network;
  double gpus = 0;
  std::uint64_t servers = 0, cards = 0, switches = 0;
  double gpu_usd_per_hour = 0, network_usd_per_hour = 0;

  bool operator==(const ClusterPrice&) const = default;
  double usd_per_hour() const { return gpu_usd_per_hour + network_usd_per_hour; }
};

// Servers of 8 GPUs, each with 4 NICs or 2 adapters; a switch for 16 servers, as in Beluga's cluster.
// @errors kInvalidArgument: --network
Result<ClusterPrice> price_of(const CostFlags& flags, std::uint64_t instances,
                              double gpus_per_instance, bool shared_pool);

// Over the time from the first arrival to the last end. "good": of requests within the goals.
struct RunCost {
  ClusterPrice price;
  double usd = 0;
  // None: there are no tokens.
  std::optional<double> usd_per_million_tokens = {}, usd_per_million_good_tokens = {};
};
RunCost cost_of(const ClusterPrice& price, const sim::ClusterReport& report);

}  // namespace cachalot::apps
