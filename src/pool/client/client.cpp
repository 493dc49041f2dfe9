#include "pool/client/client.h"

#include "base/fail_point.h"

namespace cachalot::pool {

namespace {

rpc::Doorbell keeper_doorbell(const Access& access, const ClientOptions& options) {
  if (!options.use_doorbells) return {};
  return rpc::Doorbell::at(access.region.at(access.layout.doorbell_page));
}

}  // namespace

Client::Client(const Access& access, std::uint32_t slot, const ClientOptions& options,
               rpc::Waiter& waiter, base::Clock& clock)
    : context_{access, slot, options, waiter, clock, keeper_doorbell(access, options)},
      time_(clock, options.timeout_ns),
      counters_(context_),
      keeper_(context_),
      heartbeat_(context_),
      calls_(context_, time_, keeper_, heartbeat_),
      namespace_(context_, calls_),
      reports_(calls_, namespace_, counters_.live()),
      grants_(context_, keeper_, heartbeat_, calls_, namespace_, reports_),
      commits_(context_, calls_, namespace_, grants_, counters_.live()),
      attachment_(context_, time_, keeper_, heartbeat_, calls_, namespace_, reports_, grants_,
                  commits_, counters_),
      reader_(context_, namespace_, counters_.live()),
      writer_(context_, time_, attachment_, reports_, grants_, commits_, counters_.live()),
      requests_(context_, time_, attachment_, calls_, namespace_) {
  calls_.set_sinks(grants_, commits_);
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
  CACHALOT_TRY(client->attachment_.enter());
  return client;
}

Result<std::uint32_t> Client::get(const BlockHash& hash, std::span<std::byte> to) {
  Found found;
  Result<std::uint32_t> length = reader_.get(hash, to, found);
  if (length) report_hit(found);
  return length;
}

Result<std::uint64_t> Client::pin() {
  if (!context_.options.pins) {
    return Error::make(Code::kUnsupported,
                       "pin: this client did not say at its attachment that it pins");
  }
  const CallTime::Scope scope(time_);
  CACHALOT_TRY(attachment_.ensure());
  const std::uint64_t pin = attachment_.pins().begin();
  base::reach(base::FailPoint::kPinPublished);
  return pin;
}

void Client::unpin(std::uint64_t pin) {
  attachment_.pins().end(pin);
  // R1: the line may be the next client's by now. The keeper has forgotten these pins.
  if (has_left()) return;
  attachment_.pins().publish();
  base::reach(base::FailPoint::kPinEnded);
}

}  // namespace cachalot::pool
