// What a link receives.
//
// A slice goes straight into the window where that is one piece. Otherwise UCX hands its bytes over as they come, and
// they are copied to where they belong.
#pragma once

#include <cachalot/result.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "transfer/link/frame_reader.h"
#include "transfer/ucx/pins.h"
#include "transfer/ucx/ucx_connection.h"

namespace cachalot::transfer {

// A message as UCX hands it over.
struct UcxArrival {
  UcxMessage message;
  std::span<const std::byte> header;
  std::span<const std::byte> data;  // of a rendezvous: nothing yet
  std::uint64_t bytes = 0;          // of the data
  void* offer = nullptr;            // of a rendezvous: for UcxConnection::receive()
};

class UcxIncoming {
 public:
  UcxIncoming(UcxWorker& worker, UcxConnection& connection, Pins& pins, Link& link,
              LinkEvents& events);
  ~UcxIncoming();

  // Called by UCX. What is not received of a rendezvous is dropped.
  // @errors kBadInput, kCorrupt, kVersionMismatch
  Status take(const UcxArrival& arrival);

  unsigned in_flight() const { return receives_; }
  // What comes from now on is dropped.
  void stop();
  // Ends all payloads. Needs in_flight() to be 0.
  void end();

  // How UCX takes bytes apart that do not lie in one piece: SliceReceive is its context.
  static ucs_status_t create_scattered(const UcxLibrary& ucx, ucp_datatype_t& type);

 private:
  struct Payload;
  struct SliceReceive;

  Status take_segment(const UcxArrival& arrival);
  Status take_slice(const UcxArrival& arrival);
  Status take_void(const UcxArrival& arrival);
  Status check_sequence(std::uint32_t magic, std::uint64_t sequence);
  Status begin_payload(std::uint64_t number, std::span<const std::byte> frame);
  void receive(const std::shared_ptr<Payload>& payload, const UcxArrival& arrival,
               std::uint64_t offset);
  void try_end(const std::shared_ptr<Payload>& payload);

  UcxWorker& worker_;
  UcxConnection& connection_;
  Pins& pins_;
  Link& link_;
  LinkEvents& events_;
  FrameReader reader_;
  std::map<std::uint64_t, std::shared_ptr<Payload>> payloads_;
  std::uint64_t sequence_ = 0, last_payload_ = 0;
  unsigned receives_ = 0;
  bool is_stopped_ = false;
};

}  // namespace cachalot::transfer
