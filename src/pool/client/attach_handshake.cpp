#include "pool/client/attach_handshake.h"

#include <algorithm>

#include "base/fail_point.h"
#include "pool/format/evidence.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

Status AttachHandshake::run() {
  const KeeperView now = keeper_.read();
  if (now.epoch == 0 || (now.flags & kKeeperServing) == 0 || keeper_.has_ended(now)) {
    return Error::make(Code::kNoKeeper,
                       "no keeper serves this pool: start one with `cachalot serve`");
  }
  const KeeperView& before = keeper_.view();
  const bool is_requested =
      requested_ns_ != 0 && now.epoch == before.epoch && now.keeper == before.keeper;
  keeper_.watch(now);
  if (!is_requested) {
    const std::uint64_t begun_ns = context_.clock.now_ns();
    CACHALOT_TRY(wait_for_farewell(time_.until_ns()));
    write_request();
    requested_ns_ = begun_ns;  // one time for both waits
  }
  CACHALOT_TRY(wait_for_answer(requested_ns_));
  base::reach(FailPoint::kAttachSeen);
  heartbeat_.start();
  return {};
}

Status AttachHandshake::wait_for_answer(std::uint64_t begun_ns) {
  const std::uint64_t until_ns =
      std::min(CallTime::later(begun_ns, context_.options.timeout_ns), time_.until_ns());
  for (;;) {
    const Status seen_by_keeper = wait_for_mailbox(until_ns);
    // If the time is up, the next call continues from here.
    if (!seen_by_keeper && seen_by_keeper.error().code == Code::kTimeout) return seen_by_keeper;
    // The keeper let this incarnation in and took it for dead, because the process stood still meanwhile:
    // its answer will not come, and the next incarnation enters at once.
    if (!seen_by_keeper && seen_by_keeper.error().code == Code::kStale) {
      write_request();
      requested_ns_ = begun_ns;
      continue;
    }
    if (!seen_by_keeper) withdraw();
    requested_ns_ = 0;
    return seen_by_keeper;
  }
}

bool AttachHandshake::is_own_process(const ClientLine& line) const {
  const ClientOptions& own = context_.options;
  return line.pid != 0 && line.pid == own.pid && line.start_time == own.start_time &&
         line.pid_namespace == own.pid_namespace && line.time_namespace == own.time_namespace &&
         line.boot_id_low == own.boot_id_low && line.boot_id_high == own.boot_id_high;
}

// Whether the slot's line says that another process stores no more, and the keeper, which would free what that
// process held, has not seen it: by the keeper's own conditions for believing it (vouches() in keeper/service/client_watch.cpp).
bool AttachHandshake::has_unread_farewell() const {
  ClientLine line{};
  ViewLine seen{};
  const Access& access = context_.access;
  if (!access.region.read_as(access.layout.client_line(context_.slot), line) ||
      !keeper_.read_slot(seen)) {
    return false;
  }
  const bool is_held = (seen.flags & (kViewOpen | kViewHeld)) != 0;
  const bool is_farewell = (line.flags & kClientAttached) == 0 &&
                           line.drained >= seen.incarnation && line.drained <= line.incarnation;
  const bool is_theirs = line.pid != 0 && identity_of(line) == identity_of(seen);
  return is_held && is_farewell && is_theirs &&
         !is_own_process(line);  // its own continues with its attach request
}

// An attach request overwrites it. The keeper reads all lines every few milliseconds.
Status AttachHandshake::wait_for_farewell(std::uint64_t until_ns) const {
  for (std::uint32_t round = 0; has_unread_farewell(); ++round) {
    CACHALOT_TRY(keeper_.check_stays(round));
    if (context_.clock.now_ns() > until_ns) return too_late(until_ns);
    context_.keeper_doorbell.ring_if_asleep();
    context_.waiter.wait(round);
  }
  return {};
}

Error AttachHandshake::too_late(std::uint64_t until_ns) const {
  return until_ns == time_.deadline_ns() ? time_.deadline_passed() : keeper_.did_not_see_client();
}

