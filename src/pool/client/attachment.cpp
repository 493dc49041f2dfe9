#include "pool/client/attachment.h"

#include <algorithm>

#include "base/fail_point.h"

namespace cachalot::pool {

using base::FailPoint;

Attachment::Attachment(const ClientContext& context, CallTime& time, KeeperWatch& keeper,
                       Heartbeat& heartbeat, KeeperCalls& calls, ClientNamespace& name_space,
                       HitReports& reports, GrantedBlocks& grants, CommitsInFlight& commits,
                       PublishedCounters& counters)
    : context_(context),
      time_(time),
      keeper_(keeper),
      heartbeat_(heartbeat),
      calls_(calls),
      namespace_(name_space),
      reports_(reports),
      grants_(grants),
      commits_(commits),
      counters_(counters),
      pins_(context),
      handshake_(context, time, keeper, heartbeat, pins_) {}

Error Attachment::has_detached() {
  return Error::make(Code::kNoKeeper, "this client has detached");
}

// --- Attaching ---------------------------------------------------------------------------------

Status Attachment::enter() {
  const CallTime::Scope scope(time_);
  time_.end_by(std::min(time_.ends_ns(), context_.options.attach_by_ns));
  for (;;) {
    CACHALOT_TRY(greet());
    if (!counters_.has_begun()) counters_.begin();
    const Status opened = namespace_.open();
    if (opened) base::reach(FailPoint::kAttachNamespace);
    if (opened || !calls_.is_damaged() || context_.clock.now_ns() >= time_.until_ns())
      return opened;
  }
}

Status Attachment::greet() {
  calls_.forget_damage();
  CACHALOT_TRY(handshake_.run());
  calls_.open(handshake_.incarnation());
  is_attached_ = is_let_in_ = true;
  commits_.begin_resending();
  heartbeat_.set_lost(false);
  return {};
}

// Only then may it vouch for its old incarnation. If it never may, there is no other incarnation.
Status Attachment::wait_for_copies(std::uint64_t until_ns) {
  ReservationBook& reservations = *grants_.reservations();
  reservations.close();  // or a reservation of the old incarnation might begin after the last look
  for (std::uint32_t round = 0; reservations.has_open(); ++round) {
    if (context_.clock.now_ns() >= until_ns) {
      return Error::make(Code::kBusy,
                         "client slot %u: its own copies into the pool are still under way",
                         context_.slot);
    }
    context_.waiter.wait(round);
  }
  if (!reservations.withholds()) return {};
  return Error::make(
      Code::kIo,
      "client slot %u: a device failed in a copy into the pool and may still store: this client "
      "stores no more, and what it held is free when its process has ended",
      context_.slot);
}

Status Attachment::reattach(std::uint64_t patience_ns) {
  if (is_detached_) return has_detached();
  const CallTime::Scope scope(time_);
  if (is_attached_) is_let_in_ = false;  // that attachment is over
  is_attached_ = false;
  CACHALOT_TRY(wait_for_copies(time_.until_ns()));
  grants_.clear();
  reports_.clear();
  const std::uint64_t since_ns = context_.clock.now_ns();
  for (std::uint32_t round = 0;; ++round) {
    const Status status = attach_again();
    if (status) break;
    is_attached_ = false;
    if (status.error().code != Code::kNoKeeper) return status;
    const bool is_served = calls_.is_damaged() || keeper_.is_taken_over();
    const std::uint64_t patience_now_ns =
        is_served ? std::max(patience_ns, context_.options.timeout_ns) : patience_ns;
    if (context_.clock.now_ns() - since_ns >= patience_now_ns) return status;
    time_.extend(patience_ns);
    if (context_.clock.now_ns() >= time_.deadline_ns()) return CallTime::deadline_passed();
    if (context_.clock.now_ns() >= time_.ends_ns()) return status;
    context_.waiter.wait(round);
  }
  ++counters_.live()[ClientCounter::kReattachments];
  return {};
}

// One try. It continues from where the last one's time was up.
Status Attachment::attach_again() {
  if (is_let_in_ && !is_lost()) {
    is_attached_ = true;
  } else {
    is_let_in_ = false;
    CACHALOT_TRY(greet());
  }
  CACHALOT_TRY(namespace_.open());
  return commits_.resend();
}

// --- Detaching ---------------------------------------------------------------------------------

Status Attachment::detach() {
  if (has_left()) return {};
  is_detached_ = true;
  time_.set_deadline(CallTime::kNever);
  const CallTime::Scope scope(time_);
  if (const Status copies = wait_for_copies(time_.until_ns()); !copies) {
    // The process may not vouch for them: the keeper waits until one may, or for the end of this process.
    is_attached_ = false;
    return copies;
  }
  if (!is_attached_) {
    leave();
    return {};
  }
  Status status =
      is_lost() ? Status(Error::make(Code::kNoKeeper, "no keeper serves this client any more"))
                : commits_.drain();
  if (!status && calls_.is_damaged()) {
    is_detached_ = false;
    status = reattach(0);  // and asks what became of the commits
    is_detached_ = true;
  }
  is_attached_ = false;
  base::reach(FailPoint::kDetachDrained);
  heartbeat_.stop();
  if (status) status = reports_.flush();
  if (status) status = say_goodbye();
  leave();
  // If the keeper's answer is missing, the keeper reads the line.
  const bool is_known = commits_.none_in_flight();
  if (!status && is_known && handshake_.await_release(farewell_ends_ns())) return {};
  return status;
}

// The detach request. What is still granted goes back with it: the keeper knows what it is.
Status Attachment::say_goodbye() {
  counters_.publish();  // before the keeper lets the next client in
  context_.access.domain().complete();
  // The slot's line will say the same: no reason to wait long for a keeper that does not answer.
  time_.end_by(farewell_ends_ns());
  const Status answered = calls_.call(Op::kDetach);
  base::reach(FailPoint::kDetachSaid);
  return answered;
}

// R1: after this the slot's lines may have another writer.
void Attachment::leave() {
  counters_.publish();
  pins_.end_all();  // a detached client reads no more
  handshake_.withdraw();
  counters_.end();
  heartbeat_.end();
}

std::uint64_t Attachment::farewell_ends_ns() const {
  constexpr std::uint64_t kMostNs = 500'000'000;
  return CallTime::later(context_.clock.now_ns(),
                         std::min(context_.options.timeout_ns / 5, kMostNs));
}

}  // namespace cachalot::pool
