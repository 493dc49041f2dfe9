// How a client enters and leaves.

#include <algorithm>
#include <atomic>

#include "base/fail_point.h"
#include "pool/client/client.h"
#include "pool/format/evidence.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

namespace {

constexpr auto later = CallTime::later;

Error time_is_up() {
  return Error::make(Code::kTimeout,
                     "the time given has passed while this client attached to the pool's keeper");
}

}  // namespace

Client::Client(const Access& access, std::uint32_t slot, const ClientOptions& options,
               rpc::Waiter& waiter, base::Clock& clock)
    : access_(access),
      slot_(slot),
      options_(options),
      waiter_(&waiter),
      clock_(&clock),
      directory_(access_),
      namespace_(block_hash::make_namespace(options.fingerprint)),
      advance_(std::clamp(access.geometry.blocks / 2 / access.geometry.clients, 1u,
                          std::max(1u, options.grant_target))) {
  const bool is_noncoherent = access.geometry.domain != memory::DomainKind::kCoherent;
  verify_checksums_ = options.verify_checksums.value_or(is_noncoherent);
  write_checksums_ = options.write_checksums.value_or(is_noncoherent);
  if (options.use_doorbells) {
    keeper_doorbell_ = rpc::Doorbell::at(access_.region.at(access_.layout.doorbell_page));
  }
}

Error Client::has_detached() {
  return Error::make(Code::kNoKeeper, "this client has detached");
}

Client::~Client() {
  (void)detach();
}

Result<std::unique_ptr<Client>> Client::attach(const Access& access, std::uint32_t slot,
                                               const ClientOptions& options, rpc::Waiter& waiter,
                                               base::Clock& clock) {
  if (slot >= access.geometry.clients) {
    return Error::make(Code::kInvalidArgument, "client slot %u: the pool's last one is %u", slot,
                       access.geometry.clients - 1);
  }
  if (options.host >= access.geometry.hosts) {
    return Error::make(Code::kInvalidArgument, "host number: %u is not below the pool's %u",
                       options.host, access.geometry.hosts);
  }
  if (options.grant_target == 0) {
    return Error::make(Code::kInvalidArgument, "blocks to hold in advance: 0 is not at least 1");
  }
  std::unique_ptr<Client> client(new Client(access, slot, options, waiter, clock));
  CACHALOT_TRY(client->enter());
  return client;
}

// The first attachment. One whose mailbox is damaged is followed by another.
Status Client::enter() {
  const CallTime::Scope scope = call_scope();
  call_time_.end_by(std::min(call_time_.ends_ns(), options_.attach_by_ns));
  for (;;) {
    CACHALOT_TRY(greet());
    if (!published_) begin_to_count();
    const Status opened = open_namespace();
    if (opened || !mailbox_is_damaged_ || clock_->now_ns() >= until_ns()) return opened;
  }
}

bool Client::is_own_process(const ClientLine& line) const {
  return line.pid != 0 && line.pid == options_.pid && line.start_time == options_.start_time &&
         line.pid_namespace == options_.pid_namespace &&
         line.time_namespace == options_.time_namespace &&
         line.boot_id_low == options_.boot_id_low && line.boot_id_high == options_.boot_id_high;
}

Error Client::no_answer() const {
  if (deadline_ns_ < call_time_.ends_ns()) {
    return Error::make(Code::kTimeout, "the keeper did not answer in the time given");
  }
  return Error::make(Code::kTimeout, "the keeper did not answer within %llu ms",
                     static_cast<unsigned long long>(options_.timeout_ns / 1'000'000));
}

