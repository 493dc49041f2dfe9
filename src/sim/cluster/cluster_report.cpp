// What a run has found, taken from its instances and links at the end.
#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

ClusterReport Cluster::finish_report() {
  begin_figures();
  for (DecodeSide& side : decode_) report_.instances.push_back(std::move(side.report));
  finish_figures();
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
  report_.decode_load_deviation = steady_deviation(report_);
  return std::move(report_);
}

}  // namespace cachalot::sim
