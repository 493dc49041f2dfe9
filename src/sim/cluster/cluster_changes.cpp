// Instances that join, leave and fail.
#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

void Cluster::end_if_left(PrefillNode& node) {
  if (!node.is_leaving || node.requests_there() != 0) return;
  node.is_leaving = false;
  node.cache.clear();
}

Status Cluster::leave_if_empty(CachingInstance& instance) {
  end_if_left(prefill_[instance.number]);
  return {};
}

// What it computes and what waits for it begins again elsewhere; transfers from it end.
Status Cluster::fail(CachingInstance& instance) {
  PrefillNode& node = prefill_[instance.number];
  count_requests(node);
  std::vector<JobId> lost(node.queue.begin(), node.queue.end());
  if (node.running != kNoJob) {
    lost.insert(lost.begin(), node.running);
    const double done_s = now_s() - node.begin_s;
    node.busy.add(node.begin_s, now_s(), 1);
    node.report.busy_s += done_s;
    report_.prefill_s += done_s;
    report_.wasted_prefill_s += done_s;
  }
  node.queue.clear();
  node.coming.clear();
  node.queued_s = 0;
  node.running = kNoJob;
  node.end_s = kNever;
  set_timer(node.number, kNever);
  const std::vector<JobId> freed = waiting_for(node);
  for (const JobId id : lost) {
    if (kv_[id].transfer != kNoTransfer) drop_transfer(id);
  }
  for (const JobId id : freed) {
    drop_transfer(id);
    kv_[id].ready_tokens = 0;
  }
  node.cache.clear();
  for (const JobId id : lost) {
    jobs_[id] = JobState();
    CACHALOT_TRY(begin_again(id));
  }
  for (const JobId id : freed) try_start(prefill_of(id));
  return {};
}

}  // namespace cachalot::sim