// Asks to attach, and waits until the keeper has seen it. If the time is up, the next call finds out.
Status Client::greet() {
  mailbox_is_damaged_ = false;
  const KeeperView now = directory_.read_keepers();
  if (now.epoch == 0 || (now.flags & kKeeperServing) == 0 || has_ended(now)) {
    return Error::make(Code::kNoKeeper,
                       "no keeper serves this pool: start one with `cachalot serve`");
  }
  const bool is_known = knocked_ns_ != 0 && now.epoch == view_.epoch && now.keeper == view_.keeper;
  view_ = now;
  if (!is_known) {
    const std::uint64_t begun_ns = clock_->now_ns();
    CACHALOT_TRY(wait_for_farewell(until_ns()));
    knock();
    knocked_ns_ = begun_ns;  // one time for both waits
  }
  const std::uint64_t since_ns = knocked_ns_;
  const std::uint64_t give_up_ns = std::min(later(since_ns, options_.timeout_ns), until_ns());
  for (;;) {
    const Status seen_by_keeper = wait_for_view(give_up_ns);
    if (seen_by_keeper) break;
    if (seen_by_keeper.error().code == Code::kTimeout) return seen_by_keeper;
    // The keeper let this incarnation in and took it for dead, because the process stood still meanwhile:
    // its answer will not come, and the next incarnation enters at once.
    if (seen_by_keeper.error().code == Code::kStale) {
      knock();
      knocked_ns_ = since_ns;
      continue;
    }
    withdraw();
    knocked_ns_ = 0;
    return seen_by_keeper;
  }
  knocked_ns_ = 0;
  base::reach(FailPoint::kAttachSeen);
  {
    const std::lock_guard lock(renewal_.mutex);
    renewal_.is_on = true;
  }

  rpc::ChannelPlace place;
  place.request_ring = access_.layout.request_ring(slot_);
  place.response_ring = access_.layout.response_ring(view_.keeper, slot_);
  place.ring_lines = kRingLines;
  place.incarnation = incarnation_;
  place.epoch = view_.epoch;
  place.keeper_splits_lines = (view_.flags & kKeeperSplitLines) != 0;
  channel_ = rpc::Channel(access_.region, place, *waiter_, *clock_, keeper_doorbell_);
  mailbox_watch_.restart();
  attached_ = is_let_in_ = true;
  unsent_commits_ = commits_under_way_;
  lost_.store(false, std::memory_order_relaxed);
  return {};
}

// In a wait for the keeper whose view we attach under.
Status Client::check_keeper_stays(std::uint32_t round) const {
  constexpr std::uint32_t kRoundsBetweenLooks = 64;  // at the process, which takes system calls
  const KeeperView now = directory_.read_keepers();
  const bool has_died = round % kRoundsBetweenLooks == 0 && has_ended(now);
  if (now.epoch == view_.epoch && (now.flags & kKeeperServing) != 0 && !has_died) return {};
  return Error::make(Code::kNoKeeper,
                     "the keeper of this pool went away while client slot %u attached", slot_);
}

// Whether the slot's line says that another process stores no more, and the keeper, which would free what that one
// held, has not seen it: with just that keeper's own reasons to believe it (Keeper::vouches).
bool Client::has_unread_farewell() const {
  ClientLine line{};
  ViewLine seen{};
  if (!access_.region.read_as(access_.layout.client_line(slot_), line) ||
      !access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), seen)) {
    return false;
  }
  const bool is_held = seen.epoch == view_.epoch && (seen.flags & (kViewOpen | kViewHeld)) != 0;
  const bool is_farewell = (line.flags & kClientAttached) == 0 &&
                           line.drained >= seen.incarnation && line.drained <= line.incarnation;
  const bool is_theirs = line.pid != 0 && identity_of(line) == identity_of(seen);
  return is_held && is_farewell && is_theirs &&
         !is_own_process(line);  // its own continues with its attach request
}

// An attach request overwrites it. The keeper reads all lines every few milliseconds.
Status Client::wait_for_farewell(std::uint64_t deadline_ns) {
  for (std::uint32_t round = 0; has_unread_farewell(); ++round) {
    CACHALOT_TRY(check_keeper_stays(round));
    if (clock_->now_ns() > deadline_ns)
      return deadline_ns == deadline_ns_ ? time_is_up() : not_seen();
    keeper_doorbell_.ring_if_asleep();
    waiter_->wait(round);
  }
  return {};
}

