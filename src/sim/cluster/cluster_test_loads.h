// For tests of simulated clusters: loads, random options, and what holds of every report.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "sim/cluster/cluster_options.h"
#include "sim/cluster/report.h"
#include "sim/cluster/workload.h"

namespace cachalot::sim {

// Blocks of 100 tokens.
inline Workload workload_of(const std::vector<Job>& jobs,
                            const std::vector<std::vector<std::uint64_t>>& ids) {
  Workload workload(100);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_TRUE(workload.add(ids[i], jobs[i].input_tokens, jobs[i].output_tokens,
                             jobs[i].arrival_s * 1000));
  }
  EXPECT_TRUE(workload.finish(1));
  return workload;
}

inline std::uint64_t draw_below(std::uint64_t bound) {
  return *rc::gen::inRange<std::uint64_t>(0, bound);
}

// What clusters of any kind have. @param slo_unit_s  of the limits  @param most_changes_at_s  when instances come and go
inline void draw_options(ClusterOptions& o, double slo_unit_s, std::uint64_t most_changes_at_s) {
  const auto below = draw_below;
  o.prefill = static_cast<std::uint32_t>(1 + below(4));
  o.node_capacity_blocks = below(4) == 0 ? 0 : below(30);
  o.pool_capacity_blocks = below(2) == 0 ? 0 : 1 + below(60);
  o.eviction = eviction::pool_policies()[below(eviction::pool_policies().size())];
  o.kv_bytes_per_token = 1;
  o.link = {.latency_s = static_cast<double>(below(3)) / 10,
            .bytes_per_s = static_cast<double>(100 + below(5000))};
  o.pool_link = {.latency_s = 0.01,
                 .bytes_per_s = static_cast<double>(100 + below(5000)),
                 .transfer_bytes_per_s = static_cast<double>(50 + below(5000))};
  o.routing.kind = static_cast<sched::RoutingKind>(below(8));
  o.routing.balancing_threshold = 1 + static_cast<double>(below(3));
  o.admission = {.kind = static_cast<sched::AdmissionKind>(below(4)),
                 .ttft_slo_s = static_cast<double>(1 + below(20)) * slo_unit_s,
                 .tbt_slo_s = static_cast<double>(1 + below(20)) * slo_unit_s};
  o.peers = {.is_on = o.node_capacity_blocks != 0 && below(2) == 0,
             .cell = static_cast<std::uint32_t>(below(3)),
             .bytes_per_s = static_cast<double>(50 + below(5000)),
             .most_wait_s = static_cast<double>(below(30)) / 10};
  o.seed = below(100);
  for (std::uint64_t i = below(5); i-- > 0;) {
    o.changes.push_back({.at_s = static_cast<double>(below(most_changes_at_s * 10)) / 10,
                         .change = static_cast<Change>(below(3)),
                         .instance = static_cast<std::uint32_t>(below(o.prefill))});
  }
}

// Requests of up to a dozen blocks, many with a prefix of another one's. They arrive in so many steps.
inline void draw_requests(Workload& workload, std::uint64_t most_requests, std::uint64_t steps,
                          double step_ms) {
  base::Rng rng(draw_below(1'000'000));
  const std::uint64_t requests = 1 + draw_below(most_requests);
  for (std::uint64_t i = 0; i < requests; ++i) {
    std::vector<std::uint64_t> ids;
    const std::uint64_t blocks = rng.below(12);
    std::uint64_t prefix = rng.below(3);
    for (std::uint64_t b = 0; b < blocks; ++b) {
      if (rng.chance(0.2)) prefix = rng.below(6);
      ids.push_back(prefix);
    }
    const std::uint64_t input = blocks * 100 - (blocks == 0 ? 0 : rng.below(100));
    RC_ASSERT(
        workload.add(ids, input, rng.below(20), static_cast<double>(rng.below(steps)) * step_ms)
            .ok());
  }
  RC_ASSERT(workload.finish(1).ok());
}

// Each request ends once, and the tokens of requests, instances and the whole are the same.
// @param check  what else holds of a completed request
template <class Check>
void check_requests(const ClusterReport& report, const Workload& workload, Check&& check) {
  RC_ASSERT(report.completed + report.rejected() == workload.jobs().size());
  RC_ASSERT(report.good <= report.completed);
  std::uint64_t hit_tokens = 0, input_tokens = 0, of_instances = 0;
  for (std::size_t i = 0; i < report.records.size(); ++i) {
    const RequestRecord& record = report.records[i];
    const Job& job = workload.jobs()[i];
    RC_ASSERT(record.hit_tokens <= job.input_tokens);
    RC_ASSERT(record.peer_tokens + record.pool_tokens + record.storage_tokens <= record.hit_tokens);
    hit_tokens += record.hit_tokens;
    if (record.outcome == Outcome::kCompleted || record.outcome == Outcome::kWasted) {
      input_tokens += job.input_tokens;
    } else {
      RC_ASSERT(record.hit_tokens == 0);
    }
    RC_ASSERT(record.end_s >= record.arrival_s);
    if (record.outcome != Outcome::kCompleted) continue;
    RC_ASSERT(record.end_s >= record.first_token_s);
    check(record);
  }
  RC_ASSERT(report.hit_tokens == hit_tokens);
  RC_ASSERT(report.input_tokens == input_tokens);
  RC_ASSERT(report.hit_tokens_peer + report.hit_tokens_pool + report.hit_tokens_storage <=
            report.hit_tokens);
  for (const InstanceReport& instance : report.instances) of_instances += instance.hit_tokens;
  RC_ASSERT(of_instances == hit_tokens);
}

inline void check_equal(const ClusterReport& a, const ClusterReport& b) {
  for (std::size_t i = 0; i < a.records.size(); ++i) {
    RC_ASSERT(a.records[i].end_s == b.records[i].end_s);
    RC_ASSERT(a.records[i].first_token_s == b.records[i].first_token_s);
    RC_ASSERT(a.records[i].prefill == b.records[i].prefill);
    RC_ASSERT(a.records[i].hit_tokens == b.records[i].hit_tokens);
  }
  RC_ASSERT(a.bytes_transferred == b.bytes_transferred);
}

}  // namespace cachalot::sim
