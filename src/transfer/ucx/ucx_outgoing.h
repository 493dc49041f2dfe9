// What a link sends: frames and small payloads as a stream, large payloads in slices.
//
// A slice is packed into a buffer first; there are two buffers a link, so that one is packed while the other one is
// sent.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "transfer/link/frame_writer.h"
#include "transfer/ucx/ucx_connection.h"

namespace cachalot::transfer {

class UcxOutgoing {
 public:
  UcxOutgoing(UcxWorker& worker, UcxConnection& connection, Link& link, LinkEvents& events);
  ~UcxOutgoing();

  void add(const Frame& frame) { writer_.add(frame); }
  std::uint64_t waiting_bytes() const { return writer_.bytes(); }
  void wants_payload() { has_payloads_ = true; }
  // The peer is an engine: its first message has come. Before, only an empty segment is sent, because UCX would write
  // more than fits into the buffers of another UCX program.
  void know_peer() { is_peer_known_ = true; }

  // step() would send something.
  bool is_runnable() const;
  // @return whether it has sent a message
  bool step();

  // Operations of payloads that UCX has not ended.
  unsigned in_flight() const { return slices_; }
  // Ends all payloads; frames that were added before them can still be sent. Needs in_flight() to be 0.
  void end();

 private:
  struct Payload;
  struct SegmentSend;
  struct SliceSend;
  struct VoidSend;

  bool wants_more() const;
  void pull();
  bool send_segment();
  // Lets go of a payload that UCX has taken. @return false: there is none
  bool end_payload();
  void send_void(const Payload& payload);
  bool send_slice();
  bool fill_slice(Payload& payload, SliceSend& send);

  UcxWorker& worker_;
  UcxConnection& connection_;
  Link& link_;
  LinkEvents& events_;
  FrameWriter writer_;
  std::deque<std::shared_ptr<Payload>> payloads_;  // that have begun
  bool has_payloads_ = true;                       // next_payload() may have one
  bool is_greeted_ = false, is_peer_known_ = false;
  std::uint64_t sequence_ = 0, payload_number_ = 0;
  unsigned slices_ = 0;  // in flight
};

}  // namespace cachalot::transfer