// Writes the client's line for the keeper to see, with a new incarnation.
void Client::knock() {
  // What an old incarnation of this object stored is stored: no copy is in flight, and this fence
  // sees to the rest.
  std::uint32_t drained = incarnation_;
  if (drained != 0) access_.domain().complete();
  const std::uint64_t offset = access_.layout.client_line(slot_);
  ClientLine line{};
  if (access_.region.read_as(offset, line)) {
    incarnation_ = std::max(incarnation_, line.incarnation);
    // A detach of this process that no keeper has read yet stays in the line.
    if (is_own_process(line)) drained = std::max(drained, line.drained);
  }
  // The keeper does not open an incarnation twice; it knows better if our own line was damaged.
  ViewLine seen{};
  if (access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), seen) &&
      seen.epoch == view_.epoch) {
    incarnation_ = std::max(incarnation_, seen.incarnation);
  }
  ++incarnation_;
  line = {};
  line.incarnation = incarnation_;
  line.flags = kClientAttached | (options_.pins ? kClientPins : 0);
  line.drained = drained;
  line.pid_namespace = options_.pid_namespace;
  line.time_namespace = options_.time_namespace;
  if (!access_.domain().writes_whole_lines()) line.flags |= kClientSplitLines;
  line.host = options_.host;
  line.pid = options_.pid;
  line.start_time = options_.start_time;
  line.boot_id_low = options_.boot_id_low;
  line.boot_id_high = options_.boot_id_high;
  line.epoch = view_.epoch;
  publish_pins();  // none yet, of this incarnation, before the keeper takes it for one that has
  access_.region.publish(offset, line);
  access_.domain().complete();
  base::reach(FailPoint::kAttachLineWritten);
  keeper_doorbell_.ring();
  {
    const std::lock_guard lock(renewal_.mutex);
    renewal_.is_on = false;
    renewal_.incarnation = incarnation_;
    renewal_.keeper = view_.keeper;
    renewal_.epoch = view_.epoch;
  }
  knocked_ns_ = clock_->now_ns();
}

// This incarnation ends: the line says so, so that the keeper does not open a mailbox for it later, and
// that it stores no more, for a keeper that did not hear it otherwise. Not while a pinned read is in flight:
// it would end with that. Then the next attach request says it, or the detach.
void Client::withdraw() {
  ClientLine line{};
  const std::uint64_t offset = access_.layout.client_line(slot_);
  if (!access_.region.read_as(offset, line) || line.incarnation != incarnation_) return;
  access_.domain().complete();
  line.flags &= ~kClientAttached;
  line.drained = pins_.empty() ? incarnation_ : 0;
  access_.region.publish(offset, line);
  access_.domain().complete();
}

// R1: from here on the slot's lines may have another writer.
void Client::leave() {
  publish_counters();
  pins_.clear();  // a detached client reads no more
  if (incarnation_ != 0) withdraw();
  const std::lock_guard lock(renewal_.mutex);
  renewal_.is_on = false;
  has_left_ = true;
}

Status Client::wait_for_view(std::uint64_t deadline_ns) {
  for (std::uint32_t round = 0; !is_acknowledged(); ++round) {
    CACHALOT_TRY(check_keeper_stays(round));
    ViewLine seen{};
    const bool is_seen =
        access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), seen) &&
        seen.epoch == view_.epoch;
    if (is_seen && seen.incarnation == incarnation_ && (seen.flags & kViewOpen) == 0) {
      return Error::make(Code::kStale, "the keeper took client slot %u for dead while it attached",
                         slot_);
    }
    if (is_seen && seen.refused == incarnation_) {
      return Error::make(
          Code::kBusy,
          "client slot %u is held: nothing proves that pid %u, which had it last, stores no "
          "more (`cachalot pool fence --client %u` says so)",
          slot_, seen.pid, slot_);
    }
    if (clock_->now_ns() > deadline_ns) {
      return deadline_ns == deadline_ns_ ? time_is_up() : not_seen();
    }
    beat();
    keeper_doorbell_.ring_if_asleep();
    waiter_->wait(round);
  }
  return {};
}

