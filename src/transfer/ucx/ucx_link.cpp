#include "transfer/ucx/ucx_link.h"

#include <utility>

namespace cachalot::transfer {
namespace {

constexpr unsigned kTurnMessages = 64;           // of one progress()
constexpr std::uint64_t kFlushNs = 200'000'000;  // for the last frames, which say why
constexpr unsigned kMostDropCalls = 1000;        // of ucp_worker_progress(), to end what is dropped

}  // namespace

UcxLink::UcxLink(UcxWorker& worker, UcxConnection& connection, std::optional<UcxDoorCall> call,
                 std::string peer_address, LinkEvents& events)
    : worker_(worker),
      connection_(connection),
      call_(std::move(call)),
      address_(std::move(peer_address)),
      events_(events),
      outgoing_(worker, connection, *this, events),
      incoming_(*this, events) {
  connection.link = this;
}

void UcxLink::send(const Frame& frame) {
  if (closing_) return;
  const std::uint64_t waiting = outgoing_.waiting_bytes();
  if (waiting > most_waiting_bytes()) return close(unread(address_, waiting));
  outgoing_.add(frame);
}

void UcxLink::close(const Error& error) {
  if (closing_) return;
  closing_ = error;
  incoming_.stop();
}

void UcxLink::fail(const char* why) {
  close(Error::make(Code::kIo, "%s: %s", address_.c_str(), why));
}

void UcxLink::take(const UcxArrival& arrival) {
  if (closing_) return;
  received_bytes_ += arrival.header.size() + arrival.data.size();
  worker_.received_bytes += arrival.data.size();
  if (const Status status = incoming_.take(arrival); !status) {
    close(Error::make(status.error().code, "%s: %s", address_.c_str(), status.error().message));
  } else {
    outgoing_.know_peer();
  }
}

bool UcxLink::is_runnable() const {
  return !is_closed_ && ((closing_ && in_flight() == 0) || outgoing_.is_runnable());
}

bool UcxLink::progress(std::uint64_t now_ns) {
  if (is_closed_) return false;
  if (call_ && !closing_) connect();
  for (unsigned turns = kTurnMessages; turns > 0 && !closing_ && outgoing_.step();) --turns;
  if (closing_) try_close(now_ns);
  return is_runnable();
}

void UcxLink::connect() {
  const std::optional<Result<SocketAddress>> address = call_->progress();
  if (!address) return;
  call_.reset();
  const Status status = address->ok() ? connection_.connect(**address) : Status(address->error());
  if (!status)
    close(Error::make(status.error().code, "%s: %s", address_.c_str(), status.error().message));
}

void UcxLink::try_close(std::uint64_t now_ns) {
  if (in_flight() > 0) {
    connection_.drop();
    for (unsigned calls = kMostDropCalls; calls > 0 && in_flight() > 0; --calls)
      worker_.ucx.worker_progress(worker_.worker);
    if (in_flight() > 0) return;  // later
  }
  is_closed_ = true;
  call_.reset();
  outgoing_.end();
  // The last frame says why: as far as UCX takes it now.
  while (outgoing_.is_runnable() && outgoing_.step()) {
  }
  connection_.finish(received_bytes_ == 0 ? 0 : now_ns + kFlushNs);
  incoming_.end();
  events_.on_closed(*this, *closing_);
}

}  // namespace cachalot::transfer
