// Instances that join, leave and fail.
#include <algorithm>

#include "sim/colocated/colocated_run.h"

namespace cachalot::sim::colocated {

Status Cluster::change(const Membership& membership) {
  Node& node = *nodes_[membership.instance];
  switch (membership.change) {
    case Change::kJoin:
      node.accepts = true;
      node.is_leaving = false;
      break;
    case Change::kLeave:
      node.accepts = false;
      node.is_leaving = true;
      return leave_if_empty(node);
    case Change::kFail:
      node.accepts = false;
      return fail(node);
  }
  return {};
}

Status Cluster::leave_if_empty(Node& node) {
  if (!node.is_leaving || !node.jobs.empty()) return {};
  node.is_leaving = false;
  return begin_anew(node);
}

// Without KV.
Status Cluster::begin_anew(Node& node) {
  node.cache.clear();
  node.lost_preemptions += node.engine->preemptions();
  timers_.set(node_slot(node.instance), kNever);
  return make_engine(node);
}

// All that it has begins again elsewhere; transfers to it, and of its requests, end.
Status Cluster::fail(Node& node) {
  count_requests(node);
  const std::vector<JobId> lost = node.jobs;
  std::vector<JobId> freed;  // those that wait elsewhere for KV of this instance
  for (JobId id = 0; id < next_arrival_; ++id) {
    const JobState& state = jobs_[id];
    if (state.transfer == kNoTransfer || state.cargo != Cargo::kPeerPrefix) continue;
    if (state.source == node.instance && report_.records[id].prefill != node.instance) {
      freed.push_back(id);
    }
  }
  for (const JobId id : lost) {
    if (jobs_[id].transfer != kNoTransfer) drop_transfer(id);
    leave_prefilling(node, id);
    if (!jobs_[id].is_decoding) continue;
    report_.wasted_prefill_s += sched::prefill_seconds(*timing_.prefill, job(id).input_tokens,
                                                       report_.records[id].hit_tokens);
    leave_decoding(id);
  }
  for (const JobId id : freed) {
    drop_transfer(id);
    jobs_[id].ready_tokens = 0;
  }
  node.jobs.clear();
  CACHALOT_TRY(begin_anew(node));
  for (const JobId id : lost) CACHALOT_TRY(restart(id));
  for (const JobId id : freed) CACHALOT_TRY(submit(id));
  return {};
}

void Cluster::drop_transfer(JobId id) {
  JobState& state = jobs_[id];
  network_.cancel(now_s_, state.transfer);
  timers_.set(kNetworkSlot, network_.next_s());
  state.transfer = kNoTransfer;
  state.is_waiting_for_kv = false;
  if (state.cargo != Cargo::kPoolStore) release_source(id);
}

Status Cluster::restart(JobId id) {
  jobs_[id].ready_tokens = 0;
  ++report_.records[id].restarts;
  const sched::Route chosen = route(id);
  if (chosen.exists()) return dispatch(id, chosen);
  finish(id, Outcome::kNoInstance);
  return {};
}

}  // namespace cachalot::sim::colocated