Error Client::not_seen() const {
  KeeperLine keeper{};
  (void)access_.region.read_as(access_.layout.keeper_line(view_.keeper), keeper);
  return Error::make(Code::kNoKeeper,
                     "the keeper, pid %u, did not see client slot %u within %llu ms "
                     "(`cachalot serve --take-over` replaces one that hangs)",
                     keeper.pid, slot_,
                     static_cast<unsigned long long>(options_.timeout_ns / 1'000'000));
}

bool Client::is_acknowledged() const {
  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) {
    HeartbeatLine line{};
    return access_.region.read_as(access_.layout.client_heartbeat(slot_), line) &&
           line.echo_incarnation == incarnation_ && line.echo_epoch == view_.epoch;
  }
  ViewLine line{};
  return access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), line) &&
         line.incarnation == incarnation_ && line.epoch == view_.epoch &&
         (line.flags & kViewOpen) != 0;
}

// Counts the heartbeat up.
void Client::beat() {
  const std::lock_guard lock(renewal_.mutex);
  if (has_left_) return;
  const std::uint64_t offset = access_.layout.client_heartbeat(slot_);
  HeartbeatLine line{};
  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) access_.region.read_as(offset, line);
  line.beat = ++renewal_.beats;
  line.incarnation = renewal_.incarnation;
  access_.region.publish(offset, line);
}

void Client::renew() {
  {
    const std::lock_guard lock(renewal_.mutex);
    if (!renewal_.is_on) return;
    look_for_loss();
  }
  beat();
  publish_counters();
}

// Whether the keeper still knows this incarnation. Needs the renewal's lock.
void Client::look_for_loss() {
  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) return;
  ViewLine line{};
  const KeeperView now = directory_.read_keepers();
  const bool is_read =
      access_.region.read_as(access_.layout.view_line(renewal_.keeper, slot_), line);
  const bool is_ours = line.incarnation == renewal_.incarnation && line.epoch == renewal_.epoch &&
                       (line.flags & kViewOpen) != 0;
  if (now.epoch != renewal_.epoch || (is_read && !is_ours))
    lost_.store(true, std::memory_order_relaxed);
}

// True also if the keeper rules on, but has given this client up.
bool Client::keeper_is_gone() {
  const KeeperView now = directory_.read_keepers();
  if (now.epoch != view_.epoch || (now.flags & kKeeperServing) == 0 || has_ended(now)) {
    lost_.store(true, std::memory_order_relaxed);
  } else {
    {
      const std::lock_guard lock(renewal_.mutex);
      look_for_loss();
    }
    look_for_damage();
    beat();  // a waiting client is alive, whatever else its process does
  }
  return is_lost();
}

// Whether the keeper reads this mailbox and finds nothing in it, or answers and nothing arrives.
void Client::look_for_damage() {
  if (is_lost() || channel_.outstanding() == 0) return;
  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) return;
  access_.domain().order();  // the requests, before the heartbeats that are counted from here on
  std::uint64_t next_beat = 0;
  {
    const std::lock_guard lock(renewal_.mutex);
    next_beat = renewal_.beats + 1;
  }
  ViewLine line{};
  if (!access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), line) ||
      line.incarnation != incarnation_ || line.epoch != view_.epoch) {
    return;
  }
  if (!mailbox_watch_.is_passed_over(channel_.answered(), next_beat, line.heartbeat)) return;
  // What it answered before its last echo can be read by now, a long answer by the second poll.
  if (poll() + poll() != 0) return;
  mailbox_is_damaged_ = true;
  lost_.store(true, std::memory_order_relaxed);
}

bool Client::has_ended(const KeeperView& keeper) const {
  return options_.keeper_has_ended && options_.keeper_has_ended(keeper.keeper);
}

