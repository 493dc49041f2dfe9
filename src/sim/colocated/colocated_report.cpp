// What a run has found, taken from its instances and links at the end.
#include "base/check.h"
#include "sim/colocated/colocated_run.h"

namespace cachalot::sim::colocated {

ClusterReport Cluster::finish_report() {
  begin_figures();
  for (const auto& node : nodes_) {
    CACHALOT_CHECK(node->jobs.empty() && node->engine->used_blocks() == 0);
    report_.preemptions += node->lost_preemptions + node->engine->preemptions();
  }
  finish_figures();
  for (const auto& node : nodes_) {
    const std::vector<double> load = node->load.means(report_.sim_s);
    if (report_.decode_load.empty()) report_.decode_load.assign(load.size(), 0);
    for (std::size_t w = 0; w < load.size(); ++w) {
      report_.decode_load[w] += load[w] / static_cast<double>(nodes_.size());
    }
  }
  report_.decode_load_deviation = steady_deviation(report_);
  return std::move(report_);
}

}  // namespace cachalot::sim::colocated
