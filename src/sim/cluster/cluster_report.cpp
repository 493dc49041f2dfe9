// What a run has found, taken from its instances and links at the end.
#include <cmath>

#include "base/check.h"
#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

ClusterReport Cluster::finish_report() {
  CACHALOT_CHECK(decoding_.empty());
  const double last_arrival_s = report_.records.back().arrival_s;
  for (const RequestRecord& record : report_.records) {
    CACHALOT_CHECK(record.outcome != Outcome::kOpen);
  }
  for (PrefillNode& node : prefill_) {
    count_queue(node);
    report_.instances.push_back(std::move(node.report));
  }
  for (DecodeSide& side : decode_) report_.instances.push_back(std::move(side.report));
  summarise(workload_, options_.admission.ttft_slo_s, options_.admission.tbt_slo_s, gaps_, report_);
  if (const std::size_t pass = options_.pass_requests; pass != 0) {
    for (std::size_t first = 0; first < jobs_.size(); first += pass) {
      report_.passes.push_back(
          summarise_pass(workload_, report_.records, first, std::min(pass, jobs_.size() - first)));
    }
  }
  report_.window_s = options_.window_s;
  report_.bytes_transferred = network_.total_bytes();
  for (std::size_t i = 0; i < prefill_.size(); ++i) {
    const PrefillNode& node = prefill_[i];
    InstanceReport& r = report_.instances[i];
    r.cached_blocks = node.cache.size();
    r.evictions = node.cache.evictions();
    r.load = node.busy.means(report_.sim_s);
    r.queue = node.queued.means(report_.sim_s);
    r.sent_bytes =
        network_.bytes(node.ports.out) + (has_pool() ? network_.bytes(node.ports.pool_out) : 0);
    r.received_bytes =
        network_.bytes(node.ports.in) + (has_pool() ? network_.bytes(node.ports.pool_in) : 0);
  }
  for (std::size_t i = 0; i < decode_.size(); ++i) {
    const DecodeSide& side = decode_[i];
    InstanceReport& r = report_.instances[prefill_.size() + i];
    r.steps = side.node.steps();
    r.tokens = side.node.tokens();
    r.busy_s = side.node.busy_s();
    r.most_reserved_tokens = side.node.most_reserved_tokens();
    r.load = side.load.means(report_.sim_s);
    r.queue = side.running.means(report_.sim_s);
    r.received_bytes =
        network_.bytes(side.ports.in) + (has_pool() ? network_.bytes(side.ports.pool_in) : 0);
    if (report_.decode_load.empty()) report_.decode_load.assign(r.load.size(), 0);
    for (std::size_t w = 0; w < r.load.size(); ++w) {
      report_.decode_load[w] += r.load[w] / static_cast<double>(decode_.size());
    }
  }
  // Whole windows of arrivals, without the first, in which the cluster fills.
  const auto whole = static_cast<std::size_t>(last_arrival_s / options_.window_s);
  std::vector<double> steady;
  for (std::size_t w = 1; w < whole && w < report_.decode_load.size(); ++w) {
    steady.push_back(report_.decode_load[w]);
  }
  report_.decode_load_deviation = standard_deviation(steady);
  return std::move(report_);
}

}  // namespace cachalot::sim