// The next keeper has announced itself, and does not serve yet.
bool Client::is_taken_over() const {
  const KeeperView now = directory_.read_keepers();
  return now.min_epoch != now.epoch && !has_ended(now);
}

// Attaches again if the keeper this client had is gone, or has given it up.
Status Client::ensure_attached() {
  if (detached_) return has_detached();
  if (attached_ && !is_lost()) return {};
  return reattach(options_.recovery_ns);
}

// Only then may it vouch for its old incarnation. Where it never may, there is no other incarnation.
Status Client::wait_for_copies(std::uint64_t deadline_ns) {
  book_->close();  // or a reservation of the old incarnation might begin after the last look
  for (std::uint32_t round = 0; book_->has_open(); ++round) {
    if (clock_->now_ns() >= deadline_ns) {
      return Error::make(Code::kBusy,
                         "client slot %u: its own copies into the pool are still under way", slot_);
    }
    waiter_->wait(round);
  }
  if (!book_->withholds()) return {};
  return Error::make(
      Code::kIo,
      "client slot %u: a device failed in a copy into the pool and may still store: this client "
      "stores no more, and what it held is free when its process has ended",
      slot_);
}

Status Client::reattach(std::uint64_t patience_ns) {
  if (detached_) return has_detached();
  const CallTime::Scope scope = call_scope();
  if (attached_) is_let_in_ = false;  // that attachment is over
  attached_ = false;
  CACHALOT_TRY(wait_for_copies(until_ns()));
  // Void under the next incarnation, under any keeper; the keeper knows what they were.
  grants_.clear();
  grant_asked_ = false;
  report_count_ = 0;
  const std::uint64_t since_ns = clock_->now_ns();
  Status status;
  for (std::uint32_t round = 0;; ++round) {
    status = attach_again();
    if (status) break;
    attached_ = false;
    if (status.error().code != Code::kNoKeeper) return status;
    const bool is_served = mailbox_is_damaged_ || is_taken_over();
    const std::uint64_t patience_now_ns =
        is_served ? std::max(patience_ns, options_.timeout_ns) : patience_ns;
    if (clock_->now_ns() - since_ns >= patience_now_ns) return status;
    call_time_.extend(patience_ns);
    if (clock_->now_ns() >= deadline_ns_) return time_is_up();
    if (clock_->now_ns() >= call_time_.ends_ns()) return status;
    waiter_->wait(round);
  }
  ++counters_[ClientCounter::kReattachments];
  return {};
}

// One try. It goes on from where the last one's time was up.
Status Client::attach_again() {
  if (is_let_in_ && !is_lost()) {
    attached_ = true;
  } else {
    is_let_in_ = false;
    CACHALOT_TRY(greet());
  }
  CACHALOT_TRY(ask_for_namespace());
  return resend_commits();
}

// W5: what the old keeper never answered is asked of the one that rules now. It answers "committed"
// if the old one had published it (W2), and else that the use is not held any more.
Status Client::resend_commits() {
  for (; unsent_commits_ != 0; --unsent_commits_) {
    Commit& commit =
        commits_[(next_commit_ + rpc::kMaxOutstanding - unsent_commits_) % rpc::kMaxOutstanding];
    CACHALOT_TRY(wait_for_credit(commit.count + 1, 1));
    commit.chain.namespace_id = namespace_id();
    commit.is_again = true;
    post(commit);
  }
  return drain();
}

Status Client::open_namespace() {
  CACHALOT_TRY(ask_for_namespace());
  base::reach(FailPoint::kAttachNamespace);
  return {};
}

Status Client::ask_for_namespace() {
  const bool must_be_there = options_.reads_only || options_.is_operator;
  const NamespacePayload wanted{namespace_.digest.low, namespace_.digest.high,
                                must_be_there ? kNamespaceIfThere : 0};
  CACHALOT_TRY(call(Op::kNamespace, rpc::request_payload(wanted)));
  if (call_status_ == static_cast<std::uint16_t>(Code::kNoSpace)) {
    return Error::make(Code::kNoSpace, "namespace '%.80s': this pool has its %u namespaces already",
                       options_.fingerprint.c_str(), kMaxNamespaces);
  }
  CACHALOT_TRY(status_of_call("open a namespace"));
  NamespaceAnswer answer{};
  std::memcpy(&answer, call_payload_.data(), sizeof answer);
  namespace_id_.store(answer.namespace_id, std::memory_order_relaxed);
  return {};
}

