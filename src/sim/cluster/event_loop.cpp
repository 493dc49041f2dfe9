#include "sim/cluster/event_loop.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace cachalot::sim {

EventLoop::EventLoop(const ClusterOptions& options, const Workload& workload, std::size_t instances)
    : options_(options),
      workload_(workload),
      instances_(instances),
      timers_(instances + 3),
      changes_(options.changes) {
  report_.records.resize(workload.jobs().size());
  std::ranges::stable_sort(changes_, {}, &Membership::at_s);
}

Status EventLoop::run_events(const std::function<void(double)>& on_progress) {
  constexpr JobId kProgressEvery = 256;
  timers_.set(arrival_slot(), next_arrival_s());
  if (!changes_.empty()) timers_.set(change_slot(), changes_[0].at_s);
  JobId reported = 0;
  while (timers_.first_time() < kNever) {
    now_s_ = timers_.first_time();
    CACHALOT_TRY(step(timers_.first()));
    if (is_over()) on_last_end();
    if (on_progress && next_arrival_ >= reported + kProgressEvery) {
      reported = next_arrival_;
      on_progress(static_cast<double>(reported) / static_cast<double>(report_.records.size()));
    }
  }
  if (is_over()) return {};
  return Error::make(Code::kBadInput,
                     "simulation: a request never ends, expected finite times of the timing model");
}

Status EventLoop::step(std::size_t slot) {
  if (slot == kNetworkSlot) return end_transfers();
  if (slot < change_slot()) return on_instance(slot - 1);
  if (slot == change_slot()) return change();
  return arrive();
}

Status EventLoop::end_transfers() {
  while (const std::optional<std::uint64_t> tag = network_.pop(now_s_)) {
    CACHALOT_TRY(on_transfer_end(*tag));
  }
  timers_.set(kNetworkSlot, network_.next_s());
  return {};
}

Status EventLoop::change() {
  const Membership membership = changes_[next_change_++];
  timers_.set(change_slot(), next_change_ < changes_.size() ? changes_[next_change_].at_s : kNever);
  return on_change(membership);
}

Status EventLoop::arrive() {
  const JobId id = next_arrival_++;
  ++in_flight_;
  if (options_.pass_requests != 0 && id % options_.pass_requests == 0) {
    pass_first_ = id;
    pass_start_s_ = now_s_;
  }
  record(id).arrival_s = now_s_;
  timers_.set(arrival_slot(), next_arrival_s());
  return on_arrival(id);
}

double EventLoop::next_arrival_s() const {
  if (next_arrival_ == report_.records.size()) return kNever;
  const bool begins_pass =
      options_.pass_requests != 0 && next_arrival_ % options_.pass_requests == 0;
  if (options_.closed_loop == 0) {
    if (begins_pass && next_arrival_ != 0) return in_flight_ == 0 ? now_s_ : kNever;
    // The difference first: rounded, the other order may be before now.
    return pass_start_s_ + (job(next_arrival_).arrival_s - job(pass_first_).arrival_s);
  }
  return in_flight_ < (begins_pass ? 1 : options_.closed_loop) ? now_s_ : kNever;
}

TransferId EventLoop::start_transfer(const LinkNetwork::Transfer& transfer) {
  const TransferId id = network_.start(now_s_, transfer);
  timers_.set(kNetworkSlot, network_.next_s());
  return id;
}

double EventLoop::cancel_transfer(TransferId transfer) {
  const double unsent = network_.cancel(now_s_, transfer);
  timers_.set(kNetworkSlot, network_.next_s());
  return unsent;
}

void EventLoop::finish(JobId id, Outcome outcome) {
  CACHALOT_CHECK(record(id).outcome == Outcome::kOpen);
  record(id).outcome = outcome;
  record(id).end_s = now_s_;
  --in_flight_;
  if (options_.closed_loop != 0 || options_.pass_requests != 0) {
    timers_.set(arrival_slot(), next_arrival_s());
  }
}

}  // namespace cachalot::sim
