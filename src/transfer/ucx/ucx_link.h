// A link over UCX.
//
// 1. Payload memory is touched within progress() and take() only: UCX sends and receives copies.
// 2. on_closed() comes after UCX has ended all operations of payloads.
#pragma once

#include <cachalot/result.h>

#include <optional>
#include <string>

#include "transfer/link/link.h"
#include "transfer/ucx/ucx_connection.h"
#include "transfer/ucx/ucx_door.h"
#include "transfer/ucx/ucx_incoming.h"
#include "transfer/ucx/ucx_outgoing.h"

namespace cachalot::transfer {

class UcxLink final : public Link, public UcxEvents {
 public:
  // @param call  that finds out where to connect; nothing: the peer has connected
  UcxLink(UcxWorker& worker, UcxConnection& connection, std::optional<UcxDoorCall> call,
          std::string peer_address, LinkEvents& events);

  void send(const Frame& frame) override;
  void wants_payload() override { outgoing_.wants_payload(); }
  void close(const Error& error) override;
  std::uint32_t peer_process() const override { return 0; }
  std::uint64_t received_bytes() const override { return received_bytes_; }
  const std::string& peer_address() const override { return address_; }
  std::uint64_t waiting_bytes() const override { return outgoing_.waiting_bytes(); }

  // Called by UCX.
  void take(const UcxArrival& arrival) override;
  void fail(const char* why) override;

  bool is_runnable() const;
  // progress() is to be called whatever has come,
  bool needs_progress() const { return call_ || needs_timer(); }
  // and though nothing may come.
  bool needs_timer() const { return closing_ && !is_closed_; }
  // Sends, some MiB at most; or closes. @return whether there may be more to do now
  bool progress(std::uint64_t now_ns);
  // on_closed() was called.
  bool is_closed() const { return is_closed_; }

 private:
  void connect();
  void try_close(std::uint64_t now_ns);
  unsigned in_flight() const { return outgoing_.in_flight(); }

  UcxWorker& worker_;
  UcxConnection& connection_;
  std::optional<UcxDoorCall> call_;
  const std::string address_;
  LinkEvents& events_;
  UcxOutgoing outgoing_;
  UcxIncoming incoming_;
  std::uint64_t received_bytes_ = 0;
  std::optional<Error> closing_;
  bool is_closed_ = false;
};

}  // namespace cachalot::transfer
