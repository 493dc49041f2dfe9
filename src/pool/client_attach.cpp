// How a client enters and leaves.

#include <algorithm>
#include <atomic>

#include "pool/client.h"

namespace cachalot::pool {

using memory::Rule;

Client::Client(const Access& access, std::uint32_t slot, const ClientOptions& options,
               rpc::Waiter& waiter, base::Clock& clock)
    : access_(access),
      slot_(slot),
      options_(options),
      waiter_(&waiter),
      clock_(&clock),
      directory_(access_),
      namespace_(index::make_namespace(options.fingerprint)) {
  const bool is_noncoherent = access.geometry.domain != memory::DomainKind::kCoherent;
  verify_checksums_ = options.verify_checksums.value_or(is_noncoherent);
  write_checksums_ = options.write_checksums.value_or(is_noncoherent);
  if (options.use_doorbells) {
    keeper_doorbell_ = rpc::Doorbell(reinterpret_cast<std::atomic<std::uint32_t>*>(
        access_.region.at(access_.layout.doorbell_page)));
  }
}

Client::~Client() {
  if (attached_) (void)detach();
}

Result<std::unique_ptr<Client>> Client::attach(const Access& access, std::uint32_t slot,
                                               const ClientOptions& options, rpc::Waiter& waiter,
                                               base::Clock& clock) {
  if (slot >= access.geometry.clients) {
    return Error::make(Code::kInvalidArgument, "client slot: %u is not below the pool's %u", slot,
                       access.geometry.clients);
  }
  if (options.host >= access.geometry.hosts) {
    return Error::make(Code::kInvalidArgument, "host number: %u is not below the pool's %u",
                       options.host, access.geometry.hosts);
  }
  if (options.grant_target == 0) {
    return Error::make(Code::kInvalidArgument, "blocks to hold in advance: 0 is not at least 1");
  }
  std::unique_ptr<Client> client(new Client(access, slot, options, waiter, clock));
  CACHALOT_TRY(client->greet());
  CACHALOT_TRY(client->open_namespace());
  return client;
}

// Writes the client's line for the keeper to see, and waits until it has.
Status Client::greet() {
  view_ = directory_.read_keepers();
  if (view_.epoch == 0 || (view_.flags & kKeeperServing) == 0) {
    return Error::make(Code::kNoKeeper, "no keeper serves this pool: start one with `cachalot serve`");
  }
  const std::uint64_t offset = access_.layout.client_line(slot_);
  ClientLine line{};
  if (access_.region.read_as(offset, line)) incarnation_ = line.incarnation;
  // The keeper does not open an incarnation twice; it knows better if our own line was damaged.
  ViewLine seen{};
  if (access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), seen) &&
      seen.epoch == view_.epoch) {
    incarnation_ = std::max(incarnation_, seen.incarnation);
  }
  ++incarnation_;
  line = {};
  line.incarnation = incarnation_;
  line.flags = kClientAttached;
  if (!access_.domain().writes_whole_lines()) line.flags |= kClientSplitLines;
  line.host = options_.host;
  line.pid = options_.pid;
  line.start_time = options_.start_time;
  line.boot_id_low = options_.boot_id_low;
  line.boot_id_high = options_.boot_id_high;
  line.epoch = view_.epoch;
  access_.region.publish(offset, line);
  access_.domain().complete();
  keeper_doorbell_.ring();
  CACHALOT_TRY(wait_for_view(clock_->now_ns() + options_.timeout_ns));

  rpc::ChannelPlace place;
  place.request_ring = access_.layout.request_ring(slot_);
  place.response_ring = access_.layout.response_ring(view_.keeper, slot_);
  place.ring_lines = kRingLines;
  place.incarnation = incarnation_;
  place.epoch = view_.epoch;
  place.keeper_splits_lines = (view_.flags & kKeeperSplitLines) != 0;
  channel_ = rpc::Channel(access_.region, place, *waiter_, *clock_, keeper_doorbell_);
  attached_ = true;
  return {};
}

Status Client::wait_for_view(std::uint64_t deadline_ns) {
  for (std::uint32_t round = 0; !is_acknowledged(); ++round) {
    if (keeper_is_gone()) {
      return Error::make(Code::kNoKeeper, "the keeper of this pool went away while client slot %u attached", slot_);
    }
    if (clock_->now_ns() > deadline_ns) {
      return Error::make(Code::kNoKeeper, "the keeper of this pool did not see client slot %u in time: is it alive?", slot_);
    }
    beat();
    keeper_doorbell_.ring_if_asleep();
    waiter_->wait(round);
  }
  return {};
}

bool Client::is_acknowledged() const {
  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) {
    HeartbeatLine line{};
    return access_.region.read_as(access_.layout.client_heartbeat(slot_), line) &&
           line.echo_incarnation == incarnation_ && line.echo_epoch == view_.epoch;
  }
  ViewLine line{};
  return access_.region.read_as(access_.layout.view_line(view_.keeper, slot_), line) &&
         line.incarnation == incarnation_ && line.epoch == view_.epoch;
}

// Counts the heartbeat up. Nobody suspects anybody yet; the line is here so that they can.
void Client::beat() {
  const std::uint64_t offset = access_.layout.client_heartbeat(slot_);
  HeartbeatLine line{};
  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) access_.region.read_as(offset, line);
  line.beat = ++beats_;
  line.incarnation = incarnation_;
  access_.region.publish(offset, line);
}

bool Client::keeper_is_gone() const {
  const KeeperView now = directory_.read_keepers();
  return now.epoch != view_.epoch || (now.flags & kKeeperServing) == 0;
}

Status Client::open_namespace() {
  const NamespacePayload wanted{namespace_.digest.low, namespace_.digest.high};
  CACHALOT_TRY(call(Op::kNamespace, rpc::request_payload(wanted)));
  if (call_status_ == static_cast<std::uint16_t>(Code::kNoSpace)) {
    return Error::make(Code::kNoSpace, "namespace '%.80s': this pool has its %u namespaces already",
                       options_.fingerprint.c_str(), kMaxNamespaces);
  }
  CACHALOT_TRY(status_of_call("open a namespace"));
  NamespaceAnswer answer{};
  std::memcpy(&answer, call_payload_.data(), sizeof answer);
  namespace_id_ = answer.namespace_id;
  return {};
}

Status Client::detach() {
  if (!attached_) return {};
  attached_ = false;
  Status status = drain();
  if (status) status = flush_reports();
  if (status) {
    publish_counters();
    // What is still granted goes back with this: the keeper knows what it is.
    access_.domain().complete();
    status = call(Op::kDetach);
  }
  ClientLine line{};
  const std::uint64_t offset = access_.layout.client_line(slot_);
  if (access_.region.read_as(offset, line) && line.incarnation == incarnation_) {
    line.flags &= ~kClientAttached;
    access_.region.publish(offset, line);
    access_.domain().complete();
  }
  return status;
}

}  // namespace cachalot::pool
