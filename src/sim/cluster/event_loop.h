// Time, arrivals, changes and ends of a simulated cluster, whatever its instances are.
//
// The next event is the earliest of: a transfer that ends, what an instance does next, a change, an arrival. Of equal
// times the first in this order, among instances the lower number: so the order depends on nothing but the input.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/cluster/cluster.h"
#include "sim/cluster/link_network.h"
#include "sim/cluster/timers.h"

namespace cachalot::sim {

using JobId = std::uint32_t;
inline constexpr JobId kNoJob = 0xffffffffu;

// @threads one at a time
class EventLoop {
 public:
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

 protected:
  // @param instances  that have a timer
  EventLoop(const ClusterOptions& options, const Workload& workload, std::size_t instances);
  virtual ~EventLoop() = default;

  // Until nothing happens any more. @errors as the events; kBadInput: a time was infinite or no number
  Status run_events(const std::function<void(double)>& on_progress);

  // The events.
  virtual Status on_transfer_end(std::uint64_t tag) = 0;
  virtual Status on_instance(std::size_t instance) = 0;
  virtual Status on_change(const Membership& membership) = 0;
  virtual Status on_arrival(JobId id) = 0;
  virtual void on_last_end() {}  // of a request, and after each event from then on

  void set_timer(std::size_t instance, double at_s) { timers_.set(1 + instance, at_s); }
  TransferId start_transfer(const LinkNetwork::Transfer& transfer);
  // @return bytes that were not sent
  double cancel_transfer(TransferId transfer);
  // Once for each request. In a closed loop, or at the end of a pass, another one may come now.
  void finish(JobId id, Outcome outcome);

  double now_s() const { return now_s_; }
  // Those that have arrived are below it.
  JobId next_arrival() const { return next_arrival_; }
  // Whether all requests have come and ended.
  bool is_over() const { return in_flight_ == 0 && next_arrival_ == report_.records.size(); }
  const Job& job(JobId id) const { return workload_.jobs()[id]; }
  std::span<const std::uint32_t> path(JobId id) const { return workload_.path(job(id)); }
  RequestRecord& record(JobId id) { return report_.records[id]; }
  const RequestRecord& record(JobId id) const { return report_.records[id]; }

  const ClusterOptions& options_;
  const Workload& workload_;
  LinkNetwork network_;
  ClusterReport report_;

 private:
  static constexpr std::size_t kNetworkSlot = 0;
  std::size_t change_slot() const { return 1 + instances_; }
  std::size_t arrival_slot() const { return change_slot() + 1; }
  Status step(std::size_t slot);
  Status end_transfers();
  Status change();
  Status arrive();
  double next_arrival_s() const;

  std::size_t instances_;
  Timers timers_;
  std::vector<Membership> changes_;  // in the order of their times
  std::size_t next_change_ = 0;
  JobId next_arrival_ = 0;
  JobId pass_first_ = 0;  // of the pass in work
  double pass_start_s_ = 0;
  std::uint64_t in_flight_ = 0;  // requests
  double now_s_ = 0;
};

}  // namespace cachalot::sim