Status Client::detach() {
  if (has_left_) return {};
  detached_ = true;
  deadline_ns_ = kNever;
  const CallTime::Scope scope = call_scope();
  if (const Status copies = wait_for_copies(until_ns()); !copies) {
    // The process may not vouch for them: the keeper waits until one may, or for the end of this process.
    attached_ = false;
    return copies;
  }
  if (!attached_) {
    leave();
    return {};
  }
  Status status =
      is_lost() ? Status(Error::make(Code::kNoKeeper, "no keeper serves this client any more"))
                : drain();
  if (!status && mailbox_is_damaged_) {
    detached_ = false;
    status = reattach(0);  // and asks what became of the commits
    detached_ = true;
  }
  attached_ = false;
  base::reach(FailPoint::kDetachDrained);
  {
    const std::lock_guard lock(renewal_.mutex);
    renewal_.is_on = false;
  }
  if (status) status = flush_reports();
  if (status) {
    publish_counters();  // before the keeper lets the next client in
    // What is still granted goes back with this: the keeper knows what it is.
    access_.domain().complete();
    // The line below says the same: no reason to wait long for a keeper that does not answer.
    call_time_.end_by(later(clock_->now_ns(), farewell_ns()));
    status = call(Op::kDetach);
    base::reach(FailPoint::kDetachSaid);
  }
  leave();
  // A keeper that did not answer, or whose answer did not arrive, reads it in the line.
  const bool is_known = commits_under_way_ == 0;
  if (!status && is_known && await_dismissal(later(clock_->now_ns(), farewell_ns()))) return {};
  return status;
}

std::uint64_t Client::farewell_ns() const {
  constexpr std::uint64_t kMostNs = 500'000'000;
  return std::min(options_.timeout_ns / 5, kMostNs);
}

bool Client::await_dismissal(std::uint64_t deadline_ns) const {
  for (std::uint32_t round = 0; !is_dismissed(); ++round) {
    if (!check_keeper_stays(round) || clock_->now_ns() > deadline_ns) return false;
    waiter_->wait(round);
  }
  return true;
}

// The keeper has let this incarnation go: its answer may be slower than its view of the slot.
bool Client::is_dismissed() const {
  ViewLine line{};
  return access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), line) &&
         line.incarnation == incarnation_ && line.epoch == view_.epoch &&
         (line.flags & (kViewOpen | kViewHeld)) == 0;
}

// --- Pinned reads ------------------------------------------------------------------------------

void Client::publish_pins() {
  if (!options_.pins) return;
  PinLine line{};
  line.oldest = pins_.empty() ? 0 : pins_.front();
  line.newest = pins_begun_;
  line.incarnation = incarnation_;
  access_.region.publish(access_.layout.client_pins(slot_), line);
  if (!access_.domain().broken(Rule::kPinWithoutComplete)) access_.domain().complete();
}

Result<std::uint64_t> Client::pin() {
  if (!options_.pins) {
    return Error::make(Code::kUnsupported,
                       "pin: this client did not say at its attachment that it pins");
  }
  const CallTime::Scope scope = call_scope();
  CACHALOT_TRY(ensure_attached());
  pins_.push_back(++pins_begun_);
  publish_pins();
  base::reach(FailPoint::kPinPublished);
  return pins_begun_;
}

void Client::unpin(std::uint64_t pin) {
  std::erase(pins_, pin);
  // R1: the line may be the next client's by now. The keeper has forgotten these pins.
  if (has_left_) return;
  publish_pins();
  base::reach(FailPoint::kPinEnded);
}

}  // namespace cachalot::pool
