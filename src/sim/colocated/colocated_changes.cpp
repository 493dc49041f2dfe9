// Instances that join, leave and fail.
#include "sim/colocated/colocated_run.h"

namespace cachalot::sim::colocated {

Status Cluster::leave_if_empty(CachingInstance& instance) {
  Node& node = *nodes_[instance.number];
  if (!node.is_leaving || !node.jobs.empty()) return {};
  node.is_leaving = false;
  return begin_anew(node);
}

// Without KV.
Status Cluster::begin_anew(Node& node) {
  node.cache.clear();
  node.lost_preemptions += node.engine->preemptions();
  set_timer(node.number, kNever);
  return make_engine(node);
}

// All that it has begins again elsewhere; transfers to it, and of its requests, end.
Status Cluster::fail(CachingInstance& instance) {
  Node& node = *nodes_[instance.number];
  count_requests(node);
  const std::vector<JobId> lost = node.jobs;
  const std::vector<JobId> freed = waiting_for(node);
  for (const JobId id : lost) {
    if (kv_[id].transfer != kNoTransfer) drop_transfer(id);
    leave_prefilling(node, id);
    if (!jobs_[id].is_decoding) continue;
    report_.wasted_prefill_s +=
        sched::prefill_seconds(*timing_.prefill, job(id).input_tokens, record(id).hit_tokens);
    leave_decoding(id);
  }
  for (const JobId id : freed) {
    drop_transfer(id);
    kv_[id].ready_tokens = 0;
  }
  node.jobs.clear();
  CACHALOT_TRY(begin_anew(node));
  for (const JobId id : lost) {
    CACHALOT_TRY(begin_again(id));
  }
  for (const JobId id : freed) CACHALOT_TRY(submit(id));
  return {};
}

}  // namespace cachalot::sim::colocated
