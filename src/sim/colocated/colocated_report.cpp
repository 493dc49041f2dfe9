// What a run has found, taken from its instances and links at the end.
#include "base/check.h"
#include "sim/colocated/colocated_run.h"

namespace cachalot::sim::colocated {

ClusterReport Cluster::finish_report() {
  CACHALOT_CHECK(decoding_.empty());
  for (const RequestRecord& record : report_.records) {
    CACHALOT_CHECK(record.outcome != Outcome::kOpen);
  }
  for (const auto& node : nodes_) {
    count_requests(*node);
    CACHALOT_CHECK(node->jobs.empty() && node->engine->used_blocks() == 0);
    report_.preemptions += node->lost_preemptions + node->engine->preemptions();
    report_.instances.push_back(std::move(node->report));
  }
  summarise(workload_, options_.admission.ttft_slo_s, options_.admission.tbt_slo_s, gaps_, report_);
  summarise_passes(workload_, options_.pass_requests, report_);
  report_.window_s = options_.window_s;
  report_.bytes_transferred = network_.total_bytes();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    InstanceReport& r = report_.instances[i];
    r.cached_blocks = node.cache.size();
    r.evictions = node.cache.evictions();
    r.load = node.busy.means(report_.sim_s);
    r.queue = node.requests.means(report_.sim_s);
    r.sent_bytes =
        network_.bytes(node.ports.out) + (has_pool() ? network_.bytes(node.ports.pool_out) : 0);
    r.received_bytes =
        network_.bytes(node.ports.in) + (has_pool() ? network_.bytes(node.ports.pool_in) : 0);
    const std::vector<double> load = node.load.means(report_.sim_s);
    if (report_.decode_load.empty()) report_.decode_load.assign(load.size(), 0);
    for (std::size_t w = 0; w < load.size(); ++w) {
      report_.decode_load[w] += load[w] / static_cast<double>(nodes_.size());
    }
  }
  report_.decode_load_deviation = steady_deviation(report_);
  return std::move(report_);
}

}  // namespace cachalot::sim::colocated
