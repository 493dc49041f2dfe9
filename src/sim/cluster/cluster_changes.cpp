// Instances that join, leave and fail.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

void Cluster::change(const Membership& membership) {
  PrefillNode& node = prefill_[membership.instance];
  switch (membership.change) {
    case Change::kJoin:
      node.accepts = true;
      node.is_leaving = false;
      return;
    case Change::kLeave:
      node.accepts = false;
      node.is_leaving = true;
      return leave_if_empty(node);
    case Change::kFail:
      node.accepts = false;
      return fail(membership.instance);
  }
}

void Cluster::leave_if_empty(PrefillNode& node) {
  if (!node.is_leaving || node.requests() != 0) return;
  node.is_leaving = false;
  node.cache.clear();
}

// What it computes and what waits for it begins again elsewhere; transfers from it end.
void Cluster::fail(std::uint32_t at) {
  PrefillNode& node = prefill_[at];
  count_queue(node);
  std::vector<JobId> lost(node.queue.begin(), node.queue.end());
  if (node.running != kNoJob) lost.insert(lost.begin(), node.running);
  if (node.running != kNoJob) {
    const double done_s = now_s_ - node.begin_s;
    node.busy.add(node.begin_s, now_s_, 1);
    node.report.busy_s += done_s;
    report_.prefill_s += done_s;
    report_.wasted_prefill_s += done_s;
  }
  node.queue.clear();
  node.coming.clear();
  node.queued_s = 0;
  node.running = kNoJob;
  node.end_s = kNever;
  timers_.set(prefill_slot(at), kNever);
  std::vector<JobId> freed;  // those that wait elsewhere for KV of this instance
  for (JobId id = 0; id < next_arrival_; ++id) {
    const JobState& state = jobs_[id];
    if (state.transfer == kNoTransfer || state.cargo != Cargo::kPeerPrefix) continue;
    if (state.source == at && report_.records[id].prefill != at) freed.push_back(id);
  }
  for (const JobId id : lost) {
    if (jobs_[id].transfer != kNoTransfer) drop_transfer(id);
  }
  for (const JobId id : freed) {
    drop_transfer(id);
    jobs_[id].ready_tokens = 0;
    jobs_[id].is_waiting_for_kv = false;
  }
  node.cache.clear();
  for (const JobId id : lost) restart(id);
  for (const JobId id : freed) try_start(report_.records[id].prefill);
}

void Cluster::drop_transfer(JobId id) {
  JobState& state = jobs_[id];
  network_.cancel(now_s_, state.transfer);
  timers_.set(kNetworkSlot, network_.next_s());
  state.transfer = kNoTransfer;
  if (state.cargo != Cargo::kHandover && state.cargo != Cargo::kPoolStore) release_source(id);
}

void Cluster::restart(JobId id) {
  jobs_[id] = JobState();
  ++report_.records[id].restarts;
  const sched::Route chosen = route(id);
  if (!chosen.exists()) return finish(id, Outcome::kNoInstance);
  dispatch(id, chosen);
}

}  // namespace cachalot::sim