// Writes the client's line for the keeper to see, with a new incarnation.
void AttachHandshake::write_request() {
  const Access& access = context_.access;
  const ClientOptions& own = context_.options;
  // What an old incarnation of this object stored is stored: no copy is in flight, and this fence
  // completes the stores.
  std::uint32_t drained = incarnation_;
  if (drained != 0) access.domain().complete();
  const std::uint64_t offset = access.layout.client_line(context_.slot);
  ClientLine line{};
  if (access.region.read_as(offset, line)) {
    incarnation_ = std::max(incarnation_, line.incarnation);
    // A detach of this process that no keeper has read yet stays in the line.
    if (is_own_process(line)) drained = std::max(drained, line.drained);
  }
  // The keeper does not open an incarnation twice; it knows better if our own line was damaged.
  ViewLine seen{};
  if (keeper_.read_slot(seen)) incarnation_ = std::max(incarnation_, seen.incarnation);
  ++incarnation_;
  line = {};
  line.incarnation = incarnation_;
  line.flags = kClientAttached | (own.pins ? kClientPins : 0);
  line.drained = drained;
  line.pid_namespace = own.pid_namespace;
  line.time_namespace = own.time_namespace;
  if (!access.domain().writes_whole_lines()) line.flags |= kClientSplitLines;
  line.host = own.host;
  line.pid = own.pid;
  line.start_time = own.start_time;
  line.boot_id_low = own.boot_id_low;
  line.boot_id_high = own.boot_id_high;
  line.epoch = keeper_.view().epoch;
  pins_.begin_incarnation(incarnation_);
  access.region.publish(offset, line);
  access.domain().complete();
  base::reach(FailPoint::kAttachLineWritten);
  context_.keeper_doorbell.ring();
  heartbeat_.prepare(incarnation_, keeper_.view());
  requested_ns_ = context_.clock.now_ns();
}

// The line says that the incarnation has ended, so that the keeper does not open a mailbox for it later, and
// that it stores no more, for a keeper that did not receive the detach. Not while a pinned read is in flight:
// that would end the pin. Then the next attach request says it, or the detach.
void AttachHandshake::withdraw() {
  if (incarnation_ == 0) return;
  const Access& access = context_.access;
  ClientLine line{};
  const std::uint64_t offset = access.layout.client_line(context_.slot);
  if (!access.region.read_as(offset, line) || line.incarnation != incarnation_) return;
  access.domain().complete();
  line.flags &= ~kClientAttached;
  line.drained = pins_.none() ? incarnation_ : 0;
  access.region.publish(offset, line);
  access.domain().complete();
}

Status AttachHandshake::wait_for_mailbox(std::uint64_t until_ns) {
  for (std::uint32_t round = 0; !is_acknowledged(); ++round) {
    CACHALOT_TRY(keeper_.check_stays(round));
    ViewLine seen{};
    const bool is_seen = keeper_.read_slot(seen);
    if (is_seen && seen.incarnation == incarnation_ && (seen.flags & kViewOpen) == 0) {
      return Error::make(Code::kStale, "the keeper took client slot %u for dead while it attached",
                         context_.slot);
    }
    if (is_seen && seen.refused == incarnation_) {
      return Error::make(
          Code::kBusy,
          "client slot %u is held: nothing proves that pid %u, which had it last, stores no "
          "more (`cachalot pool fence --client %u` says so)",
          context_.slot, seen.pid, context_.slot);
    }
    if (context_.clock.now_ns() > until_ns) return too_late(until_ns);
    heartbeat_.beat();
    context_.keeper_doorbell.ring_if_asleep();
    context_.waiter.wait(round);
  }
  return {};
}

bool AttachHandshake::is_acknowledged() const {
  const Access& access = context_.access;
  if (access.domain().broken(Rule::kR1OneWriterPerLine)) {
    HeartbeatLine line{};
    return access.region.read_as(access.layout.client_heartbeat(context_.slot), line) &&
           line.echo_incarnation == incarnation_ && line.echo_epoch == keeper_.view().epoch;
  }
  ViewLine line{};
  return keeper_.read_slot(line) && line.incarnation == incarnation_ &&
         (line.flags & kViewOpen) != 0;
}

bool AttachHandshake::await_release(std::uint64_t until_ns) const {
  for (std::uint32_t round = 0; !is_released(); ++round) {
    if (!keeper_.check_stays(round) || context_.clock.now_ns() > until_ns) return false;
    context_.waiter.wait(round);
  }
  return true;
}

// By the keeper's view of the slot: its answer to the detach may be later.
bool AttachHandshake::is_released() const {
  ViewLine line{};
  return keeper_.read_slot(line) && line.incarnation == incarnation_ &&
         (line.flags & (kViewOpen | kViewHeld)) == 0;
}

}  // namespace cachalot::pool
